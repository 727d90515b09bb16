"""Encoders: each reads a source and returns annotations."""
