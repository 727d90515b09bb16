"""Training by several processes: sharded parameters, their checkpoints, and how processes are started and fail."""
