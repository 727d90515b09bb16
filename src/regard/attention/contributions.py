"""Contributions: what each key added to each output along a direction.

Statistics of contributions: those of weights applied to signed numbers and to their sizes.

Each reads the blocks of `weight_blocks`, with contributions in place of weights, and keeps only its own small result.

Contributions: what each key added to the output of each query along a direction, a matrix that is never stored.

With weights w, values v, outputs o_i = Σ_j w_ij v_j and any direction g_i in the space of the outputs,

    C_ij = w_ij · (g_i · v_j)          Σ_j C_ij = g_i · o_i

Like a weight, a contribution is a function of q_i, k_j and the state of row i, and of g_i and v_j, so it is computed
where it is read, in O(T) memory. The second equation is its proof. The direction makes it a known method:

    g_i = ∂L/∂o_i              attention × gradient: ∂L/∂w_ij = g_i · v_j
    g = W_Oᵀ u                 direct logit attribution, u the direction of a logit in the residual stream
    g = 1, v_j → ‖v_j W_O‖     value-weighted attention (Kobayashi et al. 2020)

On a GPU one Triton kernel computes the statistics where it computes those of the weights, with values and directions of
the precision of queries and keys; elsewhere blocks of rows are computed by PyTorch operations.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from .blocks import ChangedInPlaceError, TensorVersions, as_range, exact, select, span
from .kernels import statistics as statistics_gpu
from .statistics import Largest, Map, On, Received, Top, blocks, flat_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from .statistics import Block
    from .weights import Weights


@dataclass(frozen=True, slots=True)
class ContributionStats:
    """The results of one pass; None for statistics that were not requested."""

    total: Float[Tensor, "*batch q"] | None = None
    """Σ_j C_ij = g_i · o_i."""
    size: Float[Tensor, "*batch q"] | None = None
    """Σ_j |C_ij|."""
    spread: Float[Tensor, "*batch q"] | None = None
    """The entropy of |C_ij| / Σ_j |C_ij|, in nats."""
    top: Top | None = None
    """The k contributions of largest size of every row, with their signs."""
    received: Float[Tensor, "*batch k"] | None = None
    """Σ_i C_ij."""
    received_size: Float[Tensor, "*batch k"] | None = None
    """Σ_i |C_ij|."""
    on: Float[Tensor, "*batch q"] | None = None
    """Σ_j C_ij over chosen keys j."""
    map: Float[Tensor, "*batch rows cols"] | None = None


class ContributionStatistic(Protocol):
    """A statistic whose result is one tensor, or values and indices."""

    def add(self, block: Block) -> None: ...

    @property
    def result(self) -> Tensor | Top: ...


class OfSizes:
    """A statistic of |C_ij|."""

    def __init__(self, statistic: On | Received) -> None:
        self.statistic = statistic

    def add(self, block: Block) -> None:
        self.statistic.add(block._replace(w=block.w.abs()))

    @property
    def result(self) -> Tensor:
        return self.statistic.result


class LargestSizes:
    """The k contributions of largest size of every row, with their signs."""

    def __init__(self, largest: Largest) -> None:
        self.largest = largest

    def add(self, block: Block) -> None:
        self.largest.add(block._replace(w=block.w.abs()))
        at = block.n, block.rows
        self.largest.values[at] = block.w.gather(-1, self.largest.indices[at])

    @property
    def result(self) -> Top:
        return self.largest.result


class Spread:
    """H = log S − Σ_j |C_ij| log |C_ij| / S with S = Σ_j |C_ij|, after dividing each row by its largest size."""

    def __init__(self, count: int, queries: int, like: Tensor) -> None:
        self.result = like.new_empty(count, queries)

    def add(self, block: Block) -> None:
        size = block.w.abs()
        size /= size.amax(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        total = size.sum(-1)
        entropy = total.log() - torch.xlogy(size, size).sum(-1) / total
        self.result[block.n, block.rows] = entropy.masked_fill_(total == 0, 0)


def cells_of_map(size: tuple[int, int], pool: str, queries: int, keys: int) -> tuple[int, int]:
    """The rows and columns of a map that is to have at most `size` cells."""
    if pool not in ("max", "mean"):
        raise ValueError(f'pool is {pool!r}; expected "max" or "mean"')
    if size[0] < 1 or size[1] < 1:
        raise ValueError(f"a map needs at least one row and one column, got {size}")
    return min(size[0], queries), min(size[1], keys)


class SignedMap:
    """The matrix pooled to cells: the mean, or the contribution of largest size with its sign."""

    def __init__(
        self, count: int, queries: int, keys: int, size: tuple[int, int], pool: Literal["max", "mean"], like: Tensor
    ) -> None:
        size = cells_of_map(size, pool, queries, keys)
        self.above = Map(count, queries, keys, size, pool, like)
        self.below = Map(count, queries, keys, size, pool, like) if pool == "max" else None

    def add(self, block: Block) -> None:
        self.above.add(block)
        if self.below is not None:
            self.below.add(block._replace(w=-block.w))

    @property
    def result(self) -> Tensor:
        high = self.above.result
        if self.below is None:
            return high
        low = self.below.result
        return torch.where(high >= low, high, -low)


class Contributions:
    """C_ij = w_ij · (g_i · v_j) of one call of attention, computed when it is read. Shapes are [*batch, T_q, T_k].

        out, w = attend(q, k, v, weights=True)
        c = Contributions(w, v, g)          # g [*batch, T_q, D_v], or one direction for all queries [*batch, 1, D_v]
        c.top(5), c.received(), c.map((64, 64))

    With grouped heads v has as many heads as the keys. `c[0, 3]` and `c.rows(…)` select as in `Weights`. Nothing here
    builds a graph for gradients. Dropout is not part of the contributions.
    """

    def __init__(self, weights: Weights, v: Float[Tensor, "*batch k d_v"], g: Float[Tensor, "*batch #q d_v"]) -> None:
        self.weights = weights
        """The weights of the selected matrices and queries."""
        v, g = v.detach(), g.detach()
        if v.shape[-1] != g.shape[-1]:
            raise ValueError(
                f"a direction has one number per dimension of the values: v is {list(v.shape)}, g is {list(g.shape)}"
            )
        self._versions = TensorVersions([v, g])
        self._v, self._g = flat_outputs(weights, v, g, "contributions v g")
        self._finite = bool(torch.isfinite(v).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], and [*batch, T_k] where the query was one vector."""
        return self.weights.shape

    def __repr__(self) -> str:
        return f"Contributions({list(self.shape)}, of {self.weights!r})"

    def values_and_directions(self) -> tuple[Float[Tensor, "n k d_v"], Float[Tensor, "n q d_v"]]:
        """v and g as they are kept, of all selected matrices; grouped values once for each head of queries."""
        return self._v, self._g

    # Selection

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Contributions:
        """Pick from the leading dimensions: `c[0]`, `c[0, 3]`, `c[:, 2:4]`."""
        part = copy(self)
        part.weights = self.weights[index]
        count = torch.arange(len(self.weights.entries)).view(self.weights.leading_shape)
        chosen = span(as_range(count[index].flatten().tolist()), self._v.device)
        part._v, part._g = self._v[chosen], self._g[chosen]
        return part

    def rows(self, queries: int | slice | Sequence[int]) -> Contributions:
        """Only these queries; one query stays a row: shape [*batch, 1, T_k]."""
        part = copy(self)
        part.weights = self.weights.rows(queries)
        chosen = select(queries, range(len(self.weights.queries)), "query")
        part._g = self._g[:, span(chosen, self._g.device)]
        return part

    # The matrix itself

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix. The only method that takes O(T²) memory."""
        return self.tile(slice(None), slice(None)).reshape(self.shape)

    @torch.no_grad()
    def tile(
        self,
        rows: int | slice | Sequence[int],
        cols: int | slice | Sequence[int],
        size: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
    ) -> Float[Tensor, "*batch rows cols"]:
        """Any rectangle of it; single indices keep their dimension. With a `size` it is pooled as by `map`."""
        part = self.rows(rows)
        keys = select(cols, range(self.weights.energies.keys), "key")
        j = span(keys, self._v.device)
        if size is None:
            w = part.weights.tile(slice(None), cols).reshape(len(part._g), -1, len(keys))
            return part._times(w, part._v[:, j], part._g).reshape((*part.weights.leading_shape, *w.shape[1:]))
        pooled = part._map(len(keys), size, pool)
        for block in part._blocks(whole=True):
            pooled.add(block._replace(w=block.w[..., j]))
        return pooled.result.reshape(*part.weights.leading_shape, *pooled.result.shape[1:])

    # Statistics

    def total(self) -> Float[Tensor, "*batch q"]:
        """Σ_j C_ij, which is g_i · o_i."""
        return self.stats(total=True).total  # type: ignore[return-value]

    def size(self) -> Float[Tensor, "*batch q"]:
        """Σ_j |C_ij|: how much is added and subtracted; the total may be much smaller."""
        return self.stats(size=True).size  # type: ignore[return-value]

    def spread(self) -> Float[Tensor, "*batch q"]:
        """The entropy of |C_ij| / Σ_j |C_ij| in nats: 0 if one key contributes, log T_k if all contribute alike.

        0 for a row without contributions.
        """
        return self.stats(spread=True).spread  # type: ignore[return-value]

    def top(self, k: int) -> Top:
        """The k contributions of largest size of every row with their signs, `(values, indices)`, largest first.

        Where a row has fewer than k that are not zero, the rest are zeros at keys of no meaning.
        """
        return self.stats(top=k).top  # type: ignore[return-value]

    def received(self, *, absolute: bool = False) -> Float[Tensor, "*batch k"]:
        """Σ_i C_ij, what each key contributed to all queries; Σ_i |C_ij| if `absolute`."""
        stats = self.stats(received=not absolute, received_size=absolute)
        return stats.received_size if absolute else stats.received  # type: ignore[return-value]

    def on(self, columns: Sequence[int] | Tensor) -> Float[Tensor, "*batch q"]:
        """Σ_j C_ij over chosen keys: indices, or a boolean tensor [T_k] or [*batch, T_k]."""
        return self.stats(on=columns).on  # type: ignore[return-value]

    def map(self, size: tuple[int, int], pool: Literal["max", "mean"] = "max") -> Float[Tensor, "*batch rows cols"]:
        """The matrix pooled to at most rows × cols cells, as `Weights.map`.

        "max" takes the contribution of largest size with its sign, "mean" the mean of signed contributions.
        """
        return self.stats(map=size, pool=pool).map  # type: ignore[return-value]

    def fidelity(self, out: Float[Tensor, "*batch q d_v"]) -> Float[Tensor, " *batch"]:
        """The proof: |Σ_j C_ij − g_i · o_i| / |g_i · o_i| over the queries, from outputs of the model, per matrix."""
        _, o = flat_outputs(self.weights, self._v.view(*self.weights.leading_shape, *self._v.shape[1:]), out)
        expected = (self._g.to(self.precision) * o.to(self.precision)).sum(-1)
        error = (self.total().reshape(expected.shape) - expected).norm(dim=-1)
        relative = torch.where(error == 0, 0, error / expected.norm(dim=-1))
        return relative.reshape(self.weights.leading_shape)

    @torch.no_grad()
    def stats(
        self,
        *,
        total: bool = False,
        size: bool = False,
        spread: bool = False,
        top: int | None = None,
        received: bool = False,
        received_size: bool = False,
        on: Sequence[int] | Tensor | None = None,
        map: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
    ) -> ContributionStats:
        """Several statistics in one pass; see the methods of the same names."""
        keys, count, queries = self.weights.energies.keys, len(self.weights.entries), len(self.weights.queries)
        if top is not None and not 1 <= top <= keys:
            raise ValueError(f"top needs 1 ≤ k ≤ {keys}, the number of keys; got {top}")
        columns = None if on is None else self.weights.columns(on)
        cells = None if map is None else cells_of_map(map, pool, queries, keys)
        self._check_unchanged()
        results = statistics_gpu.contribution_stats(
            self.weights,
            self._v,
            self._g,
            finite=self._finite,
            total=total,
            size=size,
            spread=spread,
            top=top,
            received=received,
            received_size=received_size,
            columns=columns,
            cells=cells,
            pool=pool,
        )
        if results is None:
            like = torch.empty(0, dtype=self.precision, device=self._v.device)
            every = torch.ones(1, keys, dtype=torch.bool, device=like.device)
            statistics: dict[str, ContributionStatistic] = {}
            if total:
                statistics["total"] = On(count, queries, every, like)
            if size:
                statistics["size"] = OfSizes(On(count, queries, every, like))
            if spread:
                statistics["spread"] = Spread(count, queries, like)
            if top is not None:
                statistics["top"] = LargestSizes(Largest(count, queries, top, like))
            if received:
                statistics["received"] = Received(count, keys, like)
            if received_size:
                statistics["received_size"] = OfSizes(Received(count, keys, like))
            if columns is not None:
                statistics["on"] = On(count, queries, columns, like)
            if map is not None:
                statistics["map"] = self._map(keys, map, pool)
            for block in self._blocks(least=top or 1, whole=map is not None) if statistics else ():
                for statistic in statistics.values():
                    statistic.add(block)
            results = {name: statistic.result for name, statistic in statistics.items()}
        return ContributionStats(**{name: self._shaped(name, x) for name, x in results.items()})  # type: ignore[arg-type]

    @property
    def precision(self) -> torch.dtype:
        """What contributions are computed in: float32 at least."""
        return torch.promote_types(self.weights.energies.precision, torch.promote_types(self._v.dtype, self._g.dtype))

    # Private

    def _blocks(self, least: int = 1, whole: bool = False) -> Iterator[Block]:
        """The blocks of the weights, each with its contributions in place of them."""
        for block in blocks(self.weights, with_log=False, least=least, whole=whole):
            v, g = self._v[block.n, : block.w.shape[-1]], self._g[block.n, block.rows]
            yield block._replace(w=self._times(block.w, v, g))

    def _map(self, keys: int, size: tuple[int, int], pool: Literal["max", "mean"]) -> SignedMap:
        like = torch.empty(0, dtype=self.precision, device=self._v.device)
        return SignedMap(len(self.weights.entries), len(self.weights.queries), keys, size, pool, like)

    def _times(
        self, w: Float[Tensor, "n q k"], v: Float[Tensor, "n k d"], g: Float[Tensor, "n q d"]
    ) -> Float[Tensor, "n q k"]:
        self._check_unchanged()
        with exact(v.device):
            c = (g.to(self.precision) @ v.to(self.precision).mT).mul_(w)
        # A key of weight 0 contributes 0, also if its value is NaN or ∞, as padding may be.
        return c if self._finite else c.masked_fill_(w == 0, 0)

    def _check_unchanged(self) -> None:
        if self._versions.changed():
            raise ChangedInPlaceError(
                "values or directions were changed in place since the contributions were made; make them again, or "
                "give copies"
            )

    def _shaped(self, name: str, result: Tensor | Top) -> Tensor | Top:
        """A result [n, …] with the leading dimensions, and without that of the queries where there is one vector."""
        if isinstance(result, Top):
            return Top(*(self._shaped(name, x) for x in result))  # type: ignore[arg-type]
        lead = self.weights.leading_shape
        one = len(self.shape) == len(lead) + 1 and name in ("total", "size", "spread", "top", "on")
        return result.reshape((*lead, *result.shape[2 if one else 1 :]))


__all__ = ["ContributionStats", "Contributions"]
