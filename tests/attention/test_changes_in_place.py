"""What a backward pass computes again from must be as it was: a tensor changed in place since raises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.backends import fused
from regard.attention.blocks import ChangedInPlaceError
from tests.support.attention_cases import inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGED = "changed in place|modified by an inplace operation"


def _seen() -> torch.Tensor:
    return torch.ones(5, 7, dtype=torch.bool).tril(2)


def _table_mask(seen: torch.Tensor) -> r.Mask:
    return r.mask_mod(lambda b, h, i, j: seen[i, j])


def _block_modifier(bias: torch.Tensor) -> r.Modified:
    return r.Modified(r.ScaledDot(), lambda e, batch, i, j: e + bias[i, j])


def _score_mod(bias: torch.Tensor) -> r.Modified:
    return r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + bias[i, j])


def _function_energy(weight: torch.Tensor):
    return lambda q, k: (q * weight[0, 0]) @ k.mT


def _function_normalizer(weight: torch.Tensor):
    return lambda e: torch.softmax(e * weight[0, 0], -1)


def _bias(bias: torch.Tensor) -> r.Modified:
    return r.Modified(r.ScaledDot(), r.Bias(bias))


CASES = {
    "mask": lambda x: {"mask": x > 0},
    "mask, sparsemax": lambda x: {"mask": x > 0, "normalize": r.Sparsemax()},
    "mask, additive": lambda x: {"mask": x > 0, "energy": r.Additive(4, 4, 3).double()},
    "mask of a function": lambda x: {"mask": _table_mask(x > 0)},
    "bias": lambda x: {"energy": _bias(x)},
    "function of blocks": lambda x: {"energy": _block_modifier(x)},
    "score_mod": lambda x: {"energy": _score_mod(x)},
    "function energy": lambda x: {"energy": _function_energy(x)},
    "function normalizer": lambda x: {"normalize": _function_normalizer(x)},
}


def _tensors_of(case: str) -> tuple[torch.Tensor, dict]:
    """The tensor that is changed, and the options of attend that use it."""
    numbers = torch.rand(5, 7, dtype=torch.float64) + 0.5
    if case.startswith("mask"):
        seen = _seen()
        options = {"mask": _table_mask(seen) if case == "mask of a function" else seen}
        return seen, {**CASES[case](numbers), **options}
    return numbers, CASES[case](numbers)


@pytest.mark.parametrize("several", [False, True], ids=["one block", "several blocks"])
@pytest.mark.parametrize("backend", ["auto", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_before_the_backward_raises_or_has_no_effect(
    case: str, backend: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "BLOCK", 16 if several else 1 << 18)
    q, k, v = inputs((2, 3), 5, 7, 4, 4, grad=True)
    changed, options = _tensors_of(case)

    def gradients(change: bool) -> list[torch.Tensor]:
        z = attend(q, k, v, backend=backend, **options)
        if change:
            with torch.no_grad():
                changed.logical_not_() if changed.dtype == torch.bool else changed.mul_(-3)
        return list(torch.autograd.grad(z.square().sum(), (q, k, v)))

    expected = gradients(change=False)
    with contextlib.suppress(ChangedInPlaceError), _pytorch_refuses():
        torch.testing.assert_close(gradients(change=True), expected)


@contextlib.contextmanager
def _pytorch_refuses() -> Iterator[None]:
    """PyTorch's own error for a saved tensor that was changed, as ours."""
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_queries_keys_and_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a function that closes over a parameter torch.utils.checkpoint computes the blocks; it checks nothing."""
    monkeypatch.setattr(fused, "BLOCK", 16)
    tensors = dict(zip("qkv", inputs((2, 3), grad=True), strict=True))
    scale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    z = attend(**tensors, energy=lambda q, k: (q * scale) @ k.mT, backend="fused")
    with torch.no_grad():
        tensors[name].mul_(2)
    with pytest.raises(RuntimeError, match=CHANGED):
        z.sum().backward()


def test_the_logsumexp_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(grad=True)
    seen = torch.ones(5, 7, dtype=torch.bool)
    for changed in (seen, q):
        _, w = attend(q, k, v, mask=seen, weights=True)
        total = w.logsumexp()
        with torch.no_grad():
            changed.logical_not_() if changed.dtype == torch.bool else changed.mul_(2)
        with pytest.raises(RuntimeError, match=CHANGED):
            total.sum().backward()
