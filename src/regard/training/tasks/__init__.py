"""Tasks: what the trainer needs to know about each kind of model. One file per task."""
