"""Routes of the HTTP API: about traces, about one call of a trace, and for running models."""
