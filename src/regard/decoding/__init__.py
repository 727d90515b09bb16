"""Search, translation, export: what a trained model is used with."""
