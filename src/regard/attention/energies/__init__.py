"""Energies: e_ij of queries and keys, their forms, their modifiers, and the matrix they make."""
