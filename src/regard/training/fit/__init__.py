"""Fit: the training loop, its data, its state."""
