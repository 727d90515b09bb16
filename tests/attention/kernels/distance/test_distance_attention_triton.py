"""The GPU's distance kernels against the formula in float64: on a GPU, and without one in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.kernels import KernelArguments
from tests.attention.kernels.additive.test_additive_triton import _interval as interval
from tests.attention.kernels.additive.test_additive_triton import assert_within_budget
from tests.support.triton_interpreter import interpreted, skip_without_triton

skip_without_triton()
with interpreted():
    from regard.attention.kernels import matrix_pieces_triton
    from regard.attention.kernels.distance import distance_attention_triton
    from regard.attention.kernels.distance.distance_op import distance, distance_backward

if TYPE_CHECKING:
    from torch import Tensor


pytestmark = pytest.mark.usefixtures("interpreted_kernels")


@dataclass(frozen=True)
class Case:
    """Sizes n, q, k, d, d_v in the interpreter and on a GPU; which keys are seen; where queries and keys lie."""

    small: tuple[int, int, int, int, int]
    real: tuple[int, int, int, int, int]
    mask: str | None = None
    where: str = "spread"


CASES = {
    "whole blocks": Case((1, 64, 128, 32, 16), (2, 512, 512, 64, 64)),
    "ragged": Case((2, 65, 21, 20, 24), (3, 333, 777, 40, 72)),
    "d 1024": Case((1, 9, 10, 1024, 16), (1, 200, 190, 1024, 1024)),
    "d 1": Case((1, 9, 70, 1, 16), (1, 200, 190, 1, 16)),
    "one key": Case((2, 9, 1, 16, 3), (2, 100, 1, 64, 3)),
    "one query": Case((3, 1, 70, 40, 24), (256, 1, 50, 512, 512), "padding"),
    "one of everything": Case((1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
    "causal": Case((1, 70, 70, 8, 16), (2, 700, 700, 64, 64), "causal"),
    "causal, first row sees nothing": Case((1, 70, 70, 8, 16), (2, 300, 300, 32, 64), "before"),
    "padding": Case((2, 20, 80, 8, 16), (3, 300, 400, 32, 64), "padding"),
    "window": Case((1, 130, 150, 8, 16), (2, 700, 750, 32, 64), "window"),
    "nothing is seen": Case((1, 20, 20, 8, 16), (1, 100, 100, 16, 16), "none"),
    "neighbours": Case((1, 70, 80, 24, 16), (2, 700, 750, 64, 64), None, "neighbours"),
    "neighbours far out": Case((1, 70, 80, 24, 16), (2, 700, 750, 64, 64), "causal", "far out"),
    "equal": Case((1, 70, 80, 24, 16), (2, 700, 750, 64, 64), None, "equal"),
    "±10,000": Case((1, 70, 80, 24, 16), (2, 700, 750, 64, 64), "causal", "large"),
    "off the origin": Case((1, 70, 80, 24, 16), (2, 700, 750, 64, 64), None, "off"),
}
EVERY = [
    (name, dtype, inverse)
    for name in CASES
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for inverse in (False, True)
    if dtype == torch.float32 or name in ("ragged", "causal", "one query")
]


def _inputs(case: Case, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    """a, b, v, start, stop. Neighbours of some keys are a hundredth of the spread away from them."""
    n, q, k, d, width = case.small if device == "cpu" else case.real
    # Not contiguous, as slices of a larger tensor are.
    a, b, v = (torch.randn(n, t, e + 8, device=device)[..., 3 : 3 + e] for t, e in ((q, d), (k, d), (k, width)))
    a, b = a / math.sqrt(d / 8), b / math.sqrt(d / 8)  # so that more than one key counts
    match case.where:
        case "neighbours":
            a = torch.cat([b[:, : q // 2] + a[:, : q // 2] / 100, a[:, q // 2 :]], 1)
        case "far out":
            b = b / 10 + 1000 * torch.randint(0, 2, (n, k, 1), device=device)
            a = b[:, :q].roll(1, 1) + a / 10
        case "equal":
            a = torch.cat([b[:, 3 : 3 + q // 2], a[:, q // 2 :]], 1)
            b = torch.cat([b[:, :-1], b[:, 5:6]], 1)  # twice the same key
        case "large":
            a, b = a * 1e4, b * 1e4
        case "off":
            a, b = a + 30, b + 30
    return *(x.to(dtype) for x in (a, b, v)), *interval(case.mask, n, q, k, device)


SCALE = 0.7


def formula(
    a: Tensor, b: Tensor, v: Tensor, start: Tensor | None, stop: Tensor | None, inverse: bool,
    factors: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax_j(−scale |a_i − b_j|²/2) v_j and log Σ_j e^…, or Σ_j 1/d v_j / Σ_j 1/d and the sum."""
    hidden = torch.zeros(a.shape[0], a.shape[1], b.shape[1], dtype=torch.bool, device=a.device)
    if start is not None and stop is not None:
        j = torch.arange(b.shape[1], device=a.device)
        hidden = ((j < start[..., None]) | (j >= stop[..., None])).expand_as(hidden)
    empty = hidden.all(-1)
    square = (a[:, :, None] - b[:, None]).square().sum(-1)
    if inverse:
        near = square < 2.0**-120
        e = torch.where(near, min(2.0**60, torch.finfo(a.dtype).max), square.masked_fill(near, 1).rsqrt()).masked_fill(
            hidden, 0
        )
        state = e.sum(-1)
        p = e / state.masked_fill(empty, 1)[..., None]
    else:
        e = (square * (-SCALE / 2)).masked_fill(hidden & ~empty[..., None], -torch.inf)
        state, p = e.logsumexp(-1).masked_fill(empty, torch.inf), e.softmax(-1).masked_fill(empty[..., None], 0)
    return (p * factors).to(v.dtype) @ v, state


def ours(inputs: tuple[Any, ...], inverse: bool, dropout: float = 0.0, seed: Tensor | None = None) -> Any:
    a, b, v, start, stop = inputs
    options = KernelArguments(start, stop, seed, SCALE if not inverse else 1.0, dropout)
    return distance_attention_triton.forward(a, b, v, options=options, inverse=inverse)


def our_gradients(inputs: tuple[Any, ...], grads: tuple[Tensor, Tensor], inverse: bool, *dropped: Any) -> Any:
    a, b, v, start, stop = inputs
    dropout, seed = dropped or (0.0, None)
    out, state = ours(inputs, inverse, dropout, seed)
    options = KernelArguments(start, stop, seed, SCALE if not inverse else 1.0, dropout)
    return distance_attention_triton.backward(*grads, a, b, v, out, state, options=options, inverse=inverse)


def gradients(inputs: tuple[Any, ...], grads: Any, inverse: bool, dtype: torch.dtype, factors: Any = 1.0) -> Any:
    leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in inputs[:3]]
    outputs = formula(*leaves, *inputs[3:], inverse, factors)
    return torch.autograd.grad(outputs, leaves, [g.to(o.dtype) for g, o in zip(grads, outputs, strict=True)])


def _gradients_of(out: Tensor, state: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    # The sum of inverse distances is 2⁶⁰ next to an equal key, and its slope past float32: nobody differentiates it.
    # As a layer's after it may be: not contiguous.
    grad = torch.randn_like(out.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    return grad, torch.zeros_like(state) if inverse else torch.randn_like(state)


@pytest.mark.parametrize(("name", "dtype", "inverse"), EVERY)
def test_output_and_gradients(name: str, dtype: torch.dtype, inverse: bool, device: str) -> None:
    inputs = _inputs(CASES[name], dtype, device)
    out, state = ours(inputs, inverse)
    assert out.dtype == dtype
    assert state.dtype == torch.float32
    truths = formula(*(x.double() for x in inputs[:3]), *inputs[3:], inverse)
    for result, eager, truth in zip((out, state), formula(*inputs, inverse), truths, strict=True):
        assert_within_budget(result, eager, truth)
    grads = _gradients_of(out, state, inverse)
    eager, truth = gradients(inputs, grads, inverse, dtype), gradients(inputs, grads, inverse, torch.float64)
    for x, result, low, high in zip(inputs, our_gradients(inputs, grads, inverse), eager, truth, strict=False):
        assert result.shape == x.shape
        assert result.dtype == dtype
        assert_within_budget(result, low, high)


@pytest.mark.parametrize("inverse", [False, True])
def test_products_alone_would_not_do(inverse: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why near tiles are computed as they are defined: without that the budget is broken."""
    inputs = _inputs(CASES["neighbours far out"], torch.float32, device)
    truth = formula(*(x.double() for x in inputs[:3]), *inputs[3:], inverse)[0]
    exact = (ours(inputs, inverse)[0] - truth).abs().max()
    monkeypatch.setattr(distance_attention_triton, "FAR", -torch.inf)
    products = (ours(inputs, inverse)[0] - truth).abs().max()
    assert not products <= 100 * exact


@pytest.mark.parametrize("inverse", [False, True])
def test_both_forms_agree_where_nothing_is_near(inverse: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(CASES["whole blocks"], torch.float32, device)
    whole = ours(inputs, inverse)
    grads = _gradients_of(*whole, inverse)
    slopes = our_gradients(inputs, grads, inverse)
    monkeypatch.setattr(distance_attention_triton, "FAR", torch.inf)
    direct = (*ours(inputs, inverse), *our_gradients(inputs, grads, inverse))
    for result, truth in zip((*whole, *slopes), direct, strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-5, atol=1e-5)
    assert not torch.equal(whole[0], direct[0]), "no tile was computed by products"


@pytest.mark.parametrize("inverse", [False, True])
def test_pieces_make_no_difference(inverse: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(CASES["causal"], torch.float32, device)
    whole = ours(inputs, inverse)
    grads = _gradients_of(*whole, inverse)
    slopes = our_gradients(inputs, grads, inverse)
    monkeypatch.setattr(matrix_pieces_triton, "WORKSPACE", 1)  # one block of rows of one matrix at a time
    again = (*ours(inputs, inverse), *our_gradients(inputs, grads, inverse))
    for result, truth in zip(again, (*whole, *slopes), strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inverse", [False, True])
def test_dropout(inverse: bool, device: str) -> None:
    inputs = _inputs(CASES["ragged"], torch.float32, device)
    a, b, _, start, stop = inputs
    seed, other = (torch.tensor(2**40 + s, device=device) for s in (1, 2))
    # Values that are the identity show the weights themselves.
    identity = torch.eye(b.shape[1], device=device).expand(b.shape[0], -1, -1)
    kept, full = (ours((a, b, identity, start, stop), inverse, p, seed)[0] for p in (0.3, 0.0))
    factors = torch.where(kept > 0, 1 / 0.7, 0.0)
    torch.testing.assert_close(kept, factors * full)
    drawn = factors[full > 0]
    assert abs(drawn.mean() - 1) < 5 * math.sqrt(0.3 / 0.7 / drawn.numel())
    assert not torch.equal(kept, ours((a, b, identity, start, stop), inverse, 0.3, other)[0])

    out, state = ours(inputs, inverse, 0.3, seed)
    grads = _gradients_of(out, state, inverse)
    eager, truth = (gradients(inputs, grads, inverse, t, factors) for t in (torch.float32, torch.float64))
    for result, low, high in zip(our_gradients(inputs, grads, inverse, 0.3, seed), eager, truth, strict=True):
        assert_within_budget(result, low, high)


@pytest.mark.parametrize("inverse", [False, True])
def test_the_state_is_differentiated_too(inverse: bool, device: str) -> None:
    inputs = _inputs(CASES["padding"], torch.float32, device)
    out, state = ours(inputs, inverse)
    grads = torch.zeros_like(out), torch.randn_like(state)
    eager, truth = (gradients(inputs, grads, inverse, t) for t in (torch.float32, torch.float64))
    for result, low, high in zip(our_gradients(inputs, grads, inverse), eager, truth, strict=True):
        assert_within_budget(result, low, high)


@pytest.mark.parametrize("inverse", [False, True])
def test_two_runs_give_the_same_bits(inverse: bool, device: str) -> None:
    inputs, seed = _inputs(CASES["neighbours"], torch.float32, device), torch.tensor(3, device=device)
    grads = _gradients_of(*ours(inputs, inverse), inverse)
    first, second = (
        (*ours(inputs, inverse, 0.1, seed), *our_gradients(inputs, grads, inverse, 0.1, seed)) for _ in "12"
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("size", [torch.nan, torch.inf, 1e25])
def test_what_is_no_number_stays_in_its_row(size: float, inverse: bool, device: str) -> None:
    """NaN gives NaN; from infinitely far away there is nothing to see; nobody else notices."""
    a, *rest = _inputs(CASES["ragged"], torch.float32, device)
    clean, state = ours((a, *rest), inverse)
    a = a.clone()
    a[0, 1, 2] = size
    out, result = ours((a, *rest), inverse)
    if math.isnan(size):
        assert out[0, 1].isnan().all()
        assert result[0, 1].isnan()
    else:
        assert (out[0, 1] == 0).all()
        assert result[0, 1] == (0 if inverse else torch.inf)
    others = torch.ones_like(result, dtype=torch.bool)
    others[0, 1] = False
    torch.testing.assert_close(out[others], clean[others], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result[others], state[others], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inverse", [False, True])
def test_energies_of_a_block(inverse: bool, device: str) -> None:
    a, b, *_ = _inputs(CASES["neighbours far out"], torch.float32, device)
    energy = r.InverseDistance() if inverse else r.Gaussian()
    assert_within_budget(
        distance_attention_triton.pairwise(a, b, inverse),
        energy(a.cpu(), b.cpu()).to(device),
        energy(a.double(), b.double()),
    )


WAYS = {"gaussian": (r.Gaussian(2.0), r.Softmax(0.5)), "inverse": (r.InverseDistance(), r.Proportional())}


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_opcheck_on_the_gpu(way: str, dropout: float) -> None:
    a, b, v, *bounds = _inputs(Case((), (2, 70, 67, 40, 24), "padding"), torch.float32, "cuda")
    seed = torch.tensor(5, device="cuda") if dropout else None
    rest = (*bounds, seed, 1.0, dropout, way == "inverse")
    torch.library.opcheck(distance, (*(x.detach().requires_grad_() for x in (a, b, v)), *rest))
    out, state = distance(a, b, v, *rest)
    torch.library.opcheck(
        distance_backward, (torch.randn_like(out), torch.randn_like(state), a, b, v, out, state, *rest)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mask", [None, r.causal(), r.padding([40, 90])], ids=repr)
def test_attend_takes_the_kernel_and_compiles_whole(way: str, mask: r.Mask | None) -> None:
    energy, normalize = WAYS[way]
    q, k, v = (torch.randn(2, 90, 32, device="cuda", requires_grad=True) for _ in "qkv")
    how = {"energy": energy, "normalize": normalize, "mask": mask}
    assert "the distance kernel" in str(r.explain(q, k, v, **how))
    truth, grad = attend(q, k, v, **how, backend="reference"), torch.randn_like(q)
    expected = torch.autograd.grad(truth, (q, k, v), grad)
    for function in (attend, torch.compile(attend, fullgraph=True)):
        result = function(q, k, v, **how)
        torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-5)
        for x, y in zip(torch.autograd.grad(result, (q, k, v), grad), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_what_the_kernel_leaves_to_blocks() -> None:
    x = torch.randn(2, 30, 16, device="cuda")
    for how in (
        {"energy": r.Gaussian(), "normalize": r.Sparsemax()},
        {"energy": r.InverseDistance()},
        {"energy": r.Modified(r.Gaussian(), r.SoftCap(3.0))},
        {"energy": r.Gaussian(), "mask": ~r.window(3)},
    ):
        assert "in blocks of rows" in str(r.explain(x, x, x, **how))
        assert "the distance kernel" in str(r.explain(x, x, x, **how))  # and why not
        torch.testing.assert_close(
            attend(x, x, x, **how), attend(x, x, x, **how, backend="reference"), rtol=1e-4, atol=1e-5
        )


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_memory_is_linear_in_length(way: str) -> None:
    """At T = 8192 the [T, T] energies of 4 matrices are 1 GiB."""
    energy, normalize = WAYS[way]
    q, k, v = (torch.randn(4, 8192, 64, device="cuda", requires_grad=True) for _ in "qkv")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    z = attend(q, k, v, energy=energy, normalize=normalize)
    torch.autograd.grad(z.sum(), (q, k, v))
    assert torch.cuda.max_memory_allocated() - before < 0.35 * 2**30


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("inverse", [False, True])
def test_what_padding_hides_does_not_leak(inverse: bool, bad: float, device: str) -> None:
    a, b = torch.randn(2, 20, 8, device=device), torch.randn(2, 80, 8, device=device)
    v, stop = torch.randn(2, 80, 16, device=device), torch.tensor([[80], [37]], device=device)
    options = KernelArguments(torch.zeros_like(stop), stop, None, 1.0, 0.0)

    def results() -> list[Tensor]:
        out, state = distance_attention_triton.forward(a, b, v, options=options, inverse=inverse)
        grad = torch.ones_like(out)
        gradients = distance_attention_triton.backward(
            grad, None, a, b, v, out, state, options=options, inverse=inverse
        )
        return [out, state, *gradients]

    expected = results()
    b[1, 37:], v[1, 37:] = bad, bad
    torch.testing.assert_close(results(), expected)
