"""The Triton kernels of contributions: every answer equals the same question asked of the dense matrix in float64.

One set of cases, run twice: small under Triton's interpreter on a CPU, and at real sizes on a GPU (`make test-gpu`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

import regard as r
from regard import Contributions
from regard.attention.kernels import statistics_launch as statistics
from tests.support.attention_cases import pooled_cells
from tests.support.triton_interpreter import GPU, interpreted, skip_without_triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

skip_without_triton()
with interpreted():
    from regard.attention.kernels import statistics_triton  # noqa: F401

pytestmark = pytest.mark.usefixtures("interpreted_kernels")
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter multiplies bfloat16 as if it were whole numbers


@dataclass(frozen=True)
class Case:
    """A request; lengths are those under the interpreter, and `real` those on a GPU."""

    queries: int = 40
    keys: int = 70
    real: tuple[int, int] = (700, 1100)
    heads: int = 2
    shared: int = 2
    width: int = 16
    value_width: int = 16
    mask: Callable[[int, int], r.Mask] | None = None
    energy: Callable[[], r.Energy] = r.ScaledDot
    normalize: Callable[[], r.Normalizer] = r.Softmax
    dtype: torch.dtype = torch.float32


CASES = {
    "plain": Case(),
    "one key": Case(37, 1, real=(900, 1)),
    "causal, shared heads": Case(heads=4, shared=2, mask=lambda q, k: r.causal(k - q)),
    "window, other width of values": Case(width=24, value_width=5, mask=lambda q, k: r.causal() & r.window(q // 3)),
    "soft cap and sink": Case(
        energy=lambda: r.Modified(r.ScaledDot(), r.SoftCap(2.0)), normalize=lambda: r.Softmax(sink=0.7)
    ),
    "half precision": Case(width=64, value_width=64, heads=4, mask=lambda q, k: r.causal(), dtype=HALF),
    "half precision, wide": Case(80, 80, real=(1024, 2048), width=128, value_width=128, dtype=HALF),
}


def _check(case: Case, device: str) -> None:
    torch.manual_seed(0)
    queries, keys = case.real if device == "cuda" else (case.queries, case.keys)
    q, k = (torch.randn(1, n, t, case.width) for n, t in ((case.heads, queries), (case.shared, keys)))
    v, g = (torch.randn(1, n, t, case.value_width) for n, t in ((case.shared, keys), (case.heads, queries)))
    q, k, v, g = (x.to(device, case.dtype) for x in (q, k, v, g))
    v[:, :, keys // 2 + 1 :][:, :, :1] = 0  # contributes nothing
    arguments = {"energy": case.energy(), "normalize": case.normalize(), "backend": "reference"}
    arguments["mask"] = None if case.mask is None else case.mask(queries, keys)
    _, w = r.attend(q, k, v, **arguments, weights=True)
    _, exact = r.attend(q.double(), k.double(), v.double(), **arguments, weights=True)
    products = g.double() @ v.double().repeat_interleave(case.heads // case.shared, dim=1).mT
    truth = exact.dense() * products
    ours = Contributions(w, v, g)
    # A weight moves, relatively, by as much as its energy is rounded, and products by as much as their terms.
    energy = float(w.energies.whole().abs().max())
    budget = 1e-6 * (1 + energy) * float(products.abs().max())
    top = min(8, keys)
    stats = ours.stats(
        total=True, size=True, spread=True, top=top, received=True, received_size=True, on=[0, keys // 3], map=(6, 5)
    )
    size = truth.abs()
    _close("total", stats.total, truth.sum(-1), budget)
    _close("size", stats.size, size.sum(-1), budget)
    _close("received", stats.received, truth.sum(-2), budget * queries**0.5)
    _close("received_size", stats.received_size, size.sum(-2), budget * queries**0.5)
    _close("on", stats.on, truth[..., sorted({0, keys // 3})].sum(-1), budget)
    share = (size / size.sum(-1, keepdim=True)).nan_to_num(0)
    _close("spread", stats.spread, -torch.xlogy(share, share).sum(-1), 1e-5 * (1 + energy))
    values, indices = stats.top
    _close("top", values.abs(), size.topk(top, dim=-1).values, budget)
    filled = values != 0
    _close("top, of the keys", truth.gather(-1, indices)[filled], values[filled].double(), budget)
    ordered = indices.where(filled, -1 - torch.arange(top, device=device)).sort(-1).values
    assert (ordered.diff(dim=-1) != 0).all(), "a key twice"
    _close("map", stats.map, pooled_cells(truth, 6, 5, "max", by_size=True), budget)
    fine = max(1, queries // 2 + 1), max(1, keys // 8)
    _close("fine map", ours.map(fine), pooled_cells(truth, *fine, "max", by_size=True), budget)
    _close("mean map", ours.map((5, 7), "mean"), pooled_cells(truth, 5, 7, "mean", by_size=True), budget)
    part = ours[0, 1:].rows(slice(0, None, 2))
    _close("part", part.total(), truth.sum(-1)[0, 1:, ::2], budget)


def _close(name: str, ours: Tensor, truth: Tensor, budget: float) -> None:
    error = float((ours.double() - truth).abs().max())
    assert error <= budget, f"{name}: off by {error:.3g}, allowed {budget:.3g}"


@pytest.fixture
def kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the kernels refuse."""
    answers = statistics.answers

    def required(*arguments: object, **named: object) -> object:
        results = answers(*arguments, **named)  # type: ignore[arg-type]
        assert results is not None, "the kernels refused"
        return results

    monkeypatch.setattr(statistics, "answers", required)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.skipif(GPU, reason="interpreted only where there is no GPU")
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    _check(CASES[name], "cpu")


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels_only")
@pytest.mark.skipif(not GPU, reason="needs CUDA")
@pytest.mark.parametrize("name", CASES)
def test_on_gpu(name: str) -> None:
    _check(CASES[name], "cuda")


@pytest.mark.usefixtures("kernels_only")
def test_values_and_directions_that_are_no_numbers(device: str) -> None:
    """A value behind a mask contributes nothing; one that is seen, or a direction, makes its own rows NaN only."""
    q, k, v, g = (torch.randn(1, 50, 16, device=device) for _ in range(4))
    v[0, 40] = torch.nan
    g[0, 7] = torch.nan
    _, w = r.attend(q, k, v.nan_to_num(0), mask=r.causal(), weights=True, backend="reference")
    stats = Contributions(w, v, g).stats(total=True, top=2, received=True, map=(50, 1))
    row = torch.arange(50, device=device)
    lost = ((row == 7) | (row >= 40))[None]
    assert torch.equal(stats.total.isnan(), lost)
    assert torch.equal(stats.map[..., 0].isnan(), lost)
    assert torch.equal(stats.top.values[..., 0].isnan(), lost)
    assert torch.equal(stats.received.isnan(), ((row <= 7) | (row == 40))[None])


def test_several_precisions_are_left_to_pytorch(device: str) -> None:
    q, k, v = (torch.randn(1, 9, 16, device=device, dtype=HALF) for _ in range(3))
    _, w = r.attend(q, k, v, weights=True, backend="reference")
    g = torch.randn(1, 9, 16, device=device)
    expected = ((w.dense() * (g @ v.float().mT)).sum(-1)).double()
    torch.testing.assert_close(Contributions(w, v, g).total().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("kernels_only")
def test_two_runs_are_bit_identical(device: str) -> None:
    length = 2000 if device == "cuda" else 80
    q, k, v, g = (torch.randn(1, 2, length, 64, device=device).to(HALF) for _ in range(4))
    _, w = r.attend(q, k, v, mask=r.causal(), weights=True, backend="reference")
    c = Contributions(w, v, g)
    first, again = (c.stats(total=True, spread=True, received=True, top=3, map=(8, 8)) for _ in range(2))
    for name in ("total", "spread", "received", "map"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert torch.equal(first.top.indices, again.top.indices)
