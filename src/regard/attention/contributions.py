"""Contributions: what each key added to the output of each query along a direction, a matrix that is never stored.

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
from typing import TYPE_CHECKING, Literal

import torch

from .parts import ChangedInPlaceError, TensorVersions, as_range, select, span
from .statistics import OF_CONTRIBUTIONS, Block, Top, flat_outputs
from .weights import answers, contributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

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
    ) -> Float[Tensor, "*batch rows cols"]:
        """Any rectangle of it; single indices keep their dimension."""
        part, w = self.rows(rows), self.weights.rows(rows)
        keys = select(cols, range(w.keys), "key")
        j, shape = span(keys, self._v.device), (len(w.entries), len(w.queries), len(keys))
        self._check_unchanged()
        every = slice(0, shape[0]), slice(0, shape[1])
        block = Block(w.tile(slice(None), cols).reshape(shape), None, *every, torch.empty(0))
        return contributed(block, self._v[:, j], part._g, self._finite).reshape(*w.leading_shape, *shape[1:])

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
        keys = self.weights.keys
        if top is not None and not 1 <= top <= keys:
            raise ValueError(f"top needs 1 ≤ k ≤ {keys}, the number of keys; got {top}")
        flags = {"total": total, "size": size, "spread": spread, "received": received, "received_size": received_size}
        asked = {name: flag or None for name, flag in flags.items()} | {
            "top": top,
            "on": None if on is None else self.weights.columns(on),
            "map": None if map is None else (*self.weights.size_of_map(map, pool), pool),
        }
        self._check_unchanged()
        results = answers(self.weights, OF_CONTRIBUTIONS, asked, products=(self._v, self._g, self._finite))
        return ContributionStats(**{name: self.weights.shaped(name, x) for name, x in results.items()})  # type: ignore[arg-type]

    @property
    def precision(self) -> torch.dtype:
        """What contributions are computed in: float32 at least."""
        return torch.promote_types(self.weights.precision, torch.promote_types(self._v.dtype, self._g.dtype))

    # Private

    def _check_unchanged(self) -> None:
        if self._versions.changed():
            raise ChangedInPlaceError(
                "values or directions were changed in place since the contributions were made; make them again, or "
                "give copies"
            )
