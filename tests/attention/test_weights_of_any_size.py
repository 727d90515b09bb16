"""Every answer of Weights beside the same question asked of its dense matrix in float64, for energies of any size.

    make sweep        the whole of it, with REGARD_EXAMPLES=5000

Energies, normalizers, masks, precisions, magnitudes from 1e-30 to 1e30 and backends are drawn at random. The bound is
what rounding allows, with ε of the precision that energies have (float32 at least):

- one number per row holds energies up to 256 and is rounded by 256 ε (`ONE_NUMBER`);
- two matrix products of other shapes may differ by d_ij = 2 D ε Σ_d |a_id b_jd|, and modifiers round again. Half of the
  examples have whole numbers times powers of two, whose products are exact at any size, and many of them equal; there
  d = 0, and nothing else excuses a difference.

A softmax's weights may then be off by e^{2d/T} − 1, those of a threshold by what its power makes of 2d.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard as r
from regard.attention.normalizers import ONE_NUMBER
from tests.support.attention_cases import city_block, masks, pooled_cells
from tests.support.random_examples import EXAMPLES
from tests.support.triton_interpreter import GPU, interpreted, skip_without_triton

settings.load_profile(EXAMPLES)
_ONE = 2 * torch.finfo(torch.float32).eps * ONE_NUMBER
WIDTH, HEADS = 4, 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LARGEST = {torch.float16: 1e3}
"""The largest magnitude of queries in each precision; 1e30 in the others."""


def _closed(e: Tensor, *_: Any) -> Tensor:
    """Every third key closed as additive masks do, and all keys of the second query."""
    e = e.clone()
    e[..., ::3] = e[..., 1:2, :] = torch.finfo(e.dtype).min
    return e


ENERGIES: dict[str, Any] = {
    "dot": lambda dtype, queries, keys: r.Dot(),
    "scaled": lambda dtype, queries, keys: r.ScaledDot(),
    "cosine": lambda dtype, queries, keys: r.Cosine(),
    "gaussian": lambda dtype, queries, keys: r.Gaussian(0.7),
    "general": lambda dtype, queries, keys: r.General(WIDTH, WIDTH).to(dtype),
    "additive": lambda dtype, queries, keys: r.Additive(WIDTH, WIDTH, 6).to(dtype),
    "steep additive": lambda dtype, queries, keys: _steep(r.Additive(WIDTH, WIDTH, 6)).to(dtype),
    "capped": lambda dtype, queries, keys: r.Modified(r.ScaledDot(), r.SoftCap(2.0)),
    "alibi": lambda dtype, queries, keys: r.Modified(r.ScaledDot(), r.Alibi(HEADS)),
    "biased": lambda dtype, queries, keys: r.Modified(r.Dot(), r.Bias(torch.randn(queries, keys, dtype=dtype))),
    "closed": lambda dtype, queries, keys: r.Modified(r.ScaledDot(), r.Bias(_closed(torch.zeros(queries, keys)))),
    "own function": lambda dtype, queries, keys: city_block,
}
POSITIVE: dict[str, Any] = {
    "exact": lambda dtype, queries, keys: r.Exact(),
    "inverse distance": lambda dtype, queries, keys: r.InverseDistance(),
    "positive dot": lambda dtype, queries, keys: lambda q, k: q.abs() @ k.abs().mT,
}
NORMALIZERS = [
    r.Softmax(),
    r.Softmax(0.1),
    r.Softmax(30.0),
    r.Softmax(0.5, sink=-2.0),
    r.Softmax(sink=1e5),
    r.Sparsemax(),
    r.Entmax(1.1),
    r.Entmax(1.5),
    r.Entmax(3.0),
    r.Hard(),
    r.Sigmoid(-2.0),
    r.Softpick(),
    r.StickBreaking(),
]


def _steep(energy: nn.Module) -> nn.Module:
    with torch.no_grad():
        energy.weight.mul_(1e4)  # type: ignore[union-attr, operator]
    return energy


@dataclass
class Example:
    """One draw, in a form that a failure prints."""

    seed: int
    energy: str
    normalize: r.Normalizer
    mask: str
    dtype: torch.dtype
    exponent: float
    whole: bool
    backend: str
    long: bool

    def ask(self) -> tuple[r.Weights, Tensor, Tensor]:
        """Weights, values and output; None where the backend refuses."""
        torch.manual_seed(self.seed)
        queries, keys = (17, 40) if self.long else (5, 7)
        size = min(10.0**self.exponent, LARGEST.get(self.dtype, 1e30))
        if self.energy in ("gaussian", "inverse distance"):
            size = min(size, 1e15)  # squares overflow beyond
        if self.whole:
            size = 2.0 ** round(math.log2(size))
            q, k = (torch.randint(-3, 4, (2, HEADS, n, WIDTH)).to(self.dtype) for n in (queries, keys))
        else:
            q, k = (torch.randn(2, HEADS, n, WIDTH).to(self.dtype) for n in (queries, keys))
            k[..., 3, :] = k[..., 1, :]  # a tie
        v = torch.randn(2, HEADS, keys, WIDTH).to(self.dtype)
        energy = {**ENERGIES, **POSITIVE}[self.energy](self.dtype, queries, keys)
        options = {"energy": energy, "normalize": self.normalize, "mask": masks(queries, keys)[self.mask]}
        with torch.no_grad():
            out, w = r.attend(size * q, k, v, weights=True, backend=self.backend, **options)  # type: ignore[call-overload]
        return w, v, out


@st.composite
def examples(draw, energies=tuple({**ENERGIES, **POSITIVE}), backends=("auto", "reference", "sdpa", "flex", "fused")):
    energy, backend = draw(st.sampled_from(energies)), draw(st.sampled_from(backends))
    normalizers = [r.Proportional()] if energy in POSITIVE else NORMALIZERS
    if backend in ("sdpa", "flex"):
        energy = draw(st.sampled_from(["dot", "scaled", "cosine", "general", "alibi", "biased", "closed"]))
        normalizers = NORMALIZERS[:3]
    return Example(
        seed=draw(st.integers(0, 2**31)),
        energy=energy,
        normalize=draw(st.sampled_from(normalizers)),
        mask=draw(st.sampled_from(list(masks()))),
        dtype=draw(st.sampled_from(DTYPES)),
        exponent=draw(st.floats(-30, 30)),
        whole=energy == "closed" or draw(st.booleans()),  # rounding decides rows of the least number else
        backend=backend,
        long=draw(st.booleans()),
    )


def _rounding(w: r.Weights, whole: bool) -> float:
    """By how much one weight may be off."""
    energies, normalize = w.energies, w.normalize
    if normalize.selects_key:
        return 0.0  # the key is part of the question
    eps = torch.finfo(energies.precision).eps
    a, b = (x.to(energies.precision).abs() for x in (energies.a, energies.b))
    e = energies.whole().detach()
    finite = e[e.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    if energies.form.kernel == "dot":
        apart = 0.0 if whole else 2 * WIDTH * eps * float((a.amax() * b.amax()) * energies.form.scale) * WIDTH
        apart += 0.0 if whole or not energies.modifiers else 2 * eps * size
    else:
        apart = 0.0 if energies.form.opaque or energies.form.kernel is None else 16 * eps * size
    one_number = 2 * eps * ONE_NUMBER
    if isinstance(normalize, r.Proportional):
        return one_number + 16 * eps * a.shape[-1]
    if isinstance(normalize, r.Sigmoid | r.Softpick | r.StickBreaking):  # the last multiplies shares of all keys
        return math.expm1(min(4 * apart * w.keys, 1.0)) + one_number
    if normalize.kernel == "softmax":
        return math.expm1(min(2 * apart / normalize.temperature, 1.0)) + one_number
    scale = getattr(normalize, "alpha", 2.0) - 1
    off = min(1.0, 2 * apart * scale + one_number)
    return max(off ** (1 / scale), off * max(1.0, 1 / scale))


def _compare(w: r.Weights, v: Tensor, out: Tensor, off: float) -> None:
    """All answers, each within what `off` in single weights makes of it."""
    dense = w.dense().double()
    *_, queries, keys = dense.shape
    close: dict[str, Any] = {"rtol": 1e-5, "atol": off}
    assert dense.isfinite().all()
    every = slice(None)
    torch.testing.assert_close(w.tile(every, every).double(), dense, **close)
    torch.testing.assert_close(
        w.tile(slice(1, 4), [keys - 1, 0, 2]).double(), dense[..., 1:4, [keys - 1, 0, 2]], **close
    )
    torch.testing.assert_close(w.tile(2, slice(2, 5)).double(), dense[..., 2:3, 2:5], **close)
    for pool in ("max", "mean"):
        for size in ((3, 2), (queries, keys)):
            torch.testing.assert_close(w.map(size, pool).double(), pooled_cells(dense, *size, pool), **close)  # type: ignore[arg-type]
    values, indices = w.top(3)
    torch.testing.assert_close(values.double(), dense.topk(3).values, **close)
    torch.testing.assert_close(dense.gather(-1, indices), values.double(), rtol=1e-5, atol=2 * off)
    torch.testing.assert_close(w.received().double(), dense.sum(-2), rtol=1e-5, atol=off * queries)
    torch.testing.assert_close(w.on([1, 4]).double(), dense[..., [1, 4]].sum(-1), rtol=1e-5, atol=2 * off)
    for n in (-2, 0, 3):
        i = torch.arange(queries)
        there = (i + n >= 0) & (i + n < keys)
        shifted = dense[..., i, (i + n).clamp(0, keys - 1)] * there
        torch.testing.assert_close(w.offset(n).double(), shifted, **close)
    # |d(w log w)| ≤ off (1 + |log off|) where w is small, and keys of them.
    entropy = -torch.xlogy(dense, dense).sum(-1)
    loose = keys * off * (1 + abs(math.log(off))) if off else 0.0
    torch.testing.assert_close(w.entropy().double(), entropy, rtol=1e-5, atol=loose + 1e-6 * keys)
    some = w[-1, 1:].rows([3, 0])
    torch.testing.assert_close(some.tile(every, every).double(), dense[-1, 1:][..., [3, 0], :], **close)
    torch.testing.assert_close(some.received().double(), dense[-1, 1:][..., [3, 0], :].sum(-2), rtol=1e-5, atol=2 * off)
    assert some.top(1).values.shape == (HEADS - 1, 2, 1)
    proof = (dense @ v.double() - out.double()).flatten(-2).norm(dim=-1)
    norm = out.double().flatten(-2).norm(dim=-1)
    error = torch.where(proof == 0, 0, proof / norm)
    allowed = keys * (off + 1e-6) * float(v.double().abs().max()) * math.sqrt(out[0, 0].numel()) / norm
    result = w.fidelity(v, out).double()
    assert ((result - error).abs() <= allowed).all() or not error.isfinite().all(), (result, error, allowed)


@settings(max_examples=2 * settings.get_profile(EXAMPLES).max_examples)
@given(examples())
def test_every_answer_is_that_of_the_dense_matrix(example: Example) -> None:
    note(repr(example))
    w, v, out = example.ask()
    off = _rounding(w, example.whole)
    if off < 0.5:
        _compare(w, v, out, off)
        return
    # Rounding decides these weights. They are still weights.
    for weights in (w.tile(slice(None), slice(None)), w.top(2).values, w.map((3, 3)), w.tile(0, [1])):
        assert weights.isfinite().all()
        assert ((weights >= 0) & (weights <= 1 + _ONE)).all()
    assert w.entropy().isfinite().all()


skip_without_triton()
with interpreted():
    pass


def _number(count: int) -> int:
    return max(count, settings.get_profile(EXAMPLES).max_examples // 10)


@pytest.mark.skipif(GPU, reason="interpreted only where there is no GPU")
@pytest.mark.parametrize("seed", range(_number(3)))
def test_the_triton_kernels_give_the_same(seed: int) -> None:
    draw = random.Random(seed)
    example = Example(
        seed=seed,
        energy=draw.choice(["dot", "scaled", "capped", "alibi"]),
        normalize=draw.choice(NORMALIZERS),
        mask=draw.choice(list(masks())),
        dtype=draw.choice([torch.float32, torch.float16]),  # the kernels have no float64, the interpreter no bfloat16
        exponent=draw.uniform(-30, 30),
        whole=True,
        backend="reference",
        long=False,
    )
    w, v, out = example.ask()
    with interpreted():
        _compare(w, v, out, _rounding(w, whole=True) + 1e-5)
