"""Training on a stream of pairs: the batches of each update, and the positions from which a run resumes."""
