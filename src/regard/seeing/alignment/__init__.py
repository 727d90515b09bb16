"""Alignment: links between words, their error rate, and weights per word."""
