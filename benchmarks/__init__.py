"""Time and memory beside the best alternative."""
