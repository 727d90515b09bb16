"""Seeing: attention weights made visible."""
