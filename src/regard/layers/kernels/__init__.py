"""What is there for speed alone: steps of recurrent loops, and packed matrices of searches."""
