"""HTTP: the viewer's server, its routes, and its worker threads."""
