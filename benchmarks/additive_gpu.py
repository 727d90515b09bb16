"""Additive attention on a GPU: the formula in PyTorch, the same compiled, and ours, in one run.

    PYTHONPATH=src python3 -m benchmarks.additive_gpu [--csv results.csv]

Times are p20/p50/p80 by CUDA events after a warm-up (`triton.testing.do_bench`, which empties the L2 cache before each
run); memory is the peak beyond the inputs; the limit is what the tanh units alone would need, at 16 per clock and SM.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from regard.attention.kernels.additive import additive

from .timing import RESULTS, Row, gpu_row, write

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = 1.98e9
TANH_PER_CLOCK_AND_SM = 16


@dataclass(frozen=True)
class Work:
    name: str
    n: int
    q: int
    k: int
    d: int
    backward: bool = False
    dtype: torch.dtype = torch.float32
    eager: bool = True
    """Whether the [n, q, k, d] tensor of the formula fits."""
    graph: bool = False
    """Time it in a CUDA graph as well: work so short that Python is slower than the GPU."""

    @property
    def title(self) -> str:
        return f"additive {self.name}, {str(self.dtype).removeprefix('torch.')}"

    def inputs(self) -> list[Tensor]:
        sizes = ((self.n, self.q, self.d), (self.n, self.k, self.d), (self.d,), (self.n, self.k, self.d))
        made = [torch.randn(size, device="cuda") for size in sizes]
        made[2] /= self.d**0.5
        return [x.to(self.dtype).requires_grad_(self.backward) for x in made]


def formula(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """softmax_j(w·tanh(a_i + b_j)) v_j, as one writes it."""
    return (torch.tanh(a[:, :, None] + b[:, None]) @ w).softmax(-1) @ v


def fused(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out: Tensor = additive(a, b, w, v, None, None, None, 1.0, 0.0)[0]
    return out


def works() -> list[Work]:
    targets = [
        Work("forward B=4 T=2048 D=256", 4, 2048, 2048, 256),
        Work("forward+backward B=4 T=2048 D=256", 4, 2048, 2048, 256, backward=True),
        Work("decoder step B=256 T_k=50 D=512", 256, 1, 50, 512, graph=True),
        Work("decoder step B=256 T_k=50 D=512, with backward", 256, 1, 50, 512, backward=True, graph=True),
    ]
    lengths = [256, 512, 1024, 2048, 4096, 8192]
    sweep = [
        Work(f"{'forward+backward' if back else 'forward'} B=1 T={t} D=256", 1, t, t, 256, back, eager=t < 8192)
        for back in (False, True)
        for t in lengths
    ]
    low = [Work("forward B=4 T=2048 D=256", 4, 2048, 2048, 256, dtype=torch.bfloat16)]
    return targets + low + sweep


def call(work: Work, function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    if not work.backward:
        return lambda: function(*inputs)
    grad = torch.randn(work.n, work.q, work.d, device="cuda", dtype=work.dtype)
    return lambda: torch.autograd.grad(function(*inputs), inputs, grad)


def captured(run: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(work: Work, how: str, function: Callable[..., Tensor]) -> list[Row]:
    run = call(work, function, work.inputs())
    run()
    if "graph" in how:
        run = captured(run)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20
    p20, p50, p80 = triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8])
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    count = work.n * work.q * work.k * work.d
    limit = 1e3 * count / (TANH_PER_CLOCK_AND_SM * sms * CLOCK)
    print(
        f"{work.title:60} {how:20} {p20:9.4f} {p50:9.4f} {p80:9.4f} {limit:9.4f} {extra:8.1f} {1e3 * count / p50:10.2e}"
    )
    return [
        gpu_row(work.title, how, p20, p50, p80),
        gpu_row(f"{work.title}, peak extra memory", how, extra, extra, extra, "MiB"),
    ]


def measured(work: Work, compiled: bool) -> list[Row]:
    ways: dict[str, Callable[..., Tensor]] = {"regard": fused}
    if work.eager:
        ways["eager"] = formula
    if work.eager and compiled:
        torch._dynamo.reset()
        ways["torch.compile"] = torch.compile(formula)
    if work.graph:
        ways |= {f"{how}, graph": function for how, function in ways.items()}
    rows = []
    for how, function in ways.items():
        rows += measure(work, how, function)
        gc.collect()
        torch.cuda.empty_cache()
    return sorted(rows, key=lambda one: one.work)  # times together, then memory


HEAD = f"{'work':60} {'by':20}    p20 ms    p50 ms    p80 ms  limit ms      MiB     tanh/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it compiles for a while")
    parser.add_argument("--only", default="", help="only works whose name starts so")
    options = parser.parse_args()
    print(HEAD)
    rows = []
    for work in works():
        if not work.name.startswith(options.only):
            continue
        rows += measured(work, not options.no_compile)
    write(rows, options.csv)


if __name__ == "__main__":
    main()
