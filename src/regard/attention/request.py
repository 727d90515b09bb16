"""Request: the checked arguments of one call of `attend`, and who listens to it.

Sequences of different lengths in one batch: nested tensors of layout torch.jagged, or packed with their lengths.

Each sequence is padded to the longest, the filling is masked, and the outputs of the filling are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .blocks import AUTOCAST, check_device, traced
from .energy_matrix import EnergyMatrix, clear_hidden_keys, split
from .masks import Dense, Mask, MaskMod, padding
from .modifiers import Modifier
from .normalizers import FunctionNormalizer, Normalizer, Softmax
from .part import takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    from .energies import Energy, EnergyForm
    from .masks import MaskFunction

    AnyMask = Mask | Tensor | MaskFunction | None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to compute: z = normalize(energies) · v."""

    energies: EnergyMatrix
    v: Tensor
    normalize: Normalizer
    dropout: float
    weights: bool
    """Whether the row state is returned beside the output."""
    vector: bool = False
    """Whether the query was one vector [D], so that the output is one, too."""

    def tensors(self) -> list[Tensor]:
        """What the output may be differentiated by: projected queries and keys, values, and learned tensors."""
        return [self.energies.a, self.energies.b, self.v, *self.energies.learned(), *self.normalize.tensors()]

    def references(self) -> list[Tensor]:
        """What the output depends on beside `tensors`, and must not change before a backward that computes it again."""
        return [*self.energies.references(), *self.normalize.function_tensors()]


def make_request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    energy: Energy | Callable[[Tensor, Tensor], Tensor],
    normalize: Normalizer | Callable[..., Tensor],
    mask: Mask | Tensor | MaskFunction | None,
    dropout: float,
    weights: bool,
) -> Request:
    """Check all that shapes, types and devices can tell, and split the energy into projections and form."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        types = ", ".join(f"{n} is {type(x).__name__}" for n, x in (("q", q), ("k", k), ("v", v)))
        raise TypeError(f"attend takes tensors: {types}")
    if q.device.type in AUTOCAST and torch.is_autocast_enabled(q.device.type):
        kind = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(kind) if x.dtype in _LOWERED else x for x in (q, k, v))
    if not (q.dtype == k.dtype == v.dtype and q.dtype in _FLOATS):
        types = f"q is {q.dtype}, k is {k.dtype}, v is {v.dtype}"
        if not all(x.dtype in _FLOATS for x in (q, k, v)):
            raise TypeError(f"attend needs float16, bfloat16, float32 or float64: {types}. Convert with .float()")
        raise TypeError(f"attend needs q, k and v of one dtype: {types}")
    if not q.device == k.device == v.device:
        raise ValueError(f"attend needs q, k and v on one device: q is on {q.device}, k on {k.device}, v on {v.device}")
    vector = q.dim() == 1 and k.dim() > 1 and v.dim() > 1
    if vector:
        q = q[None]
    if q.dim() < 2 or k.dim() < 2 or v.dim() < 2:
        raise ValueError(f"attend needs at least [T, D]: {_shapes(q, k, v)}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"every key needs a value: k has length {k.shape[-2]}, v has length {v.shape[-2]}; {_shapes(q, k, v)}"
        )
    batch, groups = _batch(q, k, v)
    if isinstance(energy, type) or not callable(energy):
        raise TypeError(f"energy is {_name(energy)}; expected an energy such as ScaledDot() or a function of (q, k)")
    if isinstance(energy, Modifier):
        raise TypeError(f"{energy!r} modifies an energy; wrap one: Modified(ScaledDot(), {type(energy).__name__}(…))")
    check = getattr(energy, "check", None)
    if check is not None:
        check(q.shape[-1], k.shape[-1])
    if isinstance(energy, nn.Module):
        for parameter in energy.parameters():
            if parameter.device != q.device:
                check_device(f"{type(energy).__name__}'s parameters", parameter, q.device)
    if not isinstance(normalize, Normalizer):
        normalize = _function_normalizer(normalize)
    normalize.check(batch, q.device)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is a probability, 0 ≤ dropout < 1; got {dropout}")
    if isinstance(mask, Tensor):
        mask = Dense(mask)
    elif callable(mask) and not isinstance(mask, Mask | type) and takes(mask, 4):
        mask = MaskMod(mask)
    if isinstance(mask, Mask):
        mask = mask.resolve(q.shape[-2], k.shape[-2])
        mask.check(batch, q.shape[-2], k.shape[-2])
    elif mask is not None:
        raise TypeError(
            f"mask is {_name(mask)}; expected a mask such as causal(), a boolean tensor, True where seen, or a "
            "function of (b, h, q_idx, kv_idx)"
        )
    modifiers = getattr(energy, "modifiers", ())
    for modifier in modifiers:
        modifier.check(batch, q.shape[-2], k.shape[-2])
    if mask is not None:
        # Before keys are projected: parameters get gradients from all of them.
        k, v = clear_hidden_keys(mask, batch, groups, q.shape[-2], k, v)
    a, b, form = split(energy, q, k)
    return Request(EnergyMatrix(a, b, form, batch, modifiers, mask, groups), v, normalize, dropout, weights, vector)


_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})


def _batch(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[int, ...], int]:
    """The leading shape, and how many query heads share one key head."""
    lead_q, lead_k, lead_v = q.shape[:-2], k.shape[:-2], v.shape[:-2]
    if lead_q == lead_k == lead_v:
        return tuple(lead_q), 1
    groups = 1
    # Heads are dimension -3 of at least four: with three it is a batch, and a batch that differs is a mistake.
    if min(q.dim(), k.dim(), v.dim()) >= 4 and lead_k[-1] == lead_v[-1] and 1 < lead_k[-1] < lead_q[-1]:
        if lead_q[-1] % lead_k[-1]:
            raise ValueError(
                f"{lead_q[-1]} query heads cannot share {lead_k[-1]} key/value heads evenly; {_shapes(q, k, v)}"
            )
        groups = lead_q[-1] // lead_k[-1]
        lead_k = torch.Size((*lead_k[:-1], lead_q[-1]))
        lead_v = torch.Size((*lead_v[:-1], lead_q[-1]))
    try:
        return tuple(torch.broadcast_shapes(lead_q, lead_k, lead_v)), groups
    except RuntimeError:
        raise ValueError(
            f"the leading dimensions of q, k and v do not broadcast: {_shapes(q, k, v)}. To share key/value heads "
            "among more query heads, give [B, heads, T, D]"
        ) from None


def _function_normalizer(normalize: object) -> Normalizer:
    if isinstance(normalize, type) or not callable(normalize) or not (takes(normalize, 1) or takes(normalize, 2)):
        raise TypeError(
            f"normalize is {_name(normalize)}; expected a normalizer such as Softmax() or Sparsemax(), or a "
            "function of (energies) or (energies, mask)"
        )
    return FunctionNormalizer(normalize)


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return (
        f"given q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
        "expected q [..., T_q, D_q] or [D_q], k [..., T_k, D_k], v [..., T_k, D_v]"
    )


def _name(x: object) -> str:
    if isinstance(x, type):
        return f"the class {x.__name__}, not an instance of it"
    if isinstance(x, FunctionType):
        return f"the function {x.__name__} itself (call it: {x.__name__}(…))"
    return type(x).__name__


if TYPE_CHECKING:
    Listener = Callable[[Request, Tensor, Tensor | None, bool], Tensor]
    """Gets a request, its output, the row state, and whether the caller goes on with the output that it returns."""

listeners: list[Listener] = []


def notify(request: Request, output: Tensor, state: Tensor | None, *, replaceable: bool = True) -> Tensor:
    """Pass a request and its result to every listener; not inside torch.compile and torch.func, which only trace.

    Returns the output, which a listener may have replaced. A caller that goes on with its own output says
    `replaceable=False`.
    """
    if listeners and not traced():
        for listener in tuple(listeners):
            output = listener(request, output, state, replaceable)
    return output


def notify_step(
    a: Float[Tensor, "*batch q d"],
    b: Float[Tensor, "*batch k d"],
    form: EnergyForm,
    v: Float[Tensor, "*batch k d_v"],
    output: Float[Tensor, "*batch q d_v"],
    *,
    mask: Mask | None = None,
    normalize: Normalizer | None = None,
    state: Float[Tensor, "*batch q"] | None = None,
) -> None:
    """`notify` for one step of a recurrent loop, from projected queries and keys; softmax is the default."""
    energies = EnergyMatrix(a, b, form, tuple(a.shape[:-2]), (), mask)
    notify(Request(energies, v, normalize or Softmax(), 0.0, weights=True), output, state, replaceable=False)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The vectors of all sequences, and where each sequence lies among them."""

    values: Float[Tensor, "total *heads d"]
    offsets: Int[Tensor, " b_and_one"]
    lengths: Int[Tensor, " b"]
    gaps: bool = False
    """Whether there may be values between the sequences that belong to none."""

    @classmethod
    def of(cls, x: Any, name: str) -> Sequences:
        """Those of a nested tensor [B, T, D] or [B, heads, T, D]."""
        if not x.is_nested:
            raise ValueError(f"q, k and v are nested together or not at all; {name} is not nested")
        if x.layout != torch.jagged:
            raise ValueError(
                f"{name} is a nested tensor of layout {x.layout}; make it with layout=torch.jagged, for example by "
                "torch.nested.nested_tensor(list, layout=torch.jagged)"
            )
        ragged = [axis for axis, size in enumerate(x.shape) if not isinstance(size, int)]
        if ragged != [x.dim() - 2]:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; expected [B, T, D] or [B, heads, T, D] with sequences of different "
                "lengths in dimension T. From [B, T, heads, D] use .transpose(1, 2)"
            )
        values, offsets, lengths = x.values(), x.offsets(), x.lengths()
        if values.dim() == 3:
            values = values.transpose(0, 1)  # [heads, total, D] → [total, heads, D]
        return cls(values, offsets, offsets.diff() if lengths is None else lengths, lengths is not None)

    @property
    def longest(self) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0

    def same_lengths(self, other: Sequences) -> bool:
        return self.offsets is other.offsets or torch.equal(self.lengths, other.lengths)

    def index(self) -> tuple[Tensor, Tensor, Tensor]:
        """For every vector its sequence, its position there, and its place among the values."""
        device = self.values.device
        sequence = torch.repeat_interleave(torch.arange(len(self.lengths), device=device), self.lengths)
        first = self.lengths.cumsum(0) - self.lengths  # of each sequence, where they follow one another without gaps
        position = torch.arange(len(sequence), device=device) - first[sequence]
        return sequence, position, self.offsets[:-1][sequence] + position

    def padded(self, index: tuple[Tensor, Tensor, Tensor], longest: int) -> Float[Tensor, "b *heads longest d"]:
        """[B, T, D] or [B, heads, T, D], zeros after the end of each sequence."""
        sequence, position, place = index
        full = self.values.new_zeros(len(self.lengths), longest, *self.values.shape[1:])
        full = full.index_put((sequence, position), self.values[place])
        return full.transpose(1, 2) if self.values.dim() == 3 else full

    def nested(self, values: Float[Tensor, "total *heads d_v"]) -> Tensor:
        """The nested tensor of these lengths, from values without gaps."""
        # The same offsets where possible: by them PyTorch knows that q and the output have the same lengths.
        offsets = self.offsets
        if self.gaps:
            offsets = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        return nested.transpose(1, 2) if values.dim() == 3 else nested


@dataclass(frozen=True, slots=True, eq=False)
class JaggedBatch:
    """The sequences of q, k and v."""

    q: Sequences
    k: Sequences
    v: Sequences

    def __post_init__(self) -> None:
        if len(self.q.lengths) != len(self.k.lengths):
            raise ValueError(f"q has {len(self.q.lengths)} sequences and k {len(self.k.lengths)}")
        if not self.k.same_lengths(self.v):
            raise ValueError("every key needs a value: the sequences of k and v have different lengths")

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> JaggedBatch:
        return cls(Sequences.of(q, "q"), Sequences.of(k, "k"), Sequences.of(v, "v"))

    def padded(
        self, mask: AnyMask, every_row: bool
    ) -> tuple[Tensor, Tensor, Tensor, Mask | MaskFunction | None, Callable[[Tensor], Tensor]]:
        """q, k, v and mask with padding, and the function from a padded output to the values of all sequences.

        With `every_row` the rows of the filling see no key; without, their outputs are only dropped.
        """
        index_q, index_k = self.q.index(), self.k.index()
        index_v = self.v.index() if self.k.gaps or self.v.gaps else index_k
        longest_q, longest_k = max(1, self.q.longest), max(1, self.k.longest)
        q, k = self.q.padded(index_q, longest_q), self.k.padded(index_k, longest_k)
        v = self.v.padded(index_v, longest_k)
        sequence, position, _ = index_q

        def values(output: Float[Tensor, "b *heads longest d"]) -> Float[Tensor, "total *heads d"]:
            return (output.transpose(1, 2) if output.dim() == 4 else output)[sequence, position]

        return q, k, v, self._mask(mask, every_row), values

    def _mask(self, mask: AnyMask, every_row: bool) -> Mask | MaskFunction | None:
        if isinstance(mask, Tensor):
            mask = Dense(mask)
        if isinstance(mask, Mask):
            mask = mask.resolve(self.q.lengths, self.k.lengths)
            # No query of a sequence sees past its own position, so none sees the filling; SDPA has a flag for that.
            before = mask.causal_offset is not None and mask.causal_offset <= 0
            if before and not every_row and self.q.same_lengths(self.k):
                return mask
        real = padding(self.k.lengths, queries=self.q.lengths) if every_row else padding(self.k.lengths)
        return real if mask is None else real & mask
