"""Every GPU kernel once, at small ragged sizes, for NVIDIA's checker of memory accesses and races:

PYTHONPATH=src compute-sanitizer --tool memcheck  python3 -m benchmarks.gpu_sanitizer
PYTHONPATH=src compute-sanitizer --tool racecheck python3 -m benchmarks.gpu_sanitizer
"""

from __future__ import annotations

import torch

import regard
from regard.attention.kernels.additive_triton import additive as attention


def additive() -> None:
    """Many queries and few, forward and backward, with intervals and dropout; and both ways to the tanh."""
    for queries, size in ((70, 1.0), (70, 50.0), (3, 1.0), (1, 50.0)):
        a, b, v = (torch.randn(2, t, 24, device="cuda", requires_grad=True) for t in (queries, 67, 67))
        w = torch.randn(24, device="cuda", requires_grad=True)
        stop = torch.tensor([[60], [67]], device="cuda")
        seed = torch.tensor(3, device="cuda")
        out, lse = attention(a * size, b * size, w, v, torch.zeros_like(stop), stop, seed, 1.0, 0.1)
        torch.autograd.grad(out.sum() + lse.sum(), (a, b, w, v))


def statistics() -> None:
    """Every question, in both precisions, at odd lengths, with a mask and without."""
    for kind in (torch.bfloat16, torch.float32):
        q, k, v = (torch.randn(1, 2, t, 32, device="cuda", dtype=kind) for t in (70, 150, 150))
        for mask in (None, regard.causal(80)):
            out, w = regard.attend(q, k, v, mask=mask, weights=True, backend="reference")  # none but our kernels
            w.stats(entropy=True, top=1, received=True, on=[0, 5], offsets=[-1, 0, 3], map=(6, 7))
            w.stats(top=8, map=(5, 5), pool="mean", fidelity=(v, out))
            w.top(20)
            w.tile(slice(3, 70), slice(11, 140))
            w.tile(slice(0, 70), slice(0, 149), (8, 8))


if __name__ == "__main__":
    torch.manual_seed(0)
    additive()
    statistics()
    torch.cuda.synchronize()
    print("every kernel ran")
