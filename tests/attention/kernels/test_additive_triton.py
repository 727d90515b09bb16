"""The GPU's additive kernels against the formula in float64: on a GPU, and without one in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

import regard as r
from tests.support.triton_interpreter import interpreted, skip_without_triton

skip_without_triton()
with interpreted():
    from regard.attention.kernels import additive_triton
    from regard.attention.kernels.additive_triton import additive, additive_backward

if TYPE_CHECKING:
    from torch import Tensor


pytestmark = pytest.mark.usefixtures("interpreted_kernels")


@dataclass(frozen=True)
class Case:
    """Sizes n, q, k, d, d_v in the interpreter and on a GPU; which keys are seen; how large a and b are."""

    small: tuple[int, int, int, int, int]
    real: tuple[int, int, int, int, int]
    mask: str | None = None
    size: float = 1.0


CASES = {
    "whole blocks": Case((1, 64, 128, 16, 16), (2, 512, 512, 64, 64)),
    "ragged": Case((2, 65, 21, 20, 24), (3, 333, 777, 40, 72)),
    "large d": Case((1, 9, 10, 520, 16), (1, 200, 190, 1024, 1024)),
    "one key": Case((2, 9, 1, 16, 3), (2, 100, 1, 64, 3)),
    "causal": Case((1, 70, 70, 8, 16), (2, 700, 700, 64, 64), "causal"),
    "causal, first row sees nothing": Case((1, 70, 70, 8, 16), (2, 300, 300, 32, 64), "before"),
    "padding": Case((2, 20, 80, 8, 16), (3, 300, 400, 32, 64), "padding"),
    "window": Case((1, 130, 150, 8, 16), (2, 700, 750, 32, 64), "window"),
    "nothing is seen": Case((1, 20, 20, 8, 16), (1, 100, 100, 16, 16), "none"),
    "±30": Case((1, 66, 40, 16, 16), (2, 300, 300, 64, 64), None, 30.0),
    "±10,000": Case((1, 66, 40, 16, 16), (2, 300, 300, 64, 64), "causal", 1e4),
    "one query": Case((3, 1, 50, 40, 24), (256, 1, 50, 512, 512), "padding"),
    "one of everything": Case((1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
    "few queries, many keys": Case((1, 3, 300, 16, 16), (2, 8, 5000, 64, 64), "window"),
    "few queries, ±10,000": Case((2, 2, 20, 16, 16), (4, 4, 200, 64, 64), None, 1e4),
    "few queries see nothing": Case((2, 2, 40, 16, 16), (4, 4, 200, 64, 64), "none"),
}


def _interval(mask: str | None, n: int, q: int, k: int, device: str) -> tuple[Tensor | None, Tensor | None]:
    i = torch.arange(q, device=device)[None]
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    match mask:
        case "causal":
            return torch.zeros_like(i), (i + 1).clamp(max=k)
        case "before":
            return torch.zeros_like(i), i.clamp(max=k)
        case "padding":
            return zero.expand(n, 1), torch.randint(1, k + 1, (n, 1), device=device)
        case "window":
            return (i - 9).clamp(0, k), (i + 10).clamp(0, k)
        case "none":
            return zero, zero.clone()
    return None, None


def _inputs(case: Case, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    """a, b, w, v, start, stop. Large a and b cancel in a third of their places, where their sum decides."""
    n, q, k, d, width = case.small if device == "cpu" else case.real
    # Not contiguous, as slices of a larger tensor are.
    a, b, v = (torch.randn(n, t, e + 8, device=device)[..., 3 : 3 + e] for t, e in ((q, d), (k, d), (k, width)))
    w = torch.randn(2 * d, device=device)[::2] / math.sqrt(d / 16)
    if case.size > 1:
        sign = torch.randint(-1, 2, (d,), device=device)
        a, b = a + case.size * sign, b - case.size * sign.roll(1) * torch.randint(0, 2, (d,), device=device)
    a, b, w, v = (x.to(dtype) for x in (a, b, w, v))
    return a, b, w, v, *_interval(case.mask, n, q, k, device)


def formula(
    a: Tensor, b: Tensor, w: Tensor, v: Tensor, start: Tensor | None, stop: Tensor | None, scale: float,
    factors: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax_j(scale · w·tanh(a_i + b_j)) v_j and log Σ_j e^…, zeros and +∞ for a row that sees no key."""
    e = scale * (torch.tanh(a[:, :, None] + b[:, None]) @ w)
    hidden = torch.zeros_like(e, dtype=torch.bool)
    if start is not None and stop is not None:
        j = torch.arange(b.shape[1], device=a.device)
        hidden = ((j < start[..., None]) | (j >= stop[..., None])).expand_as(e)
    empty = hidden.all(-1)
    e = e.masked_fill(hidden & ~empty[..., None], -torch.inf)
    p = e.softmax(-1).masked_fill(empty[..., None], 0) * factors
    return p.to(v.dtype) @ v, e.logsumexp(-1).masked_fill(empty, torch.inf)


def ours(inputs: tuple[Any, ...], scale: float = 0.7, dropout: float = 0.0, seed: Tensor | None = None) -> Any:
    a, b, w, v, start, stop = inputs
    return additive_triton.forward(a, b, w, v, start, stop, seed, scale, dropout)


def our_gradients(inputs: tuple[Any, ...], grads: tuple[Tensor, Tensor], dropout: float = 0.0, seed: Any = None) -> Any:
    a, b, w, v, start, stop = inputs
    out, lse = ours(inputs, dropout=dropout, seed=seed)
    return additive_triton.backward(*grads, a, b, w, v, out, lse, start, stop, seed, 0.7, dropout)


def gradients(inputs: tuple[Any, ...], grads: tuple[Tensor, Tensor], dtype: torch.dtype, factors: Any = 1.0) -> Any:
    leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in inputs[:4]]
    outputs = formula(*leaves, *inputs[4:], 0.7, factors)
    return torch.autograd.grad(outputs, leaves, [g.to(o.dtype) for g, o in zip(grads, outputs, strict=True)])


def assert_within_budget(result: Tensor, eager: Tensor, truth: Tensor) -> None:
    """At most twice the error of the same formula in the same dtype, plus rounding."""
    unseen, eps = truth.isinf(), torch.finfo(result.dtype).eps
    assert torch.equal(result.isinf(), unseen)
    result, eager, truth = (x.double().masked_fill(unseen, 0) for x in (result, eager, truth))
    error, theirs, rounding = (result - truth).abs().max(), (eager - truth).abs().max(), 8 * eps * truth.abs().max()
    assert error <= 2 * theirs + rounding, f"{error:.3g}; the formula's {theirs:.3g}, rounding {rounding:.3g}"


LOW = ("ragged", "causal", "±30", "one query", "few queries, many keys")
EVERY = [(name, torch.float32) for name in CASES] + [(n, t) for n in LOW for t in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_output_and_log_sum_exp(name: str, dtype: torch.dtype, device: str) -> None:
    inputs = _inputs(CASES[name], dtype, device)
    out, lse = ours(inputs)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    truths = formula(*(x.double() for x in inputs[:4]), *inputs[4:], 0.7)
    for result, eager, truth in zip((out, lse), formula(*inputs, 0.7), truths, strict=True):
        assert_within_budget(result, eager, truth)


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_gradients(name: str, dtype: torch.dtype, device: str) -> None:
    inputs = _inputs(CASES[name], dtype, device)
    out, lse = ours(inputs)
    grads = torch.randn_like(out), torch.randn_like(lse)
    eager, truth = gradients(inputs, grads, dtype), gradients(inputs, grads, torch.float64)
    for x, result, low, high in zip(inputs, our_gradients(inputs, grads), eager, truth, strict=False):
        assert result.shape == x.shape
        assert result.dtype == dtype
        assert_within_budget(result, low, high)


@pytest.mark.parametrize("name", ["ragged", "few queries, many keys"])
def test_pieces_make_no_difference(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(CASES[name], torch.float32, device)
    whole = ours(inputs)
    grads = torch.randn_like(whole[0]), torch.randn_like(whole[1])
    slopes = our_gradients(inputs, grads)
    monkeypatch.setattr(additive_triton, "WORKSPACE", 1)  # one block of rows of one matrix at a time
    for result, truth in zip((*ours(inputs), *our_gradients(inputs, grads)), (*whole, *slopes), strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ragged", "one query", "few queries, many keys"])
def test_dropout(name: str, device: str) -> None:
    inputs = _inputs(CASES[name], torch.float32, device)
    a, b, w, _, start, stop = inputs
    seed, other = (torch.tensor(2**40 + s, device=device) for s in (1, 2))
    # Values that are the identity show the weights themselves.
    identity = torch.eye(b.shape[1], device=device).expand(b.shape[0], -1, -1)
    kept, full = (ours((a, b, w, identity, start, stop), dropout=p, seed=seed)[0] for p in (0.3, 0.0))
    factors = torch.where(kept > 0, 1 / 0.7, 0.0)
    torch.testing.assert_close(kept, factors * full)
    drawn = factors[full > 0]
    assert abs(drawn.mean() - 1) < 5 * math.sqrt(0.3 / 0.7 / drawn.numel())
    assert not torch.equal(kept, ours((a, b, w, identity, start, stop), dropout=0.3, seed=other)[0])

    out, lse = ours(inputs, dropout=0.3, seed=seed)
    double = [x.double() for x in inputs[:4]]
    assert_within_budget(out, formula(*inputs, 0.7, factors)[0], formula(*double, *inputs[4:], 0.7, factors)[0])
    grads = torch.randn_like(out), torch.randn_like(lse)
    eager, truth = (gradients(inputs, grads, t, factors) for t in (torch.float32, torch.float64))
    for result, low, high in zip(our_gradients(inputs, grads, 0.3, seed), eager, truth, strict=True):
        assert_within_budget(result, low, high)


@pytest.mark.parametrize("name", ["ragged", "few queries, many keys"])
def test_two_runs_give_the_same_bits(name: str, device: str) -> None:
    inputs, seed = _inputs(CASES[name], torch.float32, device), torch.tensor(3, device=device)
    out, lse = ours(inputs, dropout=0.1, seed=seed)
    grads = torch.randn_like(out), torch.randn_like(lse)
    first, second = ((*ours(inputs, dropout=0.1, seed=seed), *our_gradients(inputs, grads, 0.1, seed)) for _ in "12")
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["ragged", "few queries, many keys"])
def test_a_nan_stays_in_its_row(name: str, device: str) -> None:
    a, *rest = _inputs(CASES[name], torch.float32, device)
    clean, state = ours((a, *rest))
    a = a.clone()
    a[0, 1, 2] = torch.nan
    out, lse = ours((a, *rest))
    assert out[0, 1].isnan().all()
    assert lse[0, 1].isnan()
    others = torch.ones_like(lse, dtype=torch.bool)
    others[0, 1] = False
    assert torch.equal(out[others], clean[others])
    assert torch.equal(lse[others], state[others])


def test_large_on_both_sides_is_the_sum_that_counts(device: str) -> None:
    """a = 60 and b = −50 make tanh(10), a = ±∞ makes ±1: clamping each side by itself would not."""
    pairs = [(60.0, -50.0), (50.0, -50.0), (1e4, -1e4 + 0.5), (-43.0, 43.25), (torch.inf, 3.0), (-torch.inf, 1e4)]
    for x, y in pairs:
        for rows in (1, 65):
            a, b = torch.full((1, rows, 16), x, device=device), torch.full((1, 1, 16), y, device=device)
            w, v = torch.ones(16, device=device), torch.ones(1, 1, 16, device=device)
            _, lse = ours((a, b, w, v, None, None), scale=1.0)
            truth = 16 * torch.tanh(a[..., 0].double() + b[..., 0].double())
            torch.testing.assert_close(lse.double(), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("queries", [5, 70])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_opcheck_on_the_gpu(queries: int, dropout: float) -> None:
    inputs = _inputs(Case((), (2, queries, 67, 40, 24), "padding"), torch.float32, "cuda")
    a, b, w, v = (x.requires_grad_() for x in inputs[:4])
    seed = torch.tensor(5, device="cuda") if dropout else None
    rest = (*inputs[4:], seed, 1.0, dropout)
    torch.library.opcheck(additive, (a, b, w, v, *rest))
    a, b, w, v = (x.detach() for x in (a, b, w, v))
    out, lse = additive(a, b, w, v, *rest)
    grads = torch.randn_like(out), torch.randn_like(lse)
    torch.library.opcheck(additive_backward, (*grads, a, b, w, v, out, lse, *rest))


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [None, r.causal(), r.padding([40, 90])])
def test_attend_compiles_whole_and_keeps_the_op(mask: r.Mask | None) -> None:
    energy = r.Additive(32, 32, 64).cuda()
    q, k, v = (torch.randn(2, 90, 32, device="cuda", requires_grad=True) for _ in "qkv")
    compiled = torch.compile(lambda *x: r.attend(*x, energy=energy, mask=mask, backend="fused"), fullgraph=True)
    result, truth = compiled(q, k, v), r.attend(q, k, v, energy=energy, mask=mask, backend="reference")
    torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(truth)
    for x, y in zip(*(torch.autograd.grad(z, (q, k, v), grad) for z in (result, truth)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_memory_is_linear_in_length() -> None:
    """At T = 8192 the [T, T] energies of 4 matrices are 1 GiB and [T, T, D] is 256 GiB."""
    a, b, v = (torch.randn(4, 8192, 64, device="cuda") for _ in "abv")
    w = torch.randn(64, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out, lse = ours((a, b, w, v, None, None))
    our_gradients((a, b, w, v, None, None), (out, lse))
    assert torch.cuda.max_memory_allocated() - before < 0.3 * 2**30
