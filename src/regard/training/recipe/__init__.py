"""Recipes: the settings of a training run, where they come from, and how they are checked."""
