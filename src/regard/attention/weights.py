"""Weights: the matrix w = normalize(energy(q, k)) that is never stored.

A normalizer leaves one number per row, after which any weight is a pointwise function of its energy; for softmax
w_ij = exp(e_ij − lse_i). So keeping q, k and that number is keeping the matrix, in O(T) memory instead of O(T²).
In floating point one number cannot hold a row of large energies, where lse = max + log Σ exp(e − max) loses the second
term: such rows have two (`RowState`), computed from the energies when weights are read.

A matrix that a model made itself is kept (`Weights.of_matrix`), and matrices that it adds or subtracts are a sum of
Weights, a · w1 + b · w2, with one factor for all rows or one for each. All are asked in the same way.
"""

from __future__ import annotations

import os
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from . import block_plan, statistics
from .energy_matrix import EnergyMatrix
from .kernels import statistics_launch as kernels
from .normalizers import RowState, Unchanged, mark_empty
from .parts import TensorVersions, as_range, exact, fits, positions, readable, select, span
from .statistics import Stats, Top, blocks, flat_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from jaxtyping import Float
    from torch import Tensor

    from .normalizers import Normalizer
    from .statistics import Block, Statistic, Table

    Term = tuple[float | Tensor, "Weights"]
    """A factor, a number or [*batch, T_q, 1], and what it multiplies."""


class Weights:
    """The weights of one call of `attend`, computed exactly from q, k and the row state when they are read.

    Shapes are [*batch, T_q, T_k]. `w[0, 3]` selects from the leading dimensions (batch entry 0, head 3) and
    `w.rows(1000)` selects queries; both return `Weights` without computing anything. Only `dense`, `log_prob` and
    `logsumexp` build a graph for gradients. Dropout is not part of the weights. Queries, keys and boolean masks are not
    copied. Once they are changed in place every method raises.

    `a * w1 + b * w2` is the sum of two matrices of one shape, and answers as they do. A factor is a number, or a tensor
    that broadcasts to [*batch, T_q, 1]: one per head (λ of differential attention) or per row (a gate).
    """

    def __init__(
        self, energies: EnergyMatrix, normalize: Normalizer, state: Tensor | None = None, *, vector: bool = False
    ) -> None:
        self._energies, self._live_normalize = energies, normalize
        self._normalize = normalize.map_tensors(lambda x: x.detach().clone() if x.requires_grad else x)
        self.detached = energies.detached()
        """The energies that weights are computed from: no graph, learned tensors copied."""
        self.kernel_state = None if state is None else state.detach().reshape(energies.count, energies.queries)
        """The state [n, T_q] that the kernel left, one number per row, for all matrices and queries."""
        self._states = _RowStates(self.kernel_state, self._normalize)
        self.terms: tuple[Term, ...] = ()
        """The factors and Weights of a sum; empty for other weights."""
        self.entries: Sequence[int] = range(energies.count)
        """Which matrices are selected, counted over the flattened batch."""
        self.queries: Sequence[int] = range(energies.queries)
        """Which queries are selected."""
        learned = [*energies.learned(), *normalize.tensors()]
        used = [*energies.references(), *normalize.function_tensors()]
        self._fixed = TensorVersions([*used, *self.detached.learned(), *self._normalize.tensors()])
        self._learned = TensorVersions([x for x in learned if x.requires_grad])
        self._flat: EnergyMatrix | None = None
        self._own: RowState | None = None  # the state of the selected rows
        self._shape = energies.batch
        self._vector = vector  # one query, given as a vector: results have no dimension for queries

    @classmethod
    def of_matrix(cls, w: Float[Tensor, "*batch q k"]) -> Weights:
        """Those of a matrix that was computed elsewhere, kept by reference. Its rows need not sum to one."""
        return cls(EnergyMatrix.of_matrix(w.detach()), Unchanged())

    # Sums

    @classmethod
    def _sum(cls, *terms: Term) -> Weights:
        flat = tuple((x._factor(factor) * own, one) for factor, x in terms for own, one in x.sources)
        shapes = {one.shape for _, one in flat}
        if len(shapes) > 1:
            raise ValueError(f"weights of one shape can be added, got {' and '.join(str(list(x)) for x in shapes)}")
        whole = copy(flat[0][1])
        whole.terms = flat
        return whole

    def _factor(self, x: float | Tensor) -> float | Float[Tensor, "*batch q 1"]:
        """A factor of these weights: a number as it is, a tensor as a copy with a number for each row."""
        if not isinstance(x, torch.Tensor):
            return float(x)
        rows = (*self.shape[:-1], 1)
        if not fits(tuple(x.shape), rows):
            raise ValueError(
                f"a factor of weights {list(self.shape)} is a number or a tensor that broadcasts to {list(rows)}, one "
                f"for each row; got {list(x.shape)}"
            )
        return x.expand(rows).clone().reshape(*self._shape, len(self.queries), 1)

    @property
    def sources(self) -> tuple[Term, ...]:
        """The terms, or the weights themselves with the factor 1."""
        return self.terms or ((1.0, self),)

    def flat_sources(self) -> list[Term]:
        """The same with factors [n, rows, 1], without a graph."""
        return [
            (x.detach().reshape(-1, *x.shape[-2:]) if isinstance(x, torch.Tensor) else x, one)
            for x, one in self.sources
        ]

    def __mul__(self, factor: float | Tensor) -> Weights:
        return self._sum((factor, self))

    __rmul__ = __mul__

    def __neg__(self) -> Weights:
        return -1.0 * self

    def __add__(self, other: Weights) -> Weights:
        return self._sum((1.0, self), (1.0, other)) if isinstance(other, Weights) else NotImplemented

    def __radd__(self, other: int) -> Weights:
        return self if other == 0 else NotImplemented  # what `sum` begins with

    def __sub__(self, other: Weights) -> Weights:
        return self._sum((1.0, self), (-1.0, other)) if isinstance(other, Weights) else NotImplemented

    # What weights are computed from

    @property
    def energies(self) -> EnergyMatrix:
        self._check_single()
        return self._energies

    @property
    def normalize(self) -> Normalizer:
        """The normalizer as it was: learned tensors are copied, because an optimizer changes them in place."""
        self._check_single()
        return self._normalize

    def _check_single(self) -> None:
        if self.terms:
            raise TypeError("a sum of weights has no energies and no normalizer of its own; ask its .terms")

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], and [*batch, T_k] where the query was one vector."""
        return (*self._shape, *(() if self._vector else (len(self.queries),)), self.keys)

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """[*batch]"""
        return self._shape

    @property
    def keys(self) -> int:
        return self._energies.keys

    @property
    def device(self) -> torch.device:
        return self._energies.a.device

    @property
    def precision(self) -> torch.dtype:
        """What weights are computed in: float32 at least."""
        return self._energies.precision

    @property
    def sinks(self) -> Float[Tensor, " n"] | None:
        """The energy of the sink of each selected matrix; None where the softmax has none."""
        sink = self.normalize.sink
        if sink is None:
            return None
        every = torch.as_tensor(sink, dtype=self.precision, device=self.device).expand(self.energies.batch)
        return every.reshape(-1)[span(self.entries, self.device)]

    @property
    def nbytes(self) -> int:
        """Bytes kept: queries, keys and the row state. The matrix would take 4 · T_q · T_k per head in float32."""
        return sum(one.detached.a.nbytes + one.detached.b.nbytes + one._states.nbytes for _, one in self.sources)

    def __repr__(self) -> str:
        kind = f"sum of {len(self.terms)}" if self.terms else type(self.normalize).__name__
        return f"Weights({list(self.shape)}, {kind}, keeps {self.nbytes:,} bytes)"

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
        part = self._part(lambda x: x[index], lambda one: one[index])
        part._shape, part.entries = tuple(chosen.shape), as_range(chosen.flatten().tolist())
        return part

    def rows(self, queries: int | slice | Sequence[int]) -> Self:
        """Only these queries; one query stays a row: shape [*batch, 1, T_k]."""
        among = range(len(self.queries))
        part = self._part(
            lambda x: x[..., span(select(queries, among, "query"), x.device), :], lambda one: one.rows(queries)
        )
        part.queries, part._vector = select(queries, self.queries, "query"), False
        return part

    def _part(self, rows: Callable[[Tensor], Tensor], part_of: Callable[[Weights], Weights]) -> Self:
        part = copy(self)
        part._own = None
        part.terms = tuple((rows(x) if isinstance(x, torch.Tensor) else x, part_of(one)) for x, one in self.terms)
        return part

    def flat(self) -> EnergyMatrix:
        """`detached` with one leading dimension. Raises where the inputs of `attend` were changed since."""
        self.check_unchanged(learned=False)
        if self._flat is None:
            self._flat = self.detached.flat()
        return self._flat

    def row_state(self) -> RowState:
        """The state of the selected rows, [n, rows]: what the kernel left, or computed by one pass over them, once."""
        if self._own is None:
            self._check_single()
            self.flat()  # raises where the inputs were changed
            self._own = self._states.of(self)
        if self._own is None:
            state = kernels.row_state(self)
            self.keep_state(statistics.row_state(self) if state is None else state)
        assert self._own is not None
        return self._own

    def keep_state(self, state: RowState) -> None:
        """Keep the state of the selected rows, for all selections."""
        self._own = state
        self._states.keep(self, state)

    @property
    def state_known(self) -> bool:
        """Whether the state of the selected rows was computed, so that any of their weights is at hand."""
        return all(one._states.has(one) for _, one in self.sources)

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

    def sees(self, rows: slice, cols: slice) -> bool:
        """Whether any of these queries may see any of these keys: where a mask surely hides them all, False."""
        for _, one in self.sources:
            part = one.rows(rows)
            plan = block_plan.plan(part.flat(), part.entries, part.queries)
            if plan is None or plan.some_of(cols):
                return True
        return False

    # The matrix itself

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, differentiable. The only method that takes O(T²) memory."""
        if self.terms:
            rows = (*self.shape[:-1], 1)  # without a dimension for queries where there is one vector
            factors = [x.reshape(rows) if isinstance(x, torch.Tensor) else x for x, _ in self.terms]
            terms = zip(factors, self.terms, strict=True)
            return sum(x * one.dense() for x, (_, one) in terms)  # type: ignore[return-value]
        e = self._live().block(*self._index(), slice(0, self.keys), self.normalize.absent)
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
    ) -> Float[Tensor, "*batch rows cols"]:
        """Any rectangle of it: `w.tile(slice(100, 164), slice(0, 64))`; single indices keep their dimension."""
        part = self.rows(rows)
        keys = select(cols, range(self.keys), "key")
        w = sum(x * one._block(keys) for x, one in part.flat_sources()) if part.terms else part._block(keys)
        return w.reshape(*self._shape, len(part.queries), len(keys))  # type: ignore[union-attr]

    def _block(self, keys: Sequence[int]) -> Float[Tensor, "n rows keys"]:
        j, (n, rows), normalize, state = span(keys, self.device), self._index(), self.normalize, self.row_state()
        if state.anchor is None and normalize.pointwise:
            energies = self.flat()
            e = energies.block(n, rows, j, normalize.absent)
            return normalize.weigh_rows(e, state, positions(j, self.device))
        # From whole rows: where energies are large, those of single blocks may be rounded otherwise.
        w = torch.empty(len(self.entries), len(self.queries), len(keys), dtype=self.precision, device=self.device)
        for block in blocks(self, whole=True):
            w[block.n, block.rows] = block.w[..., j]
        return w

    def pool_keys(self, block: int) -> tuple[Float[Tensor, "n rows cells"], Float[Tensor, "n rows cells"]]:
        """The largest weight and the sum of each `block` of keys, for every selected row, in one pass."""
        return statistics.pool_keys(self, block)

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
            return statistics.logsumexp(self, self._live(), self._live_normalize).reshape(self.shape[:-1])
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

        `also` are statistics of your own (`statistics.Statistic`), computed in the same pass.
        """
        keys = self.keys
        if top is not None and not 1 <= top <= keys:
            raise ValueError(f"top needs 1 ≤ k ≤ {keys}, the number of keys; got {top}")
        shown = None if map is None else (*self.size_of_map(map, pool), pool)
        asked = {
            "entropy": entropy or None,
            "top": top,
            "received": received or None,
            "offsets": None if offsets is None else list(offsets),
            "on": None if on is None else self.columns(on),
            "map": shown,
            "fidelity": None if fidelity is None else flat_outputs(self, *fidelity),
        }
        results = answers(self, statistics.OF_WEIGHTS, asked, also)
        return Stats(**{name: self.shaped(name, result) for name, result in results.items()})  # type: ignore[arg-type]

    def columns(self, on: Sequence[int] | Tensor) -> Tensor:
        """Chosen columns as a boolean [n or 1, T_k]."""
        keys = self.keys
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

    def shaped(self, name: str, result: Tensor | Top) -> Tensor | Top:
        """A result [n, ...] with the leading dimensions, and without that of the queries where there is one vector."""
        if isinstance(result, Top):
            return Top(*(self.shaped(name, x) for x in result))  # type: ignore[arg-type]
        own = result.shape[2 if self._vector and name in statistics.PER_QUERY else 1 :]
        return result.reshape((*self._shape, *own))

    def size_of_map(self, size: tuple[int, int], pool: str) -> tuple[int, int]:
        """The rows and columns of a map of these rows that is to have at most `size` cells."""
        rows, cols = size
        if rows < 1 or cols < 1:
            raise ValueError(f"a map needs at least one row and one column, got {size}")
        if pool not in ("max", "mean"):
            raise ValueError(f'pool is {pool!r}; expected "max" or "mean"')
        return min(rows, len(self.queries)), min(cols, self.keys)


class _RowStates:
    """One number per row of all matrices and queries: what the kernel left, or what was computed so far.

    Threads may compute different rows: a number is written before it counts as known.
    """

    def __init__(self, kernel: Float[Tensor, "n q"] | None, normalize: Normalizer) -> None:
        self._kernel, self._normalize = kernel, normalize
        self._computed: tuple[Tensor, Tensor, Tensor] | None = None
        """The numbers; which rows have theirs; and which are of large energies, where one number is not enough."""

    @cached_property
    def _kernel_holds(self) -> bool:
        return self._kernel is not None and self._normalize.holds(self._kernel)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self._kernel, *(self._computed or ())[:1]) if x is not None)

    def has(self, w: Weights) -> bool:
        computed = self._computed
        return self._kernel_holds or (computed is not None and bool(computed[1][_on_cpu(w)].all()))

    def of(self, w: Weights) -> RowState | None:
        """The state of the selected rows; None where it is not known, or is two numbers."""
        computed, numbers = self._computed, self._kernel if self._kernel_holds else None
        if numbers is None and computed is not None:
            known, large = (x[_on_cpu(w)] for x in computed[1:])
            numbers = computed[0] if bool(known.all()) and not bool(large.any()) else None
        if numbers is None:
            return None
        n, rows = w._index()
        return RowState(numbers[n][:, rows])

    @torch.no_grad()
    def keep(self, w: Weights, state: RowState) -> None:
        if torch.compiler.is_compiling() or not readable(state.rest):
            return
        if self._computed is None:
            shape = w.energies.count, w.energies.queries
            with torch.inference_mode(False):  # else they could not be written to outside
                numbers = torch.zeros(shape, dtype=state.rest.dtype, device=state.rest.device)
                self._computed = numbers, torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        numbers, known, large = self._computed
        numbers[_grid(*w._index())] = state.rest
        large[_on_cpu(w)] = state.anchor is not None
        known[_on_cpu(w)] = True


def _grid(n: slice | Tensor, rows: slice | Tensor) -> tuple[slice | Tensor, slice | Tensor]:
    """The index of a rectangle of [n, T_q]."""
    return (n[:, None], rows) if isinstance(n, torch.Tensor) and isinstance(rows, torch.Tensor) else (n, rows)


def _on_cpu(w: Weights) -> tuple[slice | Tensor, slice | Tensor]:
    return _grid(*(span(x, torch.device("cpu")) for x in (w.entries, w.queries)))


def answers(
    weights: Weights,
    table: Table,
    asked: dict[str, Any],
    also: Sequence[Statistic] = (),
    products: tuple[Tensor, Tensor, bool] | None = None,
) -> dict[str, Tensor | Top]:
    """What is asked (None for what is not), with one leading dimension.

    On a GPU kernels answer what the table says they cover; the rest comes from one pass over blocks of rows. With
    `products` (values, directions, whether all values are finite) it is asked of contributions.
    """
    asked = {name: x for name, x in asked.items() if x is not None}
    on_gpu = weights.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    covered = (
        {} if also or weights.terms or not on_gpu else {name: x for name, x in asked.items() if table[name].kernel(x)}
    )
    results = (kernels.answers(weights, covered, products) if covered else None) or {}
    kind = weights.precision
    if products is not None:
        kind = torch.promote_types(kind, torch.promote_types(products[0].dtype, products[1].dtype))
    shape = statistics.Shape(len(weights.entries), len(weights.queries), weights.keys, kind, weights.device)
    own = {name: table[name].of_blocks(shape, x) for name, x in asked.items() if name not in results}
    every: list[Statistic] = [*own.values(), *also]
    least = asked.get("top") or 1
    for block in blocks(weights, "entropy" in own, least, from_first=bool(also)) if every else ():
        if products is not None:
            block = block._replace(w=contributed(block, *products))
        for statistic in every:
            statistic.add(block)
    return results | {name: statistic.result for name, statistic in own.items()}


def contributed(block: Block, v: Tensor, g: Tensor, finite: bool) -> Tensor:
    """C_ij = w_ij (g_i · v_j) of a block of weights."""
    kind = torch.promote_types(block.w.dtype, torch.promote_types(v.dtype, g.dtype))
    with exact(v.device):
        c = (g[block.n, block.rows].to(kind) @ v[block.n, block.cols].to(kind).mT).mul_(block.w)
    # A key of weight 0 contributes 0, also if its value is NaN or ∞, as padding may be.
    return c if finite else c.masked_fill_(block.w == 0, 0)
