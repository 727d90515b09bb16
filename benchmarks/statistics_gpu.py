"""Exact statistics of an attention matrix that is never stored, beside the attention itself, on a GPU.

    PYTHONPATH=src python3 -m benchmarks.statistics_gpu --csv benchmarks/speeds.csv

Times are by CUDA events around five calls that follow one another without waiting, as a model's do; milliseconds per
call at the 20th, 50th and 80th percentile. "alone" is one call from an idle start, what Python does before the first
kernel included. Memory is what a call takes at its peak beyond what was there before.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.timing import RESULTS, Row, gpu_row, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS = 5
Measured = tuple[str, str, float, float, float, float, float]


def measure(work: Callable[[], object], seconds: float = 0.5) -> tuple[float, float, float, float, float]:
    """p20, p50 and p80 of calls in a row, the median of one alone, in milliseconds; the peak of extra memory in MiB."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    first = timed(work, 1)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    repeats = max(5, min(50, int(seconds * 1e3 / first / CALLS)))
    p20, p50, p80 = quantiles([timed(work, CALLS) for _ in range(repeats)])
    alone = quantiles([timed(work, 1) for _ in range(repeats)])[1]
    return p20, p50, p80, alone, peak


def timed(work: Callable[[], object], calls: int) -> float:
    """Milliseconds per call."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / calls


def quantiles(times: list[float]) -> list[float]:
    return torch.tensor(times).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def of_dense(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The questions asked of the matrix itself, a head at a time: all heads at once do not fit beside its copies."""
    w = torch.softmax((q @ k.mT).float() * q.shape[-1] ** -0.5, dim=-1)
    pooled = w.unflatten(-1, (128, -1)).amax(-1).unflatten(-2, (128, -1)).amax(-2)
    return -torch.xlogy(w, w).sum(-1), *w.max(-1), w.sum(-2), pooled


def sixteen_heads() -> Iterator[Measured]:
    q, k, v = (torch.randn(1, 16, 16384, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    name = "T=16384 H=16 D=128"
    _, w = regard.attend(q, k, v, weights=True)
    yield name, "cuDNN forward", *measure(lambda: cudnn(q, k, v, False))
    yield name, "dense, one head at a time", *measure(lambda: [of_dense(q[0, h], k[0, h]) for h in range(16)], 0.2)
    asked = {"entropy": True, "received": True, "map": (128, 128)}
    yield name, "regard: entropy, max, received, map", *measure(lambda: w.stats(**asked, top=1))
    yield name, "regard: the same with top 8", *measure(lambda: w.stats(**asked, top=8))
    for one in ({"entropy": True}, {"top": 1}, {"received": True}, {"map": (128, 128)}, {"top": 8}, {"on": [0]}):
        yield (
            name,
            f"regard: only {next(iter(one))} {next(iter(one.values()))}",
            *measure(lambda one=one: w.stats(**one), 0.2),
        )
    yield name, "regard: only mean map", *measure(lambda: w.stats(map=(128, 128), pool="mean"), 0.2)
    out = cudnn(q, k, v, False)
    yield name, "regard: only fidelity", *measure(lambda: w.stats(fidelity=(v, out)), 0.2)
    fresh = type(w)
    yield name, "regard: row state alone", *measure(lambda: fresh(w.energies, w.normalize).row_state(), 0.2)


def causal_layer(length: int, heads: int, width: int) -> Iterator[Measured]:
    q, k, v = (torch.randn(1, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    name = f"T={length} H={heads} D={width} causal"
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    yield name, "PyTorch forward", *measure(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    asked = {"entropy": True, "received": True, "map": (128, 128)}
    yield name, "regard: entropy, max, received, map", *measure(lambda: w.stats(**asked, top=1))
    yield name, "regard: the same with top 8", *measure(lambda: w.stats(**asked, top=8))


def causal_layers() -> Iterator[Measured]:
    """What a decoder's layers ask: a short context of many heads, a long one of few."""
    yield from causal_layer(4096, 32, 64)
    yield from causal_layer(16384, 16, 128)


def new_lengths() -> Iterator[Measured]:
    """The first call at lengths not seen before, after one at 4096: nothing should be compiled for them."""
    for length in (4096, 4097, 5000, 3000, 8192):
        q, k, v = (torch.randn(1, 8, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        stats = regard.attend(q, k, v, mask=regard.causal(), weights=True)[1].stats
        once = timed(partial(stats, entropy=True, top=8, received=True, map=(128, 128)), 1)
        if length != 4096:
            yield "H=8 D=64 causal, the first call at a length", f"regard: T={length}", once, once, once, once, 0.0


def long_context() -> Iterator[Measured]:
    q, k, v = (torch.randn(1, 4, 131072, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    name = "T=131072 H=4 causal D=128"
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    yield name, "cuDNN forward", *measure(lambda: cudnn(q, k, v, True), 0.5)
    asked = {"entropy": True, "top": 1, "received": True, "map": (128, 128)}
    yield name, "regard: entropy, max, received, map", *measure(lambda: w.stats(**asked), 0.5)
    name = "T=131072, one head D=128"
    _, w = regard.attend(q[:, :1], k[:, :1], v[:, :1], weights=True)
    yield name, "regard: tile of 512 × 512 cells, whole map", *measure(lambda: w.stats(map=(512, 512)), 0.5)
    here = slice(70000, 70512)
    yield name, "regard: tile of 512 × 512 weights", *measure(lambda: w.tile(here, here), 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    parts = {part.__name__: part for part in (sixteen_heads, causal_layers, new_lengths, long_context)}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="which of them; all by default")
    options = parser.parse_args()
    path = options.csv
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    rows: dict[str, list[Row]] = {}
    for part in options.parts:
        for name, by, p20, p50, p80, alone, peak in parts[part]():
            print(
                f"{name:22} {by:42} {p20:8.3f} {p50:8.3f} {p80:8.3f}, alone {alone:8.3f} ms {peak:8.1f} MiB", flush=True
            )
            work = f"statistics {name}, bfloat16"
            rows.setdefault(work, []).append(gpu_row(work, by, p20, p50, p80))
            work = f"{work}, one call from idle"
            rows.setdefault(work, []).append(gpu_row(work, by, alone, alone, alone))
            work = work.replace("one call from idle", "peak extra memory")
            rows.setdefault(work, []).append(gpu_row(work, by, peak, peak, peak, "MiB"))
        torch.cuda.empty_cache()
    write([one for group in rows.values() for one in group], path)


if __name__ == "__main__":
    main()
