"""Corpora that are read a few thousand rows at a time: Arrow tables, datasets of the Hub, streams of pairs."""
