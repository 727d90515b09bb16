"""Recording: what is kept of each call while the model runs, and the calls that are made of it when somebody asks."""
