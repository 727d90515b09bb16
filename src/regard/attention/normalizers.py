"""Normalizers: one row of energies in, one distribution over the keys out.

Each leaves one number per row, its *state*, after which any weight is a pointwise function of its energy:
`weigh(e_ij, state_i)`. That is how `Weights` answers without the matrix. A row of large energies needs two numbers
(`RowState`): its largest energy, and the state of the energies relative to that.

A masked key has the energy `absent`, chosen so that its weight is zero; a row with every key masked gives zeros.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from .parts import Part, argument_name, brief, check_device, depends_on_place, fits, positive, readable, takes, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .parts import Index

ONE_NUMBER = 256.0
"""Up to this size one float32 per row is enough. It is rounded by at most 2⁻²⁴ of its size, 1.5e-5, and a softmax's
weights are then wrong by that share. Energies of this size are themselves rounded as much."""


class RowState(NamedTuple):
    """What `Weights` keeps of each row."""

    rest: Float[Tensor, "*batch"]
    """The normalizer's state: of the row's energies, or of those relative to `anchor`."""
    anchor: Float[Tensor, "*batch"] | None = None
    """The largest energy of each row; None where `rest` alone holds every row."""

    def map(self, function: Callable[[Tensor], Tensor]) -> RowState:
        return RowState(function(self.rest), None if self.anchor is None else function(self.anchor))


class Normalizer(Part):
    """A subclass gives `__call__`, `state` and `weigh`."""

    absent: float = -torch.inf
    """The energy of a masked key."""
    temperature: float = 1.0
    """What a softmax divides energies by."""
    samples: bool = False
    """Whether it draws random numbers now."""
    sink: float | Tensor | None = None
    """The energy of a softmax's sink."""
    nonnegative: bool = True
    """Whether no weight is less than 0, so that masked keys, which weigh 0, can be left out of a maximum."""
    pointwise: bool = True
    """Whether `weigh` takes any columns of a row; else it takes all of them."""
    selects_key: bool = False
    """Whether its state is the index of one key per row, −1 for none."""

    def check(self, batch: tuple[int, ...], device: torch.device) -> None:
        """Raise ValueError where it cannot be applied to energies of this leading shape."""

    def check_rows(self, rows: Callable[[], Float[Tensor, "*batch q k"]]) -> None:
        """Raise ValueError where the weights of a row of energies depend on the rows beside it, which blocks change."""

    def of_block(self, batch: tuple[int, ...], n: Index) -> Normalizer:
        """The normalizer of some matrices, counted over the flattened batch, where it differs among them."""
        return self

    def __call__(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        """The weights of whole rows, differentiable: the formula."""
        raise NotImplementedError

    def state(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, " *batch"]:
        """The one number per row from which `weigh` gives any weight of that row."""
        raise NotImplementedError

    def both(self, e: Float[Tensor, "*batch k"]) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, " *batch"]]:
        """Weights and state of the same rows (of the same sample, where it samples)."""
        return self(e), self.state(e)

    def weigh(
        self, e: Float[Tensor, "*batch k"], state: Float[Tensor, "*batch 1"], j: Int[Tensor, " k"]
    ) -> Float[Tensor, "*batch k"]:
        """The weights of the columns `j` of rows with this state."""
        raise NotImplementedError

    def logsumexp(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"] | None:
        """The logarithm of a softmax's denominator, differentiable, −∞ for an empty row; None for other normalizers."""
        return None

    # Rows of energies of any size. The energies may be changed

    def row_state(self, e: Float[Tensor, "*batch k"]) -> RowState:
        """The state of rows of any size."""
        return RowState(self.state(e))

    def one_number(self, state: RowState) -> Float[Tensor, "*batch"]:
        """Anchor and rest joined: the state of the energies as they are."""
        return state.rest

    def joined(self, state: RowState) -> RowState:
        """The same without an anchor, where one number is enough for every row."""
        return state

    def holds(self, state: Float[Tensor, "*batch"]) -> bool:
        """Whether this one number is enough for every row; assumed where it cannot be read."""
        return True

    def weigh_rows(self, e: Float[Tensor, "*batch k"], state: RowState, j: Int[Tensor, " k"]) -> Tensor:
        """`weigh` for rows of any size."""
        return self.weigh(e, state.rest[..., None], j)

    def log_weigh_rows(self, e: Float[Tensor, "*batch k"], state: RowState) -> Tensor | None:
        """log w, for rows of any size; None, with the energies as they were, where the logarithm of w is as cheap."""
        return None


class Stateless(Normalizer):
    """A normalizer whose weights need nothing of their row but energies: their own, or all where not `pointwise`."""

    def state(self, e: Tensor) -> Tensor:
        return e.new_zeros(e.shape[:-1])

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self(e)


class Anchored(Normalizer):
    """A normalizer of energies relative to an anchor, one energy of each row, in which no large numbers cancel.

    A subclass of a known one may compute something else, and is given the energies as they are.
    """

    def anchor(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
        """The energy that those of each row are taken relative to."""
        raise NotImplementedError

    def relative_(self, e: Float[Tensor, "*batch k"], anchor: Float[Tensor, "*batch 1"]) -> Tensor:
        """Energies relative to the anchor of their row, in place, no larger than those of the anchor itself.

        A block of other keys may round an energy otherwise than the block its row state comes from, and the
        difference may be large where energies are.
        """
        raise NotImplementedError

    def rest(self, e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
        """The state of relative energies."""
        raise NotImplementedError

    def is_enough(self, state: Float[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
        """Of which rows this one number is enough: a logarithm that is small, +∞ for an empty row."""
        return ~(state.abs() > ONE_NUMBER) | (state == torch.inf)  # of a row of NaN all numbers are NaN

    def state(self, e: Tensor) -> Tensor:
        return self.one_number(self.moved(e.detach().clone()))

    def moved(self, e: Tensor) -> RowState:
        """The anchor and the rest. The energies are changed."""
        anchor = self.anchor(e)
        return RowState(self.rest(self.relative_(e, anchor)), anchor.squeeze(-1))

    def row_state(self, e: Tensor) -> RowState:
        return RowState(self.state(e)) if self.opaque else self.moved(e)

    def joined(self, state: RowState) -> RowState:
        if state.anchor is None:
            return state
        one = self.one_number(state)
        return RowState(one) if self.holds(one) else state

    def holds(self, state: Tensor) -> bool:
        return not readable(state) or bool(self.is_enough(state).all())

    def weigh_rows(self, e: Tensor, state: RowState, j: Tensor) -> Tensor:
        if state.anchor is not None:
            e = self.relative_(e, state.anchor[..., None])
        return self.weigh(e, state.rest[..., None], j)


class ShiftInvariant(Anchored):
    """normalize(e + c) = normalize(e): a row is moved so that its largest energy is 0."""

    def scaled(self, e: Tensor) -> Tensor:
        """The energies times what the formula multiplies them by."""
        raise NotImplementedError

    def anchor(self, e: Tensor) -> Tensor:
        return largest(e)

    def relative_(self, e: Tensor, anchor: Tensor) -> Tensor:
        return e.sub_(anchor).clamp_(max=0)

    def one_number(self, state: RowState) -> Tensor:
        assert state.anchor is not None
        moved = self.scaled(state.anchor)
        return state.rest + moved.masked_fill(moved == torch.inf, -torch.inf)  # +∞ would be an empty row


def largest(e: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
    """The largest energy of each row, without a graph; 0 for a row whose every key is masked."""
    if not e.shape[-1]:
        return e.new_zeros(*e.shape[:-1], 1)
    top = e.detach().amax(dim=-1, keepdim=True)
    return top.masked_fill(top == -torch.inf, 0)


def empty_rows(e: Float[Tensor, "*batch k"]) -> Tensor:
    """Rows whose every key is masked, [*batch, 1]."""
    return (e == -torch.inf).all(dim=-1, keepdim=True)


def mark_empty(total: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """A log-sum-exp as a row state: +∞ instead of −∞ for an empty row, and −∞, which is none, where it overflowed."""
    return torch.where(total.isinf(), -total, total)


@dataclass(frozen=True, slots=True, eq=False)
class Softmax(ShiftInvariant):
    """w_ij = exp(e_ij / T) / Σ_j exp(e_ij / T). State: log Σ_j exp(e_ij / T), +∞ for an empty row.

    A `sink` is the energy s of one more key, which takes its share of every row and has the value 0:
    w_ij = exp(e_ij / T) / (exp(s / T) + Σ_j exp(e_ij / T)). It is a number (0 gives "softmax1", Miller 2023) or a
    tensor that broadcasts to the leading dimensions: [heads] has one per head (gpt-oss; Agarwal et al. 2025). A learned
    one gets its gradient: make `Softmax(sink=self.sink)` where it is used.
    """

    temperature: float = 1.0
    sink: float | Tensor | None = None
    kernel = "softmax"
    opaque = False

    def __post_init__(self) -> None:
        positive("Softmax's temperature", self.temperature, "; Hard() is the limit 0")
        if isinstance(self.sink, torch.Tensor):
            if not self.sink.is_floating_point():
                raise TypeError(f"Softmax's sink is the energy of a key, a float, got a tensor of {self.sink.dtype}")
        elif self.sink is not None and not isinstance(self.sink, int | float):
            raise TypeError(
                "Softmax's sink is a number or a tensor that broadcasts to the leading dimensions, such as [heads]; "
                f"got {type(self.sink).__name__}"
            )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Softmax)
        same = self.sink is other.sink  # tensors by identity: their numbers may be on a GPU
        if not isinstance(self.sink, torch.Tensor) and not isinstance(other.sink, torch.Tensor):
            same = self.sink == other.sink
        return same and self.temperature == other.temperature

    def __hash__(self) -> int:
        return hash((self.temperature, self.sink))

    def __repr__(self) -> str:
        sink = brief(self.sink) if isinstance(self.sink, torch.Tensor) else self.sink
        return f"Softmax(temperature={self.temperature}{'' if sink is None else f', sink={sink}'})"

    def settings(self) -> dict[str, Any]:
        # Most have no sink, and are described as before there was one.
        return {name: x for name, x in ShiftInvariant.settings(self).items() if name != "sink" or x is not None}

    def check(self, batch: tuple[int, ...], device: torch.device) -> None:
        if isinstance(self.sink, torch.Tensor):
            check_device("Softmax's sink", self.sink, device)
            if not fits(tuple(self.sink.shape), batch):
                raise ValueError(
                    f"Softmax's sink of shape {list(self.sink.shape)} does not broadcast to the leading shape "
                    f"{list(batch)}; for one per head give [heads]"
                )

    def of_block(self, batch: tuple[int, ...], n: Index) -> Normalizer:
        if not isinstance(self.sink, torch.Tensor):
            return self
        sink = self.sink.expand(batch).reshape(-1)[n]
        if type(self) is Softmax:
            return Softmax(self.temperature, sink)  # torch.compile cannot trace a copy
        part = copy(self)
        object.__setattr__(part, "sink", sink)  # it is frozen
        return part

    def __call__(self, e: Tensor) -> Tensor:
        if self.sink is not None:
            return Softmax(self.temperature)(self.with_sink(e))[..., :-1]
        empty = empty_rows(e)
        # Filled before the softmax, not only after it: NaN would come back through the gradient.
        e = e.masked_fill(empty, 0)
        if self.temperature != 1:
            e = self.scaled(e - largest(e))  # moved first: large energies would overflow
        return torch.softmax(e, dim=-1).masked_fill(empty, 0)

    def with_sink(self, e: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k_and_sink"]:
        """Rows of energies with the sink's as the last."""
        sink = torch.as_tensor(self.sink, dtype=e.dtype, device=e.device)
        if sink.dim():
            sink = sink[..., None, None]
        return torch.cat([e, sink.expand(*e.shape[:-1], 1)], dim=-1)

    def scaled(self, e: Tensor) -> Tensor:
        return e if self.temperature == 1 else e / self.temperature

    def moved(self, e: Tensor) -> RowState:
        return ShiftInvariant.moved(self, e if self.sink is None else self.with_sink(e))

    def state(self, e: Tensor) -> Tensor:
        if self.temperature == 1 and self.sink is None:  # the same in half the time
            return self.rest(e)
        return ShiftInvariant.state(self, e)

    def rest(self, e: Tensor) -> Tensor:
        return mark_empty(torch.logsumexp(self.scaled(e), dim=-1))

    def logsumexp(self, e: Tensor) -> Tensor | None:
        e = e if self.sink is None else self.with_sink(e)
        empty = empty_rows(e)
        return torch.logsumexp(self.scaled(e.masked_fill(empty, 0)), dim=-1).masked_fill(empty.squeeze(-1), -torch.inf)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return torch.exp(self.scaled(e) - state)

    def log_weigh_rows(self, e: Tensor, state: RowState) -> Tensor | None:
        if self.opaque:
            return None
        e = e if state.anchor is None else self.relative_(e, state.anchor[..., None])
        return (e if self.temperature == 1 else e.div_(self.temperature)).sub_(state.rest[..., None])


@dataclass(frozen=True, slots=True)
class Unnormalized(Stateless):
    """w_ij = e_ij: z_i = Σ_j energy(q_i, k_j) v_j. A masked key weighs 0.

    With `Exact` the values of all equal keys are added up. Weights may be negative or exceed one and do not sum to one.
    So of their statistics the entropy has no meaning (it is NaN where a weight is negative); the others do.
    """

    absent = 0.0
    nonnegative = False
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        return e


class Unchanged(Unnormalized):
    """w_ij = e_ij of energies that are weights already, of a matrix that is kept."""

    nonnegative = True
    opaque = False


@dataclass(frozen=True, slots=True)
class Sigmoid(Stateless):
    """w_ij = σ(e_ij + b): each key for itself (Ramapuram et al. 2024, who begin with b = −log T_k).

    Rows do not sum to one. A learned b is a `Bias` of the energies, which may differ among heads.
    """

    bias: float = 0.0
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        return torch.sigmoid(e + self.bias)


@dataclass(frozen=True, slots=True)
class StickBreaking(Stateless):
    """w_ij = σ(e_ij) Π_{k > j} (1 − σ(e_ik)): from the last key that a query sees to the first, each takes its share of
    what is left (Tan et al. 2025, who mask the query's own key, `causal(-1)`).

    Rows sum to one less what is left at the first key. Keys are in order, so that there are no positions.
    """

    opaque = False
    pointwise = False

    def __call__(self, e: Tensor) -> Tensor:
        left = torch.nn.functional.logsigmoid(-e)  # log(1 − σ(e)), 0 for a masked key
        after = torch.nn.functional.pad(left.flip(-1).cumsum(-1), (1, -1)).flip(-1)
        return torch.sigmoid(e) * after.exp()


@dataclass(frozen=True, slots=True)
class Softpick(Anchored):
    """w_ij = max(exp(e_ij) − 1, 0) / Σ_j |exp(e_ij) − 1| (Zuhri, Fuadi & Aji 2025).

    Energies ≤ 0 weigh nothing, but count in the sum: rows sum to at most one. State: the logarithm of the sum, +∞ for a
    row whose energies are all 0, which gives zeros (the authors add 1e-6 to the sum instead).
    """

    absent = 0.0
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        size = self._sizes(e, self.anchor(e))
        total = size.sum(dim=-1, keepdim=True)
        return size.where(e > 0, 0) / total.masked_fill(total == 0, 1)

    def anchor(self, e: Tensor) -> Tensor:
        return largest(e).clamp_min(0)

    def _sizes(self, e: Tensor, anchor: Tensor) -> Tensor:
        """|exp(e) − 1| / exp(anchor)"""
        return _distance_from_one(e) * (e.clamp_min(0) - anchor).clamp_max(0).exp()

    def moved(self, e: Tensor) -> RowState:
        anchor = self.anchor(e)
        return RowState(mark_empty(self._sizes(e, anchor).sum(dim=-1).log()), anchor.squeeze(-1))

    def one_number(self, state: RowState) -> Tensor:
        assert state.anchor is not None
        return state.rest + state.anchor

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self.weigh_rows(e, RowState(state.squeeze(-1)), j)

    def weigh_rows(self, e: Tensor, state: RowState, j: Tensor) -> Tensor:
        power = e.clamp_min(0)
        if state.anchor is not None:
            power = (power - state.anchor[..., None]).clamp_max(0)
        return _distance_from_one(e).where(e > 0, 0) * (power - state.rest[..., None]).exp()


def _distance_from_one(e: Tensor) -> Tensor:
    """|exp(e) − 1| / exp(max(e, 0)), with all digits for any energy."""
    return -torch.expm1(-e.abs())


@dataclass(frozen=True, slots=True)
class Proportional(Anchored):
    """w_ij = e_ij / Σ_j e_ij, for energies ≥ 0: the look-up family. State: the sum.

    A row whose energies are all zero (no key matches) gives zeros.
    """

    absent = 0.0
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        _check(e)
        e = e / _power_of_two(e)
        return self.weigh(e, e.sum(dim=-1, keepdim=True), e)

    def rest(self, e: Tensor) -> Tensor:
        _check(e)
        return e.sum(dim=-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        nothing = state == 0
        return (e / state.masked_fill(nothing, 1)).masked_fill(nothing, 0)

    def anchor(self, e: Tensor) -> Tensor:
        return _power_of_two(e)

    def relative_(self, e: Tensor, anchor: Tensor) -> Tensor:
        return e.div_(anchor)

    def one_number(self, state: RowState) -> Tensor:
        assert state.anchor is not None
        return state.rest * state.anchor

    def is_enough(self, state: Tensor) -> Tensor:
        return state.isfinite()


def _power_of_two(e: Tensor) -> Tensor:
    """One within a factor of 2 of the largest energy of each row: dividing by it rounds nothing, and no sum overflows.

    1 for a row of zeros, and for one that is not finite.
    """
    top = largest(e)
    _, exponent = torch.frexp(top)
    power = torch.ldexp(torch.ones_like(top), exponent - 1)
    return torch.where(top.isfinite() & (top > 0), power, 1)


def _check(e: Tensor) -> None:
    if readable(e) and bool((e < 0).any()):
        raise ValueError(f"Proportional needs energies ≥ 0, got {e.min().item():.4g}; use Softmax() for any energy")


_SOFTMAX = Softmax()


class Hard(nn.Module, Normalizer):
    """w_ij = 1 for one key per query (Xu et al. 2015, section 4.1).

    `Hard()` takes the best key; no gradient reaches the energies, since moving them a little changes nothing.
    With `gradient` it is a module with two modes: in evaluation the best key, in training one sampled from the
    softmax of the energies, whose gradient is
    - "straight-through": that of the softmax, as if the weights had been soft (Bengio, Léonard & Courville 2013);
    - "reinforce": none through the weights. `attend(..., weights=True)` gives `Weights.log_prob()`, the log
      probability of what was sampled, to be multiplied by a reward (Williams 1992).
    """

    opaque = False
    selects_key = True

    def __init__(self, gradient: Literal["straight-through", "reinforce"] | None = None) -> None:
        super().__init__()
        if gradient not in (None, "straight-through", "reinforce"):
            raise ValueError(f'Hard takes gradient="straight-through", "reinforce" or None, got {gradient!r}')
        self.gradient = gradient

    def arguments(self) -> dict[str, Any]:
        return {}  # a trace has the keys already chosen; how gradients went is not part of it

    @property
    def samples(self) -> bool:  # type: ignore[override]
        return self.gradient is not None and self.training

    def forward(self, e: Tensor) -> Tensor:
        return self.both(e)[0]

    def both(self, e: Tensor) -> tuple[Tensor, Tensor]:
        selected = self.state(e)
        weights = self.weigh(e, selected[..., None], torch.arange(e.shape[-1], device=e.device))
        if self.samples and self.gradient == "straight-through":
            soft = _SOFTMAX(e)
            weights = weights + (soft - soft.detach())
        return weights, selected

    # nn.Module's own __call__, not Normalizer's: hooks work, and `forward` is the formula.
    __call__ = nn.Module.__call__

    def state(self, e: Tensor) -> Tensor:
        """The chosen index: a fresh sample at every call in training mode, the first best key otherwise."""
        x = e.detach()
        if not x.shape[-1]:
            return torch.full(x.shape[:-1], -1, device=x.device)  # no key to choose
        if self.samples:
            # The Gumbel-max trick: e_j − log(E_j), E_j ~ Exp(1), is largest with probability softmax(e)_j.
            x = x - torch.empty_like(x).exponential_().log()
        return x.argmax(dim=-1).masked_fill(empty_rows(e).squeeze(-1), -1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return (j == state).to(e.dtype)

    def extra_repr(self) -> str:
        return "" if self.gradient is None else f"gradient={self.gradient!r}"


class _Thresholded(ShiftInvariant):
    """w_ij = max(x_ij − τ_i, 0)^p of scaled energies x, and τ such that the row sums to one."""

    def scaled(self, e: Tensor) -> Tensor:
        return e

    def threshold(self, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch 1"]:
        """τ of rows whose largest x is 0."""
        raise NotImplementedError

    def raised(self, excess: Tensor) -> Tensor:
        """max(excess, 0)^p: clamped, not masked, so that a NaN stays one."""
        return excess.clamp_min(0)

    def __call__(self, e: Tensor) -> Tensor:
        kind, empty = e.dtype, empty_rows(e)
        e = e.masked_fill(empty, 0).to(torch.promote_types(kind, torch.float32))  # float16 has no 70,000, the rank
        # Moving a row moves its τ along: near zero, where floats are dense, nothing is lost at any energy. Before it is
        # scaled, since large energies would overflow.
        return self.weights(self.scaled(e - largest(e))).masked_fill(empty, 0).to(kind)

    def weights(self, x: Tensor) -> Tensor:
        """Rows of weights from rows of scaled energies, differentiable."""
        return self.raised(x - self.threshold(x))

    def rest(self, e: Tensor) -> Tensor:
        empty = empty_rows(e)
        return self.threshold(self.scaled(e.masked_fill(empty, 0))).masked_fill(empty, torch.inf).squeeze(-1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self.raised(self.scaled(e) - state)


@dataclass(frozen=True, slots=True)
class Sparsemax(_Thresholded):
    """w_i = argmin over the simplex of |p − e_i|² = max(e_ij − τ_i, 0) (Martins & Astudillo 2016, algorithm 1)."""

    opaque = False

    def threshold(self, x: Tensor) -> Tensor:
        if not x.shape[-1]:
            return x.new_zeros(*x.shape[:-1], 1)
        with torch.no_grad():
            ordered, _ = x.sort(dim=-1, descending=True)
            rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
            kept = 1 + rank * ordered > ordered.cumsum(dim=-1)
            last = kept.sum(dim=-1, keepdim=True)  # the support is the first `last` keys in order
            support = x >= ordered.gather(-1, (last - 1).clamp_min(0))
        # With the support known, τ is linear in the energies, so autograd gives the exact gradient.
        inside = x.where(support, 0)
        return (inside.sum(dim=-1, keepdim=True) - 1) / support.sum(dim=-1, keepdim=True)


SOFTEST = 1.01
"""The least α of `Entmax`."""


@dataclass(frozen=True, slots=True)
class Entmax(_Thresholded):
    """w_ij = max((α − 1) e_ij − τ_i, 0)^(1/(α−1)) (Peters, Niculae & Martins 2019, eq. 8).

    α → 1 is softmax, α = 2 sparsemax. τ is found by bisection to the last bit, for any α ≥ 1.01. A tensor of one number
    gets a gradient (Correia, Niculae & Martins 2019, proposition 1): make `Entmax(self.alpha)` where it is used.
    """

    alpha: float | Tensor = 1.5
    opaque = False

    def __post_init__(self) -> None:
        if isinstance(self.alpha, torch.Tensor):
            if self.alpha.dim() or not self.alpha.is_floating_point():
                raise TypeError(
                    f"Entmax's alpha is one number, got {self.alpha.dtype} of shape {list(self.alpha.shape)}; "
                    "expected a float or a floating-point tensor of shape []"
                )
            if not readable(self.alpha):
                return
        # Energies are multiplied by α − 1, a weight is a power of 1/(α − 1): near 1 nothing of a float32 is left.
        if not self.alpha >= SOFTEST:
            raise ValueError(f"Entmax needs alpha ≥ {SOFTEST}, got {self.alpha}; alpha = 1 is Softmax()")

    def scaled(self, e: Tensor) -> Tensor:
        return e * (self.alpha - 1)

    def raised(self, excess: Tensor) -> Tensor:
        return excess.clamp_min(0).pow(1 / (self.alpha - 1))

    def weights(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            threshold = self.threshold(x.detach())
            support = x > threshold
        # Two steps of Newton's method for Σ_j w_ij = 1. They leave τ where the bisection found it, and give it its
        # derivatives: of two orders, by x and by α alike (Correia, Niculae & Martins 2019, proposition 1).
        for _ in range(2):
            excess = (x - threshold).where(support, 1)
            w = excess.pow(1 / (self.alpha - 1)).where(support, 0)
            slope = excess.pow((2 - self.alpha) / (self.alpha - 1)).where(support, 0) / (self.alpha - 1)
            threshold = threshold + (w.sum(dim=-1, keepdim=True) - 1) / slope.sum(dim=-1, keepdim=True)
        w = (x - threshold).where(support, 1).clamp_min(0).pow(1 / (self.alpha - 1)).where(support, 0)
        return w / w.sum(dim=-1, keepdim=True)  # what rounding left over

    def threshold(self, x: Tensor) -> Tensor:
        # τ = −s with 1 ≥ s ≥ T^(1−α): Σ ≥ 1 at the first, ≤ 1 at the other. Bisected by the geometric mean, since among
        # many keys s is small, and its digits are the weights'.
        keys, tiny = max(1, x.shape[-1]), torch.finfo(x.dtype).tiny
        high: Tensor = x.new_ones(*x.shape[:-1], 1)
        low: Tensor = (high * keys ** (1 - self.alpha)).clamp_min(tiny)
        span = -math.log(tiny)  # of the logarithm of s; a learned α may not be readable
        if not isinstance(self.alpha, torch.Tensor):
            span = min(span, (self.alpha - 1) * math.log(keys))
        bits = 53 if x.dtype == torch.float64 else 24
        for _ in range(bits + 2 + math.ceil(math.log2(1 + span))):
            middle = high.sqrt() * low.sqrt()
            heavy = self.raised(x + middle).sum(dim=-1, keepdim=True) >= 1
            high, low = middle.where(heavy, high), low.where(heavy, middle)
        s: Tensor = high.sqrt() * low.sqrt()
        return -s


MASKED = -1e30
"""The energy of a masked key where a function gets no mask. With −∞ the gradient of a learned factor would be 0 · ∞."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionNormalizer(Stateless):
    """w_i = function(e_i) or function(e_i, mask_i), for rows of all keys: [..., T_k] in, [..., T_k] out.

    A function of the energies alone is given −10³⁰ for masked keys. A function of energies and mask is given 0 for
    them, and the mask says which they are (True may be seen). Their weights are set to 0 in either case. A row in which
    every key is masked is given as zeros, so that nothing divides by zero, and its weights are set to 0.
    """

    function: Callable[..., Tensor]
    nonnegative = False
    pointwise = False

    def __call__(self, e: Tensor) -> Tensor:
        if not e.shape[-1]:
            return e
        masked = e == -torch.inf
        # A second argument that may be left out is the mask only if it is called so: F.softmax has `dim` there.
        if not takes(self.function, 1) or argument_name(self.function, 1) == "mask":
            arguments: tuple[Tensor, ...] = e.masked_fill(masked, 0), ~masked
        else:
            arguments = (e.masked_fill(masked, MASKED).masked_fill(empty_rows(e), 0),)
        w = self.function(*arguments)
        if not isinstance(w, torch.Tensor) or w.shape != e.shape:
            shape = list(w.shape) if isinstance(w, torch.Tensor) else type(w).__name__
            raise ValueError(f"normalize gave {shape}; expected weights of the energies' shape, {list(e.shape)}")
        return w.to(e.dtype).masked_fill(masked, 0)

    def check_rows(self, rows: Callable[[], Tensor]) -> None:
        if traced():
            return
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            e = rows()
            if not readable(e) or e.shape[-2] < 2 or not e.numel():
                return
            e = e.detach()[(0,) * (e.dim() - 2)][:2]
            beside = self(e)[1]
            alone, again = (self(e[1:])[0] for _ in range(2))
        if depends_on_place(beside, alone, again):
            raise ValueError(
                "this normalizer gives one row of energies different weights beside different rows; it must work along "
                "the last dimension, the keys, alone (dim=-1)"
            )
