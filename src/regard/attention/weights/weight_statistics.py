"""Statistics of the attention matrix: each reads blocks of whole rows and keeps only its own small result.

One pass over the blocks serves any number of statistics; those that are not requested cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from .pooling_cells import Cells

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .lazy_weight_matrix import WeightMatrix


class Block(NamedTuple):
    """Rows of some matrices: their weights, log-weights where asked for, and where they belong.

    Keys after the last one that any of these rows sees may be left out; their weights are zero.
    """

    w: Float[Tensor, "n rows k"]
    log: Float[Tensor, "n rows k"] | None
    n: slice
    rows: slice
    queries: Int[Tensor, " rows"]
    """Which queries of the model these rows are; `rows` counts within what was selected."""


class Top(NamedTuple):
    """The k largest weights of every row, largest first, and the keys they belong to."""

    values: Float[Tensor, "*batch q top"]
    indices: Int[Tensor, "*batch q top"]


@dataclass(frozen=True, slots=True)
class Stats:
    """The results of one pass; None for statistics that were not requested."""

    entropy: Float[Tensor, "*batch q"] | None = None
    """−Σ_j w_ij log w_ij, in nats."""
    top: Top | None = None
    received: Float[Tensor, "*batch k"] | None = None
    """Σ_i w_ij: how much attention each key receives."""
    offsets: Float[Tensor, "*batch q offsets"] | None = None
    """w_{i, i+n} for each offset n; 0 where there is no such key."""
    on: Float[Tensor, "*batch q"] | None = None
    """Σ_j w_ij over chosen keys j."""
    map: Float[Tensor, "*batch rows cols"] | None = None
    fidelity: Float[Tensor, " *batch"] | None = None
    """|W v − out| / |out|: how far the weights shown are from what the model computed."""


class Statistic(Protocol):
    """Reads every block once, and keeps only its own result."""

    def add(self, block: Block) -> None: ...


class Entropy:
    def __init__(self, count: int, queries: int, like: Tensor) -> None:
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        assert block.log is not None
        # 0 · log 0 = 0: the clamp keeps −∞ out of the product. The log-weights are ours to overwrite.
        self.result[block.n, block.rows] = -block.log.clamp_(min=-1e30).mul_(block.w).sum(-1)


class Largest:
    def __init__(self, count: int, queries: int, k: int, like: Tensor) -> None:
        self.k = k
        self.values = like.new_empty(count, queries, k)
        self.indices = torch.empty(count, queries, k, dtype=torch.long, device=like.device)

    def add(self, block: Block) -> None:
        at = block.n, block.rows
        self.values[at], self.indices[at] = block.w.topk(self.k, dim=-1)

    @property
    def result(self) -> Top:
        return Top(self.values, self.indices)


class Received:
    def __init__(self, count: int, keys: int, like: Tensor) -> None:
        self.result = like.new_zeros(count, keys)

    def add(self, block: Block) -> None:
        self.result[block.n, : block.w.shape[-1]] += block.w.sum(-2)


class Offsets:
    def __init__(self, count: int, queries: int, offsets: list[int], like: Tensor) -> None:
        self.offsets = torch.tensor(offsets, device=like.device)
        self.result = like.new_empty(count, queries, len(offsets))

    def add(self, block: Block) -> None:
        keys = block.w.shape[-1]
        if not keys:
            self.result[block.n, block.rows] = 0
            return
        j = block.queries[:, None] + self.offsets  # [rows, offsets]
        there = (j >= 0) & (j < keys)
        w = block.w.gather(-1, j.clamp(0, keys - 1).expand(block.w.shape[0], -1, -1))
        self.result[block.n, block.rows] = w * there


class On:
    def __init__(self, count: int, queries: int, chosen: Bool[Tensor, "n k"], like: Tensor) -> None:
        self.chosen = chosen.to(like.dtype)
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        chosen = (self.chosen[block.n] if self.chosen.shape[0] > 1 else self.chosen)[:, : block.w.shape[-1]]
        self.result[block.n, block.rows] = (block.w @ chosen[..., None]).squeeze(-1)


class Map:
    """The matrix pooled to rows × cols cells, which `Cells.edges` divides it into."""

    def __init__(self, count: int, queries: int, keys: int, size: tuple[int, int], pool: str, like: Tensor) -> None:
        self.pool = pool
        self.cells = like.new_full((count, *size), -torch.inf if pool == "max" else 0.0)
        if 0 in size:
            return  # no queries or no keys
        rows, cols = Cells.edges(queries, size[0]), Cells.edges(keys, size[1])
        self.cols = Cells(cols, like.device)
        height, width = (torch.tensor(edges, device=like.device).diff() for edges in (rows, cols))
        self.cell = torch.arange(size[0], device=like.device).repeat_interleave(height)  # the cell of each row
        self.area = height[:, None] * width

    def add(self, block: Block) -> None:
        if not self.cells.numel():
            return
        pooled = self.cols.pool(block.w, -1, self.pool)
        cell, reduce = self.cell[block.rows], "amax" if self.pool == "max" else "sum"
        self.cells[block.n].scatter_reduce_(1, cell[:, None].expand(pooled.shape), pooled, reduce)

    @property
    def result(self) -> Tensor:
        return self.cells if self.pool == "max" or not self.cells.numel() else self.cells / self.area


class Fidelity:
    def __init__(self, count: int, v: Float[Tensor, "n k d"], out: Float[Tensor, "n q d"], like: Tensor) -> None:
        self.v, self.out = v, out
        self.error, self.norm = like.new_zeros(count), like.new_zeros(count)

    def add(self, block: Block) -> None:
        out = self.out[block.n, block.rows].to(block.w.dtype)
        difference = block.w @ self.v[block.n, : block.w.shape[-1]].to(block.w.dtype) - out
        self.error[block.n] += difference.square().sum((-2, -1))
        self.norm[block.n] += out.square().sum((-2, -1))

    @property
    def result(self) -> Tensor:
        # Zero output and zero error is a perfect match, not 0/0.
        return torch.where(self.error == 0, 0, self.error.sqrt() / self.norm.sqrt())


def flat_outputs(
    weights: WeightMatrix,
    v: Float[Tensor, "*batch k d"],
    out: Float[Tensor, "*batch q d"],
    names: str = "fidelity v out",
) -> tuple[Float[Tensor, "n k d"], Float[Tensor, "n rows d"]]:
    """Values and outputs of the selected matrices and queries, with one leading dimension.

    `names` are what an error message calls the computation and the two tensors.
    """
    energies, lead = weights.energies, weights.leading_shape
    queries, keys = len(weights.queries), energies.keys
    if weights.shape == (*lead, keys):  # the query was one vector
        out = out[..., None, :]
    if energies.groups > 1 and v.dim() >= 3 and v.shape[-3] * energies.groups == energies.batch[-1]:
        v = energies.per_query_head(v)
        if tuple(lead) != energies.batch:  # v has all heads: take those of the selected matrices
            v = energies.flatten(v)[list(weights.entries)].reshape(*lead, *v.shape[-2:])
    try:
        v, out = v.expand(*lead, keys, v.shape[-1]), out.expand(*lead, queries, out.shape[-1])
    except RuntimeError:
        batch, (name, values, rows) = "".join(f"{n}, " for n in lead), names.split()
        raise ValueError(
            f"{name} needs {values} [{batch}{keys}, D_v] and {rows} [{batch}{queries}, D_v]; "
            f"given {values} {list(v.shape)} and {rows} {list(out.shape)}"
        ) from None
    count = len(weights.entries)
    return v.reshape(count, *v.shape[-2:]), out.reshape(count, *out.shape[-2:])
