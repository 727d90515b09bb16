"""Weights: the attention matrix that is not stored, as energies and one number per row.

Weights: the matrix w = normalize(energy(q, k)) that is never stored.

A normalizer leaves one number per row, after which any weight is a pointwise function of its energy; for softmax
w_ij = exp(e_ij − lse_i). So keeping q, k and that number is keeping the matrix, in O(T) memory instead of O(T²).
In floating point one number cannot hold a row of large energies, where lse = max + log Σ exp(e − max) loses the second
term: such rows have two (`RowState`), computed from the energies when weights are read.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from .blocks import TensorVersions, as_range, positions, select, span
from .kernels import statistics as statistics_gpu
from .kernels.statistics import row_state as kernel_row_state
from .normalizers import RowState, mark_empty
from .statistics import (
    Entropy,
    Fidelity,
    Largest,
    Map,
    Offsets,
    On,
    Received,
    Stats,
    Top,
    blocks,
    flat_outputs,
    logsumexp,
    row_state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from jaxtyping import Float
    from torch import Tensor

    from .energy_matrix import EnergyMatrix
    from .normalizers import Normalizer
    from .statistics import Statistic


class WeightMatrix:
    """The energies, the normalizer and the row states of the selected rows of a call of `attend`."""

    def __init__(
        self, energies: EnergyMatrix, normalize: Normalizer, state: Tensor | None = None, *, vector: bool = False
    ) -> None:
        self.energies = energies
        self.normalize = normalize.map_tensors(lambda x: x.detach().clone() if x.requires_grad else x)
        """The normalizer as it was: learned tensors are copied, because an optimizer changes them in place."""
        self.detached = energies.detached()
        """The energies that weights are computed from: no graph, learned tensors copied."""
        self.kernel_state = None if state is None else state.detach().reshape(energies.count, energies.queries)
        """The state [n, T_q] that the kernel left, one number per row, for all matrices and queries."""
        self._kernel = None if self.kernel_state is None else _KernelState(self.kernel_state, normalize)
        self.entries: Sequence[int] = range(energies.count)
        """Which matrices are selected, counted over the flattened batch."""
        self.queries: Sequence[int] = range(energies.queries)
        """Which queries are selected."""
        learned = [*energies.learned(), *normalize.tensors()]
        self._live_normalize = normalize
        used = [*energies.references(), *normalize.function_tensors()]
        self._fixed = TensorVersions([*used, *self.detached.learned(), *self.normalize.tensors()])
        self._learned = TensorVersions([x for x in learned if x.requires_grad])
        self._flat: EnergyMatrix | None = None
        self._own: RowState | None = None  # the state of the selected rows
        self._shape = energies.batch
        self._vector = vector  # one query, given as a vector: results have no dimension for queries

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], and [*batch, T_k] where the query was one vector."""
        return (*self._shape, *(() if self._vector else (len(self.queries),)), self.energies.keys)

    @property
    def sinks(self) -> Float[Tensor, " n"] | None:
        """The energy of the sink of each selected matrix; None where the softmax has none."""
        sink = self.normalize.sink
        if sink is None:
            return None
        every = torch.as_tensor(sink, dtype=self.energies.precision, device=self.device).expand(self.energies.batch)
        return every.reshape(-1)[span(self.entries, self.device)]

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """[*batch]"""
        return self._shape

    @property
    def nbytes(self) -> int:
        """Bytes kept: queries, keys and the row state. The matrix would take 4 · T_q · T_k per head in float32."""
        state = self._own or () if self.kernel_state is None else (self.kernel_state,)
        return sum(x.numel() * x.element_size() for x in (self.energies.a, self.energies.b, *state) if x is not None)

    # Selection

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Self:
        """Pick from the leading dimensions: `w[0]`, `w[0, 3]`, `w[:, 2:4]`."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > len(self._shape) or not all(isinstance(x, int | slice) for x in index):
            raise IndexError(
                f"the leading shape is {list(self._shape)}, got the index {index}; pick queries with .rows(…)"
            )
        every = torch.tensor(list(self.entries)).view(self._shape)
        try:
            chosen = every[index]
        except IndexError as error:
            raise IndexError(f"{error}; the leading shape is {list(self._shape)}") from None
        part = self._part()
        part._shape, part.entries = tuple(chosen.shape), as_range(chosen.flatten().tolist())
        return part

    def rows(self, queries: int | slice | Sequence[int]) -> Self:
        """Only these queries; one query stays a row: shape [*batch, 1, T_k]."""
        part = self._part()
        part.queries, part._vector = select(queries, self.queries, "query"), False
        return part

    def _part(self) -> Self:
        part = copy(self)
        part._own = None
        return part

    # What weights are computed from

    @property
    def device(self) -> torch.device:
        return self.energies.a.device

    def flat(self) -> EnergyMatrix:
        """`detached` with one leading dimension. Raises where the inputs of `attend` were changed since."""
        self.check_unchanged(learned=False)
        if self._flat is None:
            self._flat = self.detached.flat()
        return self._flat

    def row_state(self) -> RowState:
        """The state of the selected rows, [n, rows]: what the kernel left, or computed now by one pass over them."""
        if self._own is None:
            self._own = self._compute_state()
        return self._own

    def _compute_state(self) -> RowState:
        self.flat()  # raises where the inputs were changed
        state = None
        if self._kernel is not None and self._kernel.holds:
            entries, rows = self._index()
            state = RowState(self._kernel.state[entries][:, rows])
        if state is None:
            state = kernel_row_state(self)
        return row_state(self) if state is None else state

    def _needs_graph(self) -> bool:
        energies = self.energies
        normalize = self._live_normalize
        known = [*energies.references(), *energies.learned(), *normalize.tensors(), *normalize.function_tensors()]
        opaque = energies.form.opaque or any(x.opaque for x in energies.modifiers)  # may close over parameters
        return torch.is_grad_enabled() and (opaque or any(x.requires_grad for x in known))

    def _live(self) -> EnergyMatrix:
        """The energies with their graph and one leading dimension."""
        self.check_unchanged(learned=True)
        return self.energies.flat()

    def check_unchanged(self, *, learned: bool) -> None:
        """Raise where the inputs of `attend` were changed since; with `learned`, parameters of the energy, too."""
        for versions in (self._fixed, self._learned) if learned else (self._fixed,):
            versions.require_unchanged(
                "so the weights it used cannot be computed; read them before the change (before optimizer.step())"
            )

    def _index(self) -> tuple[slice | Tensor, slice | Tensor]:
        return span(self.entries, self.device), span(self.queries, self.device)


class _KernelState:
    """The state that the kernel left, shared by all selections of one `Weights`."""

    def __init__(self, state: Float[Tensor, "n q"], normalize: Normalizer) -> None:
        self.state, self._normalize = state, normalize

    @cached_property
    def holds(self) -> bool:
        """Whether one number per row is enough for these rows; else the state is computed from the energies."""
        return self._normalize.holds(self.state)


PER_QUERY = frozenset({"entropy", "top", "offsets", "on"})
"""The statistics that have a dimension for queries."""


class Weights(WeightMatrix):
    """The weights of one call of `attend`, computed exactly from q, k and the row state when they are read.

    Shapes are [*batch, T_q, T_k]. `w[0, 3]` selects from the leading dimensions (batch entry 0, head 3) and
    `w.rows(1000)` selects queries; both return `Weights` without computing anything. Only `dense`, `log_prob` and
    `logsumexp` build a graph for gradients. Dropout is not part of the weights. Queries, keys and boolean masks are not
    copied. Once they are changed in place every method raises, except for tensors made in `torch.inference_mode`, whose
    changes PyTorch does not count.
    """

    def __repr__(self) -> str:
        return f"Weights({list(self.shape)}, {type(self.normalize).__name__}, keeps {self.nbytes:,} bytes)"

    # The matrix itself

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, differentiable. The only method that takes O(T²) memory."""
        e = self._live().block(*self._index(), slice(0, self.energies.keys), self.normalize.absent)
        if self.normalize.selects_key:  # the keys that were selected, not new ones
            w = self.normalize.weigh_rows(e, self.row_state(), torch.arange(e.shape[-1], device=e.device))
        else:
            w = self._live_normalize.of_block(self.energies.batch, span(self.entries, self.device))(e)
        return w.reshape(self.shape)

    @torch.no_grad()
    def tile(
        self,
        rows: int | slice | Sequence[int],
        cols: int | slice | Sequence[int],
        size: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
    ) -> Float[Tensor, "*batch rows cols"]:
        """Any rectangle of it: `w.tile(slice(100, 164), slice(0, 64))`; single indices keep their dimension.

        With a `size` it is pooled to at most that many cells, as `map` pools the whole matrix.
        """
        part = self.rows(rows)
        keys = select(cols, range(self.energies.keys), "key")
        if size is not None:
            return part._pooled(keys, size, pool)
        alone = self.normalize.pointwise and part.row_state().anchor is None
        w = part._block(keys) if alone else part._columns_of_rows(keys)
        return w.reshape(*self._shape, len(part.queries), len(keys))

    def log_prob(self) -> Float[Tensor, "*batch q"]:
        """log softmax(e_i) at the key that `Hard` chose, differentiable: what REINFORCE multiplies by a reward."""
        if not self.normalize.selects_key:
            raise TypeError(
                f"log_prob is the probability of a sampled key; {type(self.normalize).__name__} does not sample. "
                'Use attend(..., normalize=Hard("reinforce"))'
            )
        e = self._live().block(*self._index(), slice(0, self.energies.keys), -torch.inf)
        key = self.row_state().rest
        empty = key < 0
        chosen = e.gather(-1, key.clamp_min(0)[..., None]).squeeze(-1)
        total = e.masked_fill(empty[..., None], 0).logsumexp(-1)
        return (chosen.masked_fill(empty, 0) - total).masked_fill(empty, 0).reshape(self.shape[:-1])

    def logsumexp(self) -> Float[Tensor, "*batch q"]:
        """log Σ_j exp(e_ij / T), the logarithm of a softmax's denominator (a sink is part of it), differentiable.

        −∞ for a query that sees no key. With it, attention over parts of the keys is joined exactly:
        z = Σ_p exp(lse_p − lse) z_p with lse = log Σ_p exp(lse_p).
        """
        if self.normalize.kernel != "softmax":
            raise TypeError(
                f"logsumexp is the logarithm of a softmax's denominator; {type(self.normalize).__name__} has none"
            )
        if self._needs_graph():
            return logsumexp(self, self._live(), self._live_normalize).reshape(self.shape[:-1])
        state = self.row_state()
        total = state.rest if state.anchor is None else self.normalize.one_number(state)
        return mark_empty(total).reshape(self.shape[:-1])  # the state of an empty row is +∞

    # Statistics

    def entropy(self) -> Float[Tensor, "*batch q"]:
        """−Σ_j w_ij log w_ij in nats: 0 looks at one key, log T_k at all alike.

        Defined for weights that are a distribution; NaN for a row with a weight < 0 (`Unnormalized`).
        """
        return self.stats(entropy=True).entropy  # type: ignore[return-value]

    def top(self, k: int) -> Top:
        """The k largest weights of every row, `(values, indices)`, largest first.

        Where a row has fewer than k weights that are not zero, the rest are zeros at keys of no meaning. Masked keys
        weigh 0, which is more than a negative weight (`Unnormalized`).
        """
        return self.stats(top=k).top  # type: ignore[return-value]

    def received(self) -> Float[Tensor, "*batch k"]:
        """Σ_i w_ij: how much attention each key receives."""
        return self.stats(received=True).received  # type: ignore[return-value]

    def offset(self, n: int) -> Float[Tensor, "*batch q"]:
        """w_{i, i+n}: what each query gives to the key n places on; 0 where there is none."""
        return self.stats(offsets=[n]).offsets[..., 0]  # type: ignore[index]

    def on(self, columns: Sequence[int] | Tensor) -> Float[Tensor, "*batch q"]:
        """Σ_j w_ij over chosen keys: indices, or a boolean tensor [T_k] or [*batch, T_k]."""
        return self.stats(on=columns).on  # type: ignore[return-value]

    def map(self, size: tuple[int, int], pool: Literal["max", "mean"] = "max") -> Float[Tensor, "*batch rows cols"]:
        """The matrix pooled to at most rows × cols cells. Cell r of R covers queries r·T//R up to (r+1)·T//R."""
        return self.stats(map=size, pool=pool).map  # type: ignore[return-value]

    def fidelity(self, v: Tensor, out: Tensor) -> Float[Tensor, " *batch"]:
        """|W v − out| / |out|, one number per matrix: how far these weights are from what the model computed."""
        return self.stats(fidelity=(v, out)).fidelity  # type: ignore[return-value]

    @torch.no_grad()
    def stats(
        self,
        *,
        entropy: bool = False,
        top: int | None = None,
        received: bool = False,
        offsets: Sequence[int] | None = None,
        on: Sequence[int] | Tensor | None = None,
        map: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
        fidelity: tuple[Tensor, Tensor] | None = None,
        also: Sequence[Statistic] = (),
    ) -> Stats:
        """Several statistics in one pass over q and k; see the methods of the same names.

        `also` are statistics of your own (`weight_statistics.Statistic`), computed in the same pass.
        """
        keys = self.energies.keys
        if top is not None and not 1 <= top <= keys:
            raise ValueError(f"top needs 1 ≤ k ≤ {keys}, the number of keys; got {top}")
        columns = None if on is None else self.columns(on)
        size = None if map is None else self._size(map, pool)
        proof = None if fidelity is None else flat_outputs(self, *fidelity)
        results = None
        if not also:
            chosen = {"entropy": entropy, "top": top, "received": received, "offsets": offsets, "columns": columns}
            results = statistics_gpu.stats(self, **chosen, size=size, pool=pool, fidelity=proof)  # type: ignore[arg-type]
        if results is None:
            energies, count, queries = self.flat(), len(self.entries), len(self.queries)
            like = torch.empty(0, dtype=energies.precision, device=self.device)
            statistics: dict[str, Entropy | Largest | Received | Offsets | On | Map | Fidelity] = {}
            if entropy:
                statistics["entropy"] = Entropy(count, queries, like)
            if top is not None:
                statistics["top"] = Largest(count, queries, top, like)
            if received:
                statistics["received"] = Received(count, keys, like)
            if offsets is not None:
                statistics["offsets"] = Offsets(count, queries, list(offsets), like)
            if columns is not None:
                statistics["on"] = On(count, queries, columns, like)
            if size is not None:
                statistics["map"] = Map(count, queries, keys, size, pool, like)
            if proof is not None:
                statistics["fidelity"] = Fidelity(count, *proof, like)
            every: list[Statistic] = [*statistics.values(), *also]
            # The cells of a map reach to the last key; every other statistic can skip keys that no row sees.
            for block in blocks(self, with_log=entropy, least=top or 1, whole=map is not None) if every else ():
                for statistic in every:
                    statistic.add(block)
            results = {name: statistic.result for name, statistic in statistics.items()}
        return Stats(**{name: self._shaped(name, result) for name, result in results.items()})  # type: ignore[arg-type]

    def columns(self, on: Sequence[int] | Tensor) -> Tensor:
        """Chosen columns as a boolean [n or 1, T_k]."""
        keys = self.energies.keys
        chosen = torch.as_tensor(on, device=self.device)
        if chosen.dtype == torch.bool:
            if chosen.shape[-1:] != (keys,):
                raise ValueError(f"on needs a boolean for each of {keys} keys, got shape {list(chosen.shape)}")
            return chosen[None] if chosen.dim() == 1 else chosen.expand(*self._shape, keys).reshape(-1, keys)
        if chosen.is_floating_point() and chosen.numel():
            raise TypeError(f"on needs whole indices or booleans, got {chosen.dtype}")
        columns = select(chosen.flatten().tolist(), range(keys), "key")
        is_chosen = torch.zeros(1, keys, dtype=torch.bool, device=chosen.device)
        is_chosen[0, list(columns)] = True
        return is_chosen

    # Private

    def _block(self, keys: Sequence[int]) -> Float[Tensor, "n rows keys"]:
        j = span(keys, self.device)
        e = self.flat().block(*self._index(), j, self.normalize.absent)
        return self.normalize.weigh_rows(e, self.row_state(), positions(j, self.device))

    def _columns_of_rows(self, keys: Sequence[int]) -> Float[Tensor, "n rows keys"]:
        """The same from whole rows: where energies are large, those of single blocks may be rounded otherwise."""
        j = span(keys, self.device)
        w = torch.empty(
            len(self.entries), len(self.queries), len(keys), dtype=self.energies.precision, device=self.device
        )
        for block in blocks(self, with_log=False, whole=True):
            w[block.n, block.rows] = block.w[..., j]
        return w

    def _pooled(self, cols: Sequence[int], size: tuple[int, int], pool: Literal["max", "mean"]) -> Tensor:
        rows, columns = self._size(size, pool)
        size = rows, min(columns, len(cols))
        cells = statistics_gpu.pooled(self, cols, size, pool)
        if cells is None:
            like = torch.empty(0, dtype=self.energies.precision, device=self.device)
            map = Map(len(self.entries), len(self.queries), len(cols), size, pool, like)
            j = span(cols, like.device)
            for block in blocks(self, with_log=False, whole=True):
                map.add(block._replace(w=block.w[..., j]))
            cells = map.result
        return cells.reshape(*self._shape, *size)

    def _shaped(self, name: str, result: Tensor | Top) -> Tensor | Top:
        """A result [n, ...] with the leading dimensions, and without that of the queries where there is one vector."""
        if isinstance(result, Top):
            return Top(*(self._shaped(name, x) for x in result))  # type: ignore[arg-type]
        own = result.shape[2 if self._vector and name in PER_QUERY else 1 :]
        return result.reshape((*self._shape, *own))

    def _size(self, size: tuple[int, int], pool: str) -> tuple[int, int]:
        rows, cols = size
        if rows < 1 or cols < 1:
            raise ValueError(f"a map needs at least one row and one column, got {size}")
        if pool not in ("max", "mean"):
            raise ValueError(f'pool is {pool!r}; expected "max" or "mean"')
        return min(rows, len(self.queries)), min(cols, self.energies.keys)


__all__ = ["Stats", "Top", "Weights"]
