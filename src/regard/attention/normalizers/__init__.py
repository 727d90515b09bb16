"""Normalizers: one row of energies in, one distribution over the keys out."""
