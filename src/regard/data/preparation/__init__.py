"""Preparing a corpus for training: shards that processes encode side by side, kept in a cache that runs share."""
