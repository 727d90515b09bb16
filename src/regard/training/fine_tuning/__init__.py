"""Starting from a model that is trained: its weights, its vocabulary, and what of it learns at which rate."""
