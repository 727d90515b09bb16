"""Alignment: links between words and their error rate, weights between words, the pointing game, time warping."""
