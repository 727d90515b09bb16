"""Capture: record every attention call of a model while it runs."""
