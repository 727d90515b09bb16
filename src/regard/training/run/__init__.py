"""Run: the folder of a training run and the files in it."""
