"""Triton kernels that compute statistics of an attention matrix without storing it."""
