"""Corpora by name: generated ones (phrase book, opinions, tones, scenes) and public ones (digits, photos)."""
