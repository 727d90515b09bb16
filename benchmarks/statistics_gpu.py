"""Exact statistics of an attention matrix that is never stored, beside the attention itself, on a GPU.

    PYTHONPATH=src python3 -m benchmarks.statistics_gpu --csv benchmarks/results.csv

Times are by CUDA events, milliseconds at the 20th, 50th and 80th percentile; memory is what a call takes at its peak
beyond what was there before. The limits are what the chip could do at best: matrix products at its measured rate, one
exponential per weight at 16 per clock and processor.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLUMNS = ("work", "who", "p20_ms", "p50_ms", "p80_ms", "peak_MiB", "gpu", "torch")
Row = tuple[str, str, float, float, float, float]


def measure(work: Callable[[], object], seconds: float = 1.0) -> tuple[float, float, float, float]:
    """p20, p50 and p80 in milliseconds, and the peak of extra memory in MiB."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = []
    for _ in range(max(5, min(100, int(seconds * 1e3 / max(start.elapsed_time(stop), 1e-3))))):
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    p20, p50, p80 = torch.tensor(times).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
    return p20, p50, p80, peak


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def of_dense(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The questions asked of the matrix itself, a head at a time: all heads at once do not fit beside its copies."""
    w = torch.softmax((q @ k.mT).float() * q.shape[-1] ** -0.5, dim=-1)
    pooled = w.unflatten(-1, (128, -1)).amax(-1).unflatten(-2, (128, -1)).amax(-2)
    return -torch.xlogy(w, w).sum(-1), *w.max(-1), w.sum(-2), pooled


def sixteen_heads() -> Iterator[Row]:
    q, k, v = (torch.randn(1, 16, 16384, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    name = "T=16384 H=16"
    _, w = regard.attend(q, k, v, weights=True)
    yield name, "cuDNN forward", *measure(lambda: cudnn(q, k, v, False))
    yield name, "dense, one head at a time", *measure(lambda: [of_dense(q[0, h], k[0, h]) for h in range(16)])
    asked = {"entropy": True, "received": True, "map": (128, 128)}
    yield name, "entropy, max, received, map", *measure(lambda: w.stats(**asked, top=1))
    yield name, "the same with top 8", *measure(lambda: w.stats(**asked, top=8))
    for one in ({"entropy": True}, {"top": 1}, {"received": True}, {"map": (128, 128)}, {"top": 8}, {"on": [0]}):
        yield name, f"only {next(iter(one))} {next(iter(one.values()))}", *measure(lambda one=one: w.stats(**one), 0.3)
    yield name, "only mean map", *measure(lambda: w.stats(map=(128, 128), pool="mean"), 0.3)
    out = cudnn(q, k, v, False)
    yield name, "only fidelity", *measure(lambda: w.stats(fidelity=(v, out)), 0.3)
    fresh = type(w)
    yield name, "row state alone", *measure(lambda: fresh(w._scores, w._normalize)._own_state(), 0.3)


def long_context() -> Iterator[Row]:
    q, k, v = (torch.randn(1, 4, 131072, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    name = "T=131072 H=4 causal"
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    yield name, "cuDNN forward", *measure(lambda: cudnn(q, k, v, True), 0.5)
    asked = {"entropy": True, "top": 1, "received": True, "map": (128, 128)}
    yield name, "entropy, max, received, map", *measure(lambda: w.stats(**asked), 0.5)
    name = "T=131072, one head"
    _, w = regard.attend(q[:, :1], k[:, :1], v[:, :1], weights=True)
    every = slice(None)
    yield name, "tile of 512 × 512 cells, whole map", *measure(lambda: w.tile(every, every, (512, 512)), 0.5)
    here = slice(70000, 70512)
    yield name, "tile of 512 × 512 weights", *measure(lambda: w.tile(here, here), 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    csv_path = parser.parse_args().csv
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}")
    rows = []
    for part in (sixteen_heads, long_context):
        for work, who, *numbers in part():
            print(f"{work:22} {who:36} {numbers[0]:9.3f} {numbers[1]:9.3f} {numbers[2]:9.3f} ms {numbers[3]:9.1f} MiB")
            rows.append((work, who, *(f"{x:.4f}" for x in numbers), gpu, torch.__version__))
        torch.cuda.empty_cache()
    if csv_path is not None:
        fresh = not csv_path.exists()
        with csv_path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows(rows)


if __name__ == "__main__":
    main()
