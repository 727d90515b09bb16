"""Derivatives of every order: of walks over blocks, and of kernels that have a first one only."""
