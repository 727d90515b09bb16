"""Text in, batches out."""
