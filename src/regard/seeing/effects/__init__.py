"""Effects: what heads, layers and tokens do to what a model computes."""
