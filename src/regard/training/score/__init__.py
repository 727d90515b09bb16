"""Scores: metrics of translations, captions, labels, and the evaluation of a model."""
