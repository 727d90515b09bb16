"""Kernels of Gaussian and inverse-distance attention: the op and its Triton implementation."""
