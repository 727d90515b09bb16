"""Training of a model that the caller wrote: `fit(model, …)`."""
