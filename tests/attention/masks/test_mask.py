"""Dense masks of composed rules: their memory, and what masks print."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as r
from regard.attention.masks import mask as module


class Allocations(TorchDispatchMode):
    """The bytes of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


COMPOSED = [
    r.causal() & r.window(64),
    ~(r.causal() | r.window(5, offset=3)),
    r.causal() & r.documents(torch.arange(2500) // 100),
    r.causal() & r.padding([2500, 7]),
]


@pytest.mark.parametrize("mask", COMPOSED, ids=repr)
def test_no_temporary_is_larger_than_the_dense_mask(mask: r.Mask) -> None:
    """Differences of all pairs of positions took eight bytes per entry, several at a time."""
    with Allocations() as allocations:
        seen = mask.dense((2,), 2500, 2500, torch.device("cpu"))
    assert allocations.largest == math.prod(seen.shape)


@pytest.mark.parametrize(
    "mask", [*COMPOSED, r.padding([2500, 7]), r.window(3, center=torch.rand(2, 2500) * 2500)], ids=repr
)
def test_blocks_of_rows_make_the_whole(mask: r.Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2,), 2500, 2500, torch.device("cpu")
    blocks = mask.dense(*shape)
    monkeypatch.setattr(module, "BLOCK", 1 << 40)
    assert torch.equal(blocks, mask.dense(*shape))


def test_reprs_name_the_offset() -> None:
    assert repr(r.window(3, offset=2)) == "window(3, offset=2)"
    assert repr(r.window(3)) == "window(3)"


def test_errors_say_which_dimensions_belong_together() -> None:
    q = torch.randn(2, 3, 5, 4)
    with pytest.raises(ValueError, match="first dimensions"):
        r.attend(q, q, q, mask=r.padding([1, 2, 3]))
    with pytest.raises(ValueError, match="align with the last"):
        r.attend(q, q, q, mask=r.window(2, center=torch.zeros(2, 5)))
