"""The Triton statistics kernels: every answer equals the same question asked of the dense matrix in float64.

One set of cases, run twice: small under Triton's interpreter on a CPU, and at real sizes on a GPU (`make test-gpu`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import torch

import regard as r
from regard.attention.kernels.statistics_launch import kernel_arguments, refusal
from regard.attention.statistics import MOST
from regard.attention.weights import Weights
from tests.support.triton_interpreter import GPU, interpreted, skip_without_triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

skip_without_triton()
with interpreted():
    from regard.attention.kernels import statistics_triton
    from regard.attention.kernels.statistics_triton import ADDRESSES, LENGTHS
HALF = (torch.bfloat16, torch.float16)


pytestmark = pytest.mark.usefixtures("interpreted_kernels")


@dataclass(frozen=True)
class Case:
    """A request; lengths are those under the interpreter, and `real` those on a GPU."""

    queries: int = 40
    keys: int = 70
    width: int = 16
    heads: int = 2
    shared: int = 2
    real: tuple[int, int] = (700, 1100)
    mask: Callable[[int, int], r.Mask] | None = None
    energy: Callable[[], object] = r.ScaledDot
    normalize: Callable[[], r.Normalizer] = r.Softmax
    dtype: torch.dtype = torch.float32
    size: float = 1.0
    """How large queries are; energies grow alike."""
    transposed: bool = False
    batch: bool = False
    """Whether the mask needs a batch of two."""


CASES = {
    "plain": Case(),
    "one": Case(1, 1, real=(1, 1)),
    "one query": Case(1, 37, real=(1, 5000)),
    "one key": Case(37, 1, real=(5000, 1)),
    "aligned": Case(32, 64, real=(1024, 2048)),
    "width 40": Case(width=40),
    "width 128": Case(40, 50, width=128),
    "width 256": Case(40, 50, width=256),
    "shared heads": Case(heads=4, shared=2),
    "transposed": Case(heads=4, transposed=True),
    "causal": Case(mask=lambda q, k: r.causal(k - q)),
    "late causal": Case(mask=lambda q, k: r.causal(-q // 3)),
    "padding": Case(mask=lambda q, k: r.padding([k // 3, 0]), batch=True),
    "window": Case(mask=lambda q, k: r.causal() & r.window(q // 5)),
    "documents": Case(50, 50, real=(1100, 1100), mask=lambda q, k: r.documents([i * 3 // q for i in range(q)])),
    "large energies": Case(energy=r.Dot, size=2500.0),
    "soft cap": Case(energy=lambda: r.Modified(r.ScaledDot(), r.SoftCap(2.0)), mask=lambda q, k: r.causal()),
    "alibi": Case(heads=4, shared=4, energy=lambda: r.Modified(r.ScaledDot(), r.SoftCap(3.0), r.Alibi(4, offset=2))),
    "temperature": Case(normalize=lambda: r.Softmax(0.3)),
    "bfloat16": Case(dtype=torch.bfloat16, width=64, heads=4, shared=2),
    "float16 causal": Case(dtype=torch.float16, width=40, mask=lambda q, k: r.causal()),
    "bfloat16 large": Case(
        dtype=torch.bfloat16, width=128, size=30.0, mask=lambda q, k: r.padding([k - 5, k]), batch=True
    ),
}


def _inputs(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = case.real if device == "cuda" else (case.queries, case.keys)
    batch = 2 if device == "cuda" or case.batch else 1
    shapes = [(batch, case.heads, queries), (batch, case.shared, keys), (batch, case.shared, keys)]
    if case.transposed:
        shapes = [(b, t, h) for b, h, t in shapes]
    q, k, v = (torch.randn(*shape, case.width, device=device, dtype=case.dtype) for shape in shapes)
    if case.transposed:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return q * case.size, k, v


def _attend(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Weights]:
    mask = None if case.mask is None else _moved(case.mask(q.shape[-2], k.shape[-2]), q.device)
    return r.attend(
        q, k, v, energy=case.energy(), normalize=case.normalize(), mask=mask, backend="reference", weights=True
    )


def _moved(mask: r.Mask, device: torch.device) -> r.Mask:
    for name, x in vars(mask).items():
        if isinstance(x, torch.Tensor):
            setattr(mask, name, x.to(device))
    return mask


def _ask(w: Weights, v: Tensor, out: Tensor) -> dict[str, dict[str, object]]:
    keys = w.shape[-1]
    return {
        "all": {"entropy": True, "top": 1, "received": True, "on": [0, keys // 2], "map": (6, 5)},
        "fine map": {"map": (w.shape[-2] // 2 + 1, max(1, keys // 8)), "offsets": [-3, 0, 5]},
        "mean": {"top": min(8, keys), "map": (5, 7), "pool": "mean", "fidelity": (v, out)},
    }


def _of_dense(dense: Tensor, asked: dict[str, object], v: Tensor, out: Tensor) -> dict[str, Tensor]:
    """The same questions, asked of the matrix itself."""
    queries, keys = dense.shape[-2:]
    result: dict[str, Tensor] = {}
    if "entropy" in asked:
        result["entropy"] = -torch.xlogy(dense, dense).sum(-1)
    if "top" in asked:
        result["top"] = dense.topk(asked["top"], dim=-1).values
    if "received" in asked:
        result["received"] = dense.sum(-2)
    if "on" in asked:
        result["on"] = dense[..., sorted(set(asked["on"]))].sum(-1)
    if "offsets" in asked:
        j = torch.arange(queries, device=dense.device)[:, None] + torch.tensor(asked["offsets"], device=dense.device)
        there = (j >= 0) & (j < keys)
        result["offsets"] = dense.gather(-1, j.clamp(0, keys - 1).expand(*dense.shape[:-2], -1, -1)) * there
    if "map" in asked:
        rows, cols = min(asked["map"][0], queries), min(asked["map"][1], keys)
        result["map"] = _pooled(_pooled(dense, cols, asked.get("pool")).mT, rows, asked.get("pool")).mT
    if "fidelity" in asked:
        v = v.repeat_interleave(dense.shape[-3] // v.shape[-3], dim=-3)
        off = dense @ v.to(dense.dtype) - out.to(dense.dtype)
        result["fidelity"] = off.flatten(-2).norm(dim=-1) / out.to(dense.dtype).flatten(-2).norm(dim=-1)
        result["fidelity"] = result["fidelity"].nan_to_num(0.0)
    return result


def _pooled(x: Tensor, cells: int, pool: object) -> Tensor:
    """The last dimension in cells, c of C from ⌊cT/C⌋ up to ⌊(c+1)T/C⌋."""
    length = x.shape[-1]
    edges = [c * length // cells for c in range(cells + 1)]
    cell = torch.repeat_interleave(torch.arange(cells), torch.tensor(edges).diff()).to(x.device)
    out = torch.zeros(*x.shape[:-1], cells, dtype=x.dtype, device=x.device)
    reduce = "mean" if pool == "mean" else "amax"
    return out.scatter_reduce_(-1, cell.expand(x.shape), x, reduce, include_self=pool != "mean")


def _eager(case: Case, q: Tensor, k: Tensor, w: Weights) -> Tensor:
    """The dense matrix by plain PyTorch in float32, in which half-precision inputs and their products are exact."""
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    e = case.energy()(q.float(), k.float())
    mask = w.energies.mask
    if mask is not None:
        seen = mask.dense(w.energies.batch, q.shape[-2], k.shape[-2], q.device)
        e = e.masked_fill(~seen, w.normalize.absent)
    return w.normalize(e)


def _close(name: str, ours: Tensor, theirs: Tensor, truth: Tensor, energy: float, rounding: float = 0.0) -> None:
    """Within twice PyTorch's own error in float32, and rounding: of the answer, and of energies of size `energy`.

    The row state and a weight come from energies summed in different order, and a weight moves, relatively, by as much
    as its energy does. Tensor cores add in float32 too, but round towards zero, which costs a few bits.
    """
    assert torch.isfinite(ours).all(), name
    size = max(1.0, float(truth.abs().max()))
    rounding = max(rounding, 8 * torch.finfo(torch.float32).eps * (1 + energy)) * size
    allowed = 2 * float((theirs.double() - truth).abs().max()) + rounding
    error = float((ours.double() - truth).abs().max())
    assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


def _check(case: Case, device: str) -> None:
    if device == "cpu" and case.dtype == torch.bfloat16:
        case = replace(case, dtype=torch.float16)  # the interpreter multiplies bfloat16 as if it were whole numbers
    q, k, v = _inputs(case, device)
    out, w = _attend(case, q, k, v)
    assert refusal(w.energies, w.normalize) is None
    truth = _attend(case, q.double(), k.double(), v.double())[1].dense()
    theirs = _eager(case, q, k, w)
    energy = float(w.energies.whole().abs().max()) / getattr(w.normalize, "temperature", 1.0)
    for name, asked in _ask(w, v, out).items():
        assert kernel_arguments(w) is not None, "the kernels refused"
        assert int(asked.get("top", 1)) <= MOST, "the kernels refused"
        ours = w.stats(**asked)
        plain, exact = _of_dense(theirs, asked, v, out), _of_dense(truth, asked, v, out)
        for key, value in exact.items():
            answer = getattr(ours, key)
            # W v is computed from weights in two half-precision terms, which carry 16 bits.
            rounding = 2**-15 if key == "fidelity" and case.dtype in HALF else 0.0
            _close(f"{name}: {key}", answer.values if key == "top" else answer, plain[key], value, energy, rounding)
        if "top" in asked:
            indices = ours.top.indices
            assert (indices.sort(-1).values.diff(dim=-1) != 0).all(), "a key twice"
            _close("index", truth.gather(-1, indices), plain["top"], exact["top"], energy)
    rows, cols = slice(q.shape[-2] // 3, None), slice(k.shape[-2] // 4, k.shape[-2] // 4 * 3 + 1)
    _close("tile", w.tile(rows, cols), theirs[..., rows, cols], truth[..., rows, cols], energy)
    part = w[-1, 1:].rows(slice(0, None, 2))
    _close("part", part.entropy(), *(-torch.xlogy(x, x).sum(-1)[-1, 1:, ::2] for x in (theirs, truth)), energy)
    state, expected = Weights(w.energies, w.normalize).row_state(), w.row_state()
    assert (state.anchor is None) == (expected.anchor is None)
    assert state.anchor is None or energy >= 256
    for ours, theirs in zip(state, expected, strict=True):
        if ours is not None:
            seen = theirs.isfinite()
            assert torch.equal(ours.isfinite(), seen)
            torch.testing.assert_close(ours[seen], theirs[seen], rtol=2e-6, atol=2e-6)


@pytest.mark.skipif(GPU, reason="interpreted only where there is no GPU")
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    _check(CASES[name], "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs CUDA")
@pytest.mark.parametrize("dtype", ["own", *HALF], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_on_gpu(name: str, dtype: torch.dtype | str) -> None:
    case = CASES[name]
    if dtype != "own":
        if case.dtype != torch.float32 or case.size > 1000:
            pytest.skip("a case of its own precision")
        case = replace(case, dtype=dtype)
    _check(case, "cuda")


def _check_top(w: Weights, truth: Tensor, count: int) -> None:
    """Values within rounding, keys that have them, no key twice."""
    values, indices = w.top(count)
    expected = truth.topk(count, dim=-1).values
    assert (indices.sort(-1).values.diff(dim=-1) != 0).all(), "a key twice"
    torch.testing.assert_close(values.double(), expected, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(truth.gather(-1, indices), expected, rtol=2e-5, atol=1e-6)


def test_rows_of_equal_energies_and_of_nan_keep_to_themselves(device: str) -> None:
    q, k = torch.randn(1, 40, 16, device=device), torch.randn(1, 90, 16, device=device)
    q[0, 3:9] = 0
    _, clean = r.attend(q, k, k, weights=True, backend="reference")
    _check_top(clean, clean.dense().double(), 8)
    assert clean.top(8).indices[0, 3].tolist() == list(range(8))
    q[0, 20] = torch.nan
    _, w = r.attend(q, k, k, weights=True, backend="reference")
    values, indices = w.top(8)
    assert values[0, 20].isnan().all()
    assert ((indices >= 0) & (indices < 90)).all()
    row = torch.arange(40, device=device)
    assert torch.equal(w.entropy().isnan(), row[None] == 20)
    assert torch.equal(w.tile(slice(18, 23), slice(0, 9)).isnan().any(-1), row[None, 18:23] == 20)
    assert torch.equal(values[0, row != 20], clean.top(8).values[0, row != 20])
    assert torch.equal(indices[0, row != 20], clean.top(8).indices[0, row != 20])


@pytest.mark.parametrize("normalize", [r.Softmax(), r.Softmax(0.3), r.Sparsemax()], ids=repr)
def test_rows_of_large_energies(normalize: r.Normalizer, device: str) -> None:
    """Whole numbers times a power of two: every energy is exact, and many are equal, whoever computes them."""
    q, k = (torch.randint(-3, 4, (1, 2, t, 16), device=device).float() for t in (35, 70))
    size = 2.0**100
    out, w = r.attend(size * q, k, k, normalize=normalize, mask=r.causal(20), weights=True, backend="reference")
    assert w.row_state().anchor is not None
    dense = w.dense()
    for asked in _ask(w, k, out).values():
        ours = w.stats(**asked)
        for key, value in _of_dense(dense, asked, k, out).items():
            answer = getattr(ours, key)
            torch.testing.assert_close(answer.values if key == "top" else answer, value, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(w.tile(slice(5, 33), slice(10, 60)), dense[..., 5:33, 10:60], rtol=1e-5, atol=2e-6)


def test_two_runs_are_bit_identical(device: str) -> None:
    dtype, queries, heads = (torch.bfloat16, 4000, 8) if device == "cuda" else (torch.float32, 80, 2)
    q, k, v = (torch.randn(1, heads, queries, 64, device=device, dtype=dtype) for _ in range(3))
    _, w = r.attend(q, k, v, mask=r.causal(), weights=True)
    first, again = (w.stats(entropy=True, top=3, received=True, on=[0], map=(8, 8)) for _ in range(2))
    for name in ("entropy", "received", "on", "map"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert torch.equal(first.top.values, again.top.values)
    assert torch.equal(first.top.indices, again.top.indices)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs CUDA")
def test_a_hundred_thousand_tokens() -> None:
    tokens = 131072
    q, k, v = (torch.randn(1, 2, tokens, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    _, w = r.attend(q, k, v, mask=r.causal(), weights=True)
    result = w.stats(entropy=True, top=1, received=True, map=(512, 512))
    assert abs(float(result.received.double().sum()) - 2 * tokens) < 1e-3 * tokens
    for i in (0, 77, 70001, tokens - 1):
        e = (q[0, :, i, None].double() * k[0, :, : i + 1].double()).sum(-1) / 8
        p = e.softmax(-1)
        torch.testing.assert_close(result.entropy[0, :, i].double(), -torch.xlogy(p, p).sum(-1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(result.top.values[0, :, i, 0].double(), p.amax(-1), rtol=1e-4, atol=0)
        assert torch.equal(result.top.indices[0, :, i, 0], p.argmax(-1))
    assert float(result.map[0, 0, 3, 200]) == 0
    tile = w.tile(slice(tokens - 512, None), slice(100, 612))
    assert tile.shape == (1, 2, 512, 512)


def test_what_the_kernels_leave_to_others() -> None:
    q, k = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    device = "cuda" if GPU else "cpu"
    q, k = q.to(device), k.to(device)

    def why(**given: object) -> str | None:
        x, y = (t.double() if given.pop("double", False) else t for t in (q, k))
        _, w = r.attend(x, y, y, weights=True, backend="reference", **given)  # type: ignore[call-overload]
        return refusal(w.energies, w.normalize)

    assert why() is None
    assert "dot product" in why(energy=r.Gaussian())
    assert "Bias" in why(energy=r.Modified(r.Dot(), r.Bias(torch.zeros(5, 7, device=device))))
    assert "positive" in why(energy=r.ScaledDot(-1.0))
    assert "Sparsemax" in why(normalize=r.Sparsemax())
    dense = r.dense(torch.rand(5, 7, device=device) > 0.3)
    _, w = r.attend(q, k, k, mask=dense, weights=True, backend="reference")
    assert kernel_arguments(w) is None
    torch.testing.assert_close(w.entropy(), -torch.xlogy(w.dense(), w.dense()).sum(-1))


@pytest.mark.skipif(GPU, reason="a GPU uses Triton")
def test_without_a_gpu_triton_is_not_touched() -> None:
    code = """
import sys, torch, regard
q = torch.randn(2, 5, 8)
_, w = regard.attend(q, q, q, weights=True)
w.stats(entropy=True, top=2, received=True)
w.tile(slice(0, 2), slice(0, 3))
assert not [x for x in sys.modules if x.startswith("regard") and x.endswith("_triton")]
"""
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_no_kernel_is_compiled_for_a_length() -> None:
    """Triton compiles anew for 1 and for multiples of 16, unless told not to. Strides and scales are a model's own."""
    settled = {"q_row", "k_row", "v_row", "g_row", "z_row", "scale", "c", "cap"}
    kernels = [
        *(statistics_triton.row_state, statistics_triton.single_weights),
        *(statistics_triton.fidelity, statistics_triton.top),
        statistics_triton.walk,
    ]
    pointers = {"q", "k", "v", "g", "z", *ADDRESSES}
    for one in kernels:
        numbers = {name for name in one.arg_names if name.islower()} - pointers - settled
        assert numbers <= set(LENGTHS), f"{one.__name__}: {sorted(numbers - set(LENGTHS))}"
