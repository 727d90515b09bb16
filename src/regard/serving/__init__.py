"""`regard serve`: a model behind an HTTP API that computes the texts of many requests together."""
