"""What it costs that NaN and ∞ behind a mask reach nothing: attend as it is, beside attend without that.

python -m benchmarks.hidden_keys [cpu|cuda]
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch

import regard as r

if TYPE_CHECKING:
    from collections.abc import Callable


def duration(call: Callable[[], object], device: str) -> float:
    """Milliseconds of a call; on a GPU of one of 20 in a row."""
    row = 20 if device == "cuda" else 1
    start = time.perf_counter()
    for _ in range(row):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / row


def unchecked(call: Callable[[], object], device: str) -> float:
    """The same where nothing is read or cleared."""
    with ExitStack() as stack:
        for name in ("attend", "masks.hidden_keys"):
            stack.enter_context(patch.object(sys.modules[f"regard.attention.{name}"], "is_finite", lambda x: True))
        request = sys.modules["regard.attention.request"]
        stack.enter_context(patch.object(request, "clear_named_keys", lambda *arguments: arguments[-2:]))
        return duration(call, device)


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.set_num_threads(1)
    cases = [(8, 8, 1, 512), (32, 8, 64, 64), (4, 8, 512, 512), (1, 8, 2048, 2048)]
    if device == "cuda":
        cases = [(8, 32, 1, 4096), (32, 8, 64, 64), (8, 16, 1024, 1024), (1, 32, 4096, 4096)]
    print(f"{'B, heads, T_q, T_k':>20} {'gradients':>10} {'without, ms':>12} {'with, ms':>10}")
    for batch, heads, queries, keys in cases:
        q = torch.randn(batch, heads, queries, 64, device=device, dtype=dtype)
        k, v = (torch.randn(batch, heads, keys, 64, device=device, dtype=dtype) for _ in range(2))
        mask = r.padding(torch.full((batch,), keys - 1, device=device))
        for grad in (False, True):
            leaves = [x.clone().requires_grad_(grad) for x in (q, k, v)]

            def call(leaves: list[torch.Tensor] = leaves, mask: r.Mask = mask, grad: bool = grad) -> None:
                z = r.attend(*leaves, mask=mask)
                if grad:
                    torch.autograd.grad(z.sum(), leaves)

            pairs = [(unchecked(call, device), duration(call, device)) for _ in range(24 if queries < 2048 else 6)]
            without, full = (
                min(times) for times in zip(*pairs[1:], strict=True)
            )  # taken in turn: the machine is shared
            shape = f"{batch}, {heads}, {queries}, {keys}"
            print(f"{shape:>20} {'yes' if grad else 'no':>10} {without:12.3f} {full:10.3f}")


if __name__ == "__main__":
    main()
