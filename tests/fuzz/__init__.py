"""Fuzzing: mutated recipes, traces, model folders, corpora, media, requests and calls of attend."""
