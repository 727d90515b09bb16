"""Recipes, fitting, evaluating, results."""
