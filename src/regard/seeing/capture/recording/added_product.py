"""AddedProduct: a further product of queries and keys that is added to the scores, computed when somebody asks.

Relative positions have products of their own: q·k + q·r, where r belongs to the distance of query and key (Transformer-
XL, Dai et al. 2019; XLNet, Yang et al. 2019; DeBERTa, He et al. 2021). Older traces have such parts; now the
weights of these models are held as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....attention.energies.modifiers import Modifier
from ..call_inputs_and_output import Rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ....attention.block_indices import Batch


@dataclass(frozen=True, slots=True, eq=False)
class AddedProduct(Modifier):
    """e_ij + a_i · b_c · scale, where c is j, or the entry of `columns` for the distance of j and i.

    c = columns[j − stride · i + stride · (T_q − 1)]. If it is `transposed`, i and j change places. The product is
    rounded as the model rounded it: `rounding` has the type of each step and the factor of that step. If another
    product was added to this one first, that is `plus`, and `rounding_of_sum` has the steps after it.
    """

    a: Float[Tensor, "*batch q d"]
    b: Float[Tensor, "*batch r d"]
    scale: float
    rounding: Sequence[tuple[str, float]] = ()
    columns: Int[Tensor, " distances"] | None = None
    stride: int = 1
    transposed: bool = False
    plus: AddedProduct | None = None
    rounding_of_sum: Sequence[tuple[str, float]] = ()
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        rows, columns = (j[:, None], i.squeeze(-1)) if self.transposed else (i, j)
        p = self._product(e.dtype, batch, rows, columns) * self.scale
        p = p.mT if self.transposed else p
        for dtype, factor in self.rounding:
            p = Rounded(dtype, factor)(p, batch, i, j)
        if self.plus is not None:
            p = self.plus(p, batch, i, j)
            for dtype, factor in self.rounding_of_sum:
                p = Rounded(dtype, factor)(p, batch, i, j)
        return e + p

    def _product(self, dtype: torch.dtype, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        """[..., rows, columns] for indices [rows, 1] and [columns]."""
        a = _rows(self.a, batch, i).squeeze(-2).to(dtype)
        if self.columns is None:
            return a @ _rows(self.b, batch, j[None]).squeeze(-3).to(dtype).mT
        every = torch.arange(self.b.shape[-2], device=j.device)
        whole = a @ _rows(self.b, batch, every[None]).squeeze(-3).to(dtype).mT
        index = self.columns[j - self.stride * i + self.stride * (self.a.shape[-2] - 1)]
        return whole.gather(-1, index.expand(*whole.shape[:-1], index.shape[-1]))


def _rows(x: Tensor, batch: Batch, index: Tensor) -> Tensor:
    """The rows of x at these indices, for each entry of the batch. A leading axis of size one is broadcast."""
    own = batch[len(batch) - x.dim() + 2 :]
    lead = tuple(at if n > 1 else torch.zeros_like(at) for n, at in zip(x.shape, own, strict=False))
    return x[(*lead, index)] if lead else x[index]
