"""Prepares the data of a run: vocabulary and encoded corpora, in its folder."""
