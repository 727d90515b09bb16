"""HTTP: the viewer's server, its routes, and its limits."""
