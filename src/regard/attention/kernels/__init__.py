"""Kernels nobody ships: each a `torch.library` op with a fake kernel and a gradient, one file per device."""
