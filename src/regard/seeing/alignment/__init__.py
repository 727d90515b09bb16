"""Alignment: links between words and their error rate, weights between words, and the pointing game."""
