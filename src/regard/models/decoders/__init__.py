"""Decoders: each reads annotations and predicts the target, token by token."""
