"""Viewer: one page where attention is read like a map, served, in a notebook, or as a single file."""
