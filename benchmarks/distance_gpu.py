"""Attention by distance on a GPU: PyTorch's ways and ours, in one run.

    PYTHONPATH=src:. python3 -m benchmarks.distance_gpu [--csv speeds.csv]

`cdist` is the formula with torch.cdist as the distance is defined, "torch.compile" the broadcast formula compiled. The
others take |a|² + |b|² − 2 a·b: "cdist, by products" is torch.cdist's own matrix-product mode, "SDPA, one column more"
is softmax(q·k − |k|²/2), PyTorch's attention kernel with a column of ones beside q and one of −|k|²/2 beside k. Their
errors stand beside their times: the largest difference of the output to float64's. Keys are spread, so that no tile of
ours has a near pair, or they are neighbours of the queries, so that every tile has one.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.additive_gpu import HEAD, shown, time_and_memory
from benchmarks.timing import RESULTS, Row, write
from regard.attention.energies.energy_forms import wide

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    n: int
    t: int
    d: int
    backward: bool = False
    inverse: bool = False
    neighbours: bool = False
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    """Whether torch.compile is measured too: it compiles for a while."""

    @property
    def title(self) -> str:
        kind = "inverse distance" if self.inverse else "Gaussian"
        what = "forward+backward" if self.backward else "forward"
        where, dtype = "neighbours" if self.neighbours else "spread", str(self.dtype).removeprefix("torch.")
        return f"distance, {kind} {what} B={self.n} T={self.t} D={self.d}, {where}, {dtype}"

    def inputs(self) -> list[Tensor]:
        q, k, v = (torch.randn(self.n, self.t, self.d, device="cuda") for _ in "qkv")
        q, k = q / (self.d / 8) ** 0.5, k / (self.d / 8) ** 0.5  # so that more than one key counts
        if self.neighbours:
            q = k[:, torch.randperm(self.t, device="cuda")] + q / 100
        return [x.to(self.dtype).requires_grad_(self.backward) for x in (q, k, v)]

    def ways(self) -> dict[str, Way]:
        if self.inverse:
            return {
                "regard": lambda q, k, v: regard.attend(
                    q, k, v, energy=regard.InverseDistance(), normalize=regard.Proportional()
                ),
                "cdist": _by_inverse("donot_use_mm_for_euclid_dist"),
                "cdist, by products": _by_inverse("use_mm_for_euclid_dist"),
            }
        ways: dict[str, Way] = {
            "regard": lambda q, k, v: regard.attend(q, k, v, energy=regard.Gaussian()),
            "cdist": _by_softmax("donot_use_mm_for_euclid_dist"),
            "cdist, by products": _by_softmax("use_mm_for_euclid_dist"),
            "SDPA, one column more": augmented,
        }
        if self.compiled:
            torch._dynamo.reset()
            ways["torch.compile"] = torch.compile(broadcast)
        return ways


def _by_softmax(mode: str) -> Way:
    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = torch.cdist(wide(q), wide(k), compute_mode=mode).square() * -0.5
        return (e.softmax(-1) @ wide(v)).to(v.dtype)

    return way


def _by_inverse(mode: str) -> Way:
    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = 1 / torch.cdist(wide(q), wide(k), compute_mode=mode).clamp_min(2.0**-60)
        return (e / e.sum(-1, keepdim=True) @ wide(v)).to(v.dtype)

    return way


def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax_j(−|q_i − k_j|²/2) v_j, as one writes it."""
    return ((q[:, :, None] - k[:, None]).square().sum(-1) * -0.5).softmax(-1) @ v


def augmented(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    more = k.float().square().sum(-1, keepdim=True) * -0.5
    # Kernels want widths that 8 divides.
    pad = k.new_zeros(*k.shape[:-1], 7)
    q = torch.cat([q, torch.ones_like(q[..., :1]), pad], -1)
    k = torch.cat([k, more.to(k.dtype), pad], -1)
    return scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1.0)[:, 0]


def measured(work: Work) -> list[Row]:
    torch.manual_seed(0)
    inputs = work.inputs()
    grad = torch.randn(work.n, work.t, work.d, device="cuda", dtype=work.dtype)
    truth = None if work.backward else work.ways()["cdist"](*(x.double() for x in inputs))
    rows = []
    for how, way in work.ways().items():
        if how == "cdist" and work.backward and work.n * work.t**2 * work.d >= 1 << 31:
            continue  # its backward holds that many numbers, counts them with 32 bits, and writes where it may not

        def run(way: Way = way) -> object:
            return torch.autograd.grad(way(*inputs), inputs, grad) if work.backward else way(*inputs)

        rows += time_and_memory(work.title, how, run)
        if truth is not None:
            error = float((way(*inputs).double() - truth).abs().max())
            rows.append(shown(f"{work.title}, largest error", how, [error * 1e6] * 3, "10⁻⁶"))
        gc.collect()
        torch.cuda.empty_cache()
    return sorted(rows, key=lambda row: row.work)  # times together, then errors, then memory


def works() -> list[Work]:
    made = [Work(4, 2048, 64, compiled=True), Work(4, 2048, 64, backward=True)]
    made += [Work(4, 2048, 64, backward, neighbours=True) for backward in (False, True)]
    made += [Work(4, 2048, 64, backward, inverse=True) for backward in (False, True)]
    made += [Work(4, 2048, 256), Work(4, 2048, 256, backward=True), Work(4, 2048, 64, inverse=True, neighbours=True)]
    return [*made, Work(1, 16384, 64), Work(4, 2048, 64, dtype=torch.bfloat16)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    options = parser.parse_args()
    print(HEAD)
    for work in works():
        write(measured(work), options.csv)


if __name__ == "__main__":
    main()
