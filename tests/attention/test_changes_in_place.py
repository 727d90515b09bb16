"""What a backward pass computes again from must be as it was: a tensor changed in place since raises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.backends import fused
from regard.attention.parts import ChangedInPlaceError
from tests.support.attention_cases import inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGED = "changed in place|modified by an inplace operation"


OF_A_MASK = {
    "mask": lambda seen: {"mask": seen},
    "mask, sparsemax": lambda seen: {"mask": seen, "normalize": r.Sparsemax()},
    "mask, additive": lambda seen: {"mask": seen, "energy": r.Additive(4, 4, 3).double()},
    "mask of a function": lambda seen: {"mask": lambda b, h, i, j: seen[i, j]},
}
OF_NUMBERS = {
    "bias": lambda x: {"energy": r.Modified(r.ScaledDot(), r.Bias(x))},
    "function of blocks": lambda x: {"energy": r.Modified(r.ScaledDot(), lambda e, batch, i, j: e + x[i, j])},
    "score_mod": lambda x: {"energy": r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + x[i, j])},
    "function energy": lambda x: {"energy": lambda q, k: (q * x[0, 0]) @ k.mT},
    "function normalizer": lambda x: {"normalize": lambda e: torch.softmax(e * x[0, 0], -1)},
}


@pytest.mark.parametrize("several", [False, True], ids=["one block", "several blocks"])
@pytest.mark.parametrize("backend", ["auto", "fused"])
@pytest.mark.parametrize("case", [*OF_A_MASK, *OF_NUMBERS])
def test_a_change_before_the_backward_raises_or_has_no_effect(
    case: str, backend: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "BLOCK", 16 if several else 1 << 18)
    q, k, v = inputs((2, 3), 5, 7, 4, 4, grad=True)
    seen, numbers = torch.ones(5, 7, dtype=torch.bool).tril(2), torch.rand(5, 7, dtype=torch.float64) + 0.5
    changed = seen if case in OF_A_MASK else numbers
    options = (OF_A_MASK | OF_NUMBERS)[case](changed)

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
