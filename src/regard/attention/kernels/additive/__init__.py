"""Kernels of additive (Bahdanau) attention: the op, and its CPU and Triton implementations."""
