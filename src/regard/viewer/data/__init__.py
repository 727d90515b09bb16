"""Data behind the page: the library of models and traces, views of a trace, tiles, and results of models."""
