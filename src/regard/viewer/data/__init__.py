"""Data: what the page shows of a trace, and the models and traces that can be opened."""
