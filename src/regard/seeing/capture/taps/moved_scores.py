"""MovedScores: scores of relative positions, which functions move until row i begins with another column than row 0.

The functions differ (XLNet reshapes twice, Transformer-XL pads first). So the result is compared with the product that
it came from: if each row is that of the product from some column on, the scores are shifted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ....attention.tensor_versions import version_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..recording.written_scores import WrittenScores

MOVES = frozenset(("view", "reshape", "getitem", "index_select", "narrow", "cat", "pad", "as_strided", "contiguous"))
"""Functions that move scores without changing them: several of them shift the columns of each row."""


class MovedScores(NamedTuple):
    """Scores at other places than those of their product, until they are found to be shifted."""

    scores: WrittenScores
    source: Tensor
    """The scores before, which are compared with what becomes of them."""
    version: int | None

    def after(self, name: str, x: Tensor) -> WrittenScores | MovedScores | str:
        """What is known of the result of one more function."""
        if name not in MOVES:
            return f"its scores pass through {name}"
        if version_of(self.source) != self.version:
            return "its scores were changed in place"
        shift = row_shift(self.source, x)
        if shift is None:
            return self
        first, stride = shift
        rows, keys = x.shape[-2:]
        columns = torch.arange(first - stride * (rows - 1), first + keys, device=x.device)
        return self.scores.then("shift", x, tensor=columns, stride=stride)._replace(shape=tuple(x.shape))


@torch.no_grad()
def row_shift(source: Tensor, x: Tensor) -> tuple[int, int] | None:
    """The numbers (c, s) for which x[..., i, j] = source[..., i, c − s · i + j] everywhere; None if there are none."""
    if x.dim() != source.dim() or x.dim() < 3 or x.shape[:-1] != source.shape[:-1] or not x.numel():
        return None
    rows, columns = x.shape[-2:]
    width = source.shape[-1]
    if columns > width or rows < 2:
        return None
    a, b = source.flatten(0, -3)[0], x.flatten(0, -3)[0]
    for first in _places_of(b[0], a[0]):
        for second in _places_of(b[1], a[1]):
            stride = first - second
            last = first - stride * (rows - 1)
            if not (0 < stride and 0 <= last and first + columns <= width):
                continue
            whole = source.contiguous()
            steps = whole.stride()
            view = whole.as_strided(x.shape, (*steps[:-2], steps[-2] - stride, 1), whole.storage_offset() + first)
            if torch.equal(view, x):
                return first, stride
    return None


def _places_of(part: Tensor, row: Tensor) -> list[int]:
    """The first few places in a row where its entries are those of the part."""
    starts = row[: len(row) - len(part) + 1]
    places = (starts == part[0]).nonzero().flatten().tolist()
    return [at for at in places if torch.equal(row[at : at + len(part)], part)][:4]
