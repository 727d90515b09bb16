"""Analyses over many texts: divided among processes, resumed after a kill, merged to the last digit."""
