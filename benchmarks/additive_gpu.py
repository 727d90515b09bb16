"""Additive attention on a GPU: the formula in PyTorch, the same compiled, and ours, in one run.

    PYTHONPATH=src python3 -m benchmarks.additive_gpu [--csv speeds.csv]

Times are p20/p50/p80 by CUDA events after a warm-up (`triton.testing.do_bench`, which overwrites the L2 cache before
each run); memory is the peak beyond the inputs. "in a graph" is one of eight steps recorded in a CUDA graph, each with
inputs of its own, as a decoder's are: what the GPU needs, without Python. "wall clock" is one of many calls in a row.
The limit is the larger of two times: what the tanh units would need, at 16 per clock and SM, for one tanh per triple
(two with the backward), and what memory would, for every input read and every output written once.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

import regard
from benchmarks.timing import RESULTS, Row, gpu_row, write
from regard.attention.kernels.additive_triton import additive as attention

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = 1.98e9
TANH_PER_CLOCK_AND_SM = 16
BYTES_PER_SECOND = 4.3e12  # a large copy on an H200, measured
SETS = 8


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
    short: bool = False
    """Work so short that Python is slower than the GPU: timed in a CUDA graph and by the wall clock as well."""

    @property
    def title(self) -> str:
        return f"additive {self.name}, {str(self.dtype).removeprefix('torch.')}"

    @property
    def limit(self) -> float:
        """Milliseconds."""
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        tanh = self.n * self.q * self.k * self.d * (1 + self.backward) / (TANH_PER_CLOCK_AND_SM * sms * CLOCK)
        numbers = self.n * (2 * self.q + 2 * self.k) * self.d * (1 + self.backward)
        size = torch.finfo(self.dtype).bits // 8
        if self.backward:  # the inputs once more, and their gradients
            numbers += self.n * (self.q + 2 * self.k) * self.d
        return 1e3 * max(tanh, numbers * size / BYTES_PER_SECOND)

    def inputs(self) -> list[Tensor]:
        sizes = ((self.n, self.q, self.d), (self.n, self.k, self.d), (self.d,), (self.n, self.k, self.d))
        made = [torch.randn(size, device="cuda") for size in sizes]
        made[2] /= self.d**0.5
        return [x.to(self.dtype).requires_grad_(self.backward) for x in made]


def formula(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """softmax_j(w·tanh(a_i + b_j)) v_j, as one writes it."""
    return (torch.tanh(a[:, :, None] + b[:, None]) @ w).softmax(-1) @ v


def fused(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return attention(a, b, w, v, None, None, None, 1.0, 0.0)[0]


def works() -> list[Work]:
    targets = [
        Work("forward B=4 T=2048 D=256", 4, 2048, 2048, 256),
        Work("forward+backward B=4 T=2048 D=256", 4, 2048, 2048, 256, backward=True),
    ]
    targets += [
        Work(f"decoder step B=256 T_k=50 D=512{', with backward' * back}", 256, 1, 50, 512, back, kind, short=True)
        for kind in (torch.float32, torch.bfloat16)
        for back in (False, True)
    ]
    lengths = [512, 1024, 2048, 4096, 8192]
    sweep = [
        Work(f"{'forward+backward' if back else 'forward'} B=1 T={t} D=256", 1, t, t, 256, back, eager=t < 8192)
        for back in (False, True)
        for t in lengths
    ]
    sweep += [
        Work(f"forward+backward B=32 T={t} D=256", 32, t, t, 256, backward=True, short=True) for t in (64, 128, 256)
    ]
    low = [Work("forward B=4 T=2048 D=256", 4, 2048, 2048, 256, dtype=torch.bfloat16)]
    return targets + low + sweep


def call(work: Work, function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    if not work.backward:
        return lambda: function(*inputs)
    grad = torch.randn(work.n, work.q, work.d, device="cuda", dtype=work.dtype)
    return lambda: torch.autograd.grad(function(*inputs), inputs, grad)


def captured(runs: list[Callable[[], object]]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph.replay


def timed(run: Callable[[], object]) -> list[float]:
    times: list[float] = triton.testing.do_bench(run, warmup=25, rep=100, quantiles=[0.2, 0.5, 0.8])
    return times


def by_the_clock(run: Callable[[], object], calls: int = 100) -> list[float]:
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / calls)
    return [sorted(times)[at] for at in (4, 10, 16)]


def measure(work: Work, how: str, function: Callable[..., Tensor]) -> list[Row]:
    run = call(work, function, work.inputs())
    rows = time_and_memory(work.title, how, run)
    if work.short:
        rows.append(shown(f"{work.title}, wall clock", how, by_the_clock(run)))
        steps = captured([call(work, function, work.inputs()) for _ in range(SETS)])
        rows.append(shown(f"{work.title}, in a graph", how, [x / SETS for x in timed(steps)]))
    return rows


def time_and_memory(work: str, how: str, run: Callable[[], object]) -> list[Row]:
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20
    return [shown(work, how, timed(run)), shown(f"{work}, peak extra memory", how, [extra] * 3, "MiB")]


def shown(work: str, how: str, quantiles: list[float], unit: str = "ms") -> Row:
    print(f"{work:75} {how:15} {' '.join(f'{x:9.4f}' for x in quantiles)} {unit}", flush=True)
    return gpu_row(work, how, *quantiles, unit)


def measured(work: Work, compiled: bool) -> list[Row]:
    ways: dict[str, Callable[..., Tensor]] = {"regard": fused}
    if work.eager:
        ways["eager"] = formula
    if work.eager and compiled:
        torch._dynamo.reset()
        ways["torch.compile"] = torch.compile(formula)
    rows = []
    for how, function in ways.items():
        rows += measure(work, how, function)
        gc.collect()
        torch.cuda.empty_cache()
    limit = f"{work.title}, in a graph" if work.short else work.title
    rows.append(shown(limit, "limit", [work.limit] * 3))
    return sorted(rows, key=lambda one: one.work)  # times together, then memory


def with_projections(tokens: int) -> list[Row]:
    """`attend` with the two projections of a layer, forward and backward, beside the same formula by hand: B=32 D=256.

    By the wall clock of many calls in a row: Python decides.
    """
    energy = regard.Additive(256, 256, 256).cuda()
    q, k, v = (torch.randn(32, tokens, 256, device="cuda", requires_grad=True) for _ in range(3))
    inputs, grad = [q, k, v, *energy.parameters()], torch.randn(32, tokens, 256, device="cuda")

    def by_hand() -> Tensor:
        return formula(energy.query(q), energy.key(k), energy.weight, v)

    ways: dict[str, Callable[[], Tensor]] = {"regard": lambda: regard.attend(q, k, v, energy=energy), "eager": by_hand}
    work = f"additive layer forward+backward B=32 T={tokens} D=256, float32, wall clock"
    return [
        shown(work, how, by_the_clock(lambda run=run: torch.autograd.grad(run(), inputs, grad), 50))  # type: ignore[misc]
        for how, run in ways.items()
    ]


HEAD = f"{'work':75} {'by':15}       p20       p50       p80"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it compiles for a while")
    parser.add_argument("--only", default="", help="only works whose name starts so")
    options = parser.parse_args()
    print(HEAD)
    for work in works():
        if work.name.startswith(options.only):
            write(measured(work, not options.no_compile), options.csv)
    if not options.only or "layer".startswith(options.only):
        for tokens in (64, 128, 256):
            write(with_projections(tokens), options.csv)


if __name__ == "__main__":
    main()
