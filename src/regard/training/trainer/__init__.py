"""The training loop: `fit`, its Lightning modules, its data and its state."""
