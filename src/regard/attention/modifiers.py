"""Score modifiers: functions of an energy and its indices, applied before the normalizer.

    Modified(ScaledDot(), SoftCap(50), Alibi(8))      is applied from left to right

A modifier is called with a block of energies and the indices of that block, so the whole matrix never has to exist:
`batch` is one index tensor per leading dimension, `i` the queries, `j` the keys, all broadcastable.

Positions: where queries and keys stand, told to attention in one of three ways.

    x + SinusoidalPositions(d)(x)                   added to the vectors (`regard.layers`: sinusoidal, learned)
    Rotary(ScaledDot())                             queries and keys are rotated before they are compared
    Modified(ScaledDot(), Alibi(8))                 a number is added to each energy (ALiBi, T5's relative bias)

Each draws itself: `print(Rotary())`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from .energies import ScaledDot
from .energy_matrix import EnergyMatrix, split
from .parts import (
    Part,
    at_each_index,
    batch_and_head,
    check_batch_and_head,
    check_device,
    fits,
    pick,
    positive,
    readable,
    takes,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from .energies import Energy, EnergyForm
    from .parts import Batch

    Layout = Literal["half", "interleaved"]


class Modifier(Part):
    """A function of energies and their indices. A subclass gives `__call__`."""

    additive: bool = False
    """Whether it adds something that does not depend on the energy."""

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        """Raise ValueError where it cannot be applied to energies of this shape."""

    def to_device(self, device: torch.device) -> Modifier:
        """The same with tensors of its own making on this device. Those it was given have to be there already."""
        return self

    @property
    def added(self) -> Tensor | None:
        """The tensor that it adds, broadcastable to [..., T_q, T_k]; None for any other modifier."""
        return None

    def whole(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        """The same where the indices are those of the whole matrix."""
        return self(e, batch, i, j)

    def continues(self, first: Modifier, queries: int) -> bool:
        """Whether this is `first` again in a later step of a generation, `queries` positions on."""
        return False

    def kernel_arguments(self) -> dict[str, Any]:
        """What a kernel that knows it is given: "cap", or "slopes" and "offset"."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Bias(Modifier):
    """e_ij + bias_ij, with `bias` broadcastable to `[..., T_q, T_k]` (Shaw 2018; T5's relative positions)."""

    bias: Tensor
    trace_key = "bias"
    opaque = False
    additive = True

    def __post_init__(self) -> None:
        if not isinstance(self.bias, torch.Tensor) or not self.bias.is_floating_point():
            raise TypeError(
                f"Bias takes a tensor of floats, got {getattr(self.bias, 'dtype', type(self.bias).__name__)}"
            )

    def __repr__(self) -> str:
        return f"Bias({list(self.bias.shape)})"

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        full = (*batch, queries, keys)
        shape = tuple(self.bias.shape)
        if self.bias.dim() < 2 or not fits(shape, full):
            raise ValueError(f"Bias of shape {list(shape)} does not broadcast to energies {list(full)}")

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return e + pick(self.bias, batch, i, j).to(e.dtype)

    @property
    def added(self) -> Tensor | None:
        return self.bias

    def whole(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        check_device("the bias", self.bias, e.device)
        return e + self.bias.to(e.dtype)  # broadcasting is cheaper than indexing

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Bias:
        return Bias(function(self.bias))  # torch.compile cannot trace a copy

    def continues(self, first: Modifier, queries: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SoftCap(Modifier):
    """c · tanh(e_ij / c): energies stay within ±c (Bello et al. 2017; Gemma 2)."""

    cap: float
    kernel = trace_key = "softcap"
    opaque = False

    def __post_init__(self) -> None:
        positive("SoftCap's cap", self.cap)
        if self.cap == math.inf:
            raise ValueError("SoftCap's cap is a finite number, got inf; without a cap leave SoftCap out")

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(e / self.cap) * self.cap

    def continues(self, first: Modifier, queries: int) -> bool:
        return self == first

    def kernel_arguments(self) -> dict[str, Any]:
        return {"cap": self.cap}


@dataclass(frozen=True, slots=True, eq=False)
class FunctionModifier(Modifier):
    """Any function of (e, batch, i, j)."""

    function: Callable[[Tensor, Batch, Tensor, Tensor], Tensor]

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return self.function(e, batch, i, j)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMod(Modifier):
    """FlexAttention's `score_mod`, a function of the five scalars (score, b, h, q_idx, kv_idx).

    It is called as FlexAttention calls it, under `torch.vmap`. With inputs [B, T, D] h is 0, and with [T, D] b is, too.
    """

    function: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        check_batch_and_head("score_mod", batch)

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        if not e.numel():
            return e
        score = at_each_index(self._scalar, e, *batch_and_head(batch, i), i, j)
        return score.contiguous()  # a score that does not depend on all indices is expanded, and cannot be written to

    def _scalar(self, e: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = torch.as_tensor(self.function(e, b, h, i, j), device=e.device)
        if score.dim():
            raise ValueError(
                f"score_mod is called with five scalars and returns one number; it returned {list(score.shape)}"
            )
        return score.to(e.dtype)


def _modifier(x: Modifier | Callable[..., Tensor]) -> Modifier:
    if isinstance(x, Modifier):
        return x
    if isinstance(x, type) or not callable(x):
        raise TypeError(f"Modified takes modifiers such as SoftCap(50.0), or functions; got {x!r}")
    if takes(x, 4):
        return FunctionModifier(x)
    if takes(x, 5):
        return ScoreMod(x)
    raise TypeError(
        "Modified takes functions of (score, b, h, q_idx, kv_idx), FlexAttention's score_mod, or of (e, batch, i, j); "
        f"{x!r} takes neither"
    )


class Modified(nn.Module):
    """An energy followed by score modifiers, applied in order.

    A modifier is a `Modifier`, FlexAttention's `score_mod`, a function of the scalars (score, b, h, q_idx, kv_idx), or
    a function of blocks (e, batch, i, j).

    A module, so that the parameters of a learned energy and of learned modifiers are found; other tensors of the
    modifiers follow `.to()` and are not saved.
    """

    energy: Energy | Callable[[Tensor, Tensor], Tensor]

    def __init__(
        self,
        energy: Energy | Callable[[Tensor, Tensor], Tensor],
        *modifiers: Modifier | Callable[..., Tensor],
    ) -> None:
        super().__init__()
        if isinstance(energy, type | Modifier):
            raise TypeError(f"Modified takes an energy first, such as ScaledDot(); got {energy!r}")
        own = tuple(_modifier(x) for x in modifiers)
        joined = isinstance(energy, Modified)
        inner: tuple[Modifier, ...] = getattr(energy, "modifiers", ())
        self._parts: tuple[Modifier, ...] = (*inner, *own) if joined else own
        """Those whose tensors are registered here. Another energy that has modifiers registers them itself."""
        self._names: list[list[str]] = []  # per modifier, the names its tensors are registered under
        self.energy = energy.energy if isinstance(energy, Modified) else energy
        for at, modifier in enumerate(self._parts, start=0 if joined else len(inner)):
            names = []
            function = getattr(modifier, "function", None)
            if isinstance(function, nn.Module):
                self.add_module(f"modifier_{at}", function)
            for n, tensor in enumerate(modifier.tensors()):
                names.append(f"bias_{at}{f'_{n}' if n else ''}")
                if isinstance(tensor, nn.Parameter):
                    self.register_parameter(names[-1], tensor)
                else:
                    self.register_buffer(names[-1], tensor, persistent=False)
            self._names.append(names)

    @property
    def modifiers(self) -> tuple[Modifier, ...]:
        """The modifiers with the tensors that are registered now: a module's parameters can be replaced."""
        inner: tuple[Modifier, ...] = getattr(self.energy, "modifiers", ())
        return (*inner, *map(self._with_registered, self._parts, self._names))

    def _with_registered(self, modifier: Modifier, names: list[str]) -> Modifier:
        tensors = [getattr(self, name) for name in names]
        if all(x is y for x, y in zip(tensors, modifier.tensors(), strict=True)):
            return modifier
        registered = iter(tensors)
        return modifier.map_tensors(lambda _: next(registered))

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return split(self.energy, q, k)

    def check(self, width_q: int, width_k: int) -> None:
        check = getattr(self.energy, "check", None)
        if check is not None:
            check(width_q, width_k)

    def extra_repr(self) -> str:
        named = [] if isinstance(self.energy, nn.Module) else [repr(self.energy)]
        return ", ".join(named + [repr(modifier) for modifier in self.modifiers])

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return EnergyMatrix.of(q, k, self).whole()


SHADES = "·░▒▓█"
BARS = "▁▂▃▄▅▆▇█"


class Position:
    """A way to say where queries and keys stand. A subclass gives `by_distance`, and `matrix` if it has one."""

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "curves n"]:
        """What it does to the energy of a key `distances` = j − i away; one curve per head where heads differ.

        Vectors that are added or rotated: the cosine of the angle between the vectors of the two positions. A bias: the
        bias.
        """
        raise NotImplementedError

    def matrix(self, count: int) -> Float[Tensor, "count components"] | None:
        """The vectors of the first `count` positions; None where positions have no vectors."""
        return None

    def draw(self, count: int = 16, reach: int = 32) -> str:
        """The vectors of `count` positions (rows, light to dark), and the curves over distances up to ±`reach`."""
        lines = []
        vectors = self.matrix(count)
        if vectors is not None:
            lines += [f"positions 0 to {vectors.shape[0] - 1} down, components across", *_scaled(vectors, SHADES)]
        curves = self.by_distance(torch.arange(-reach, reach + 1))
        lines += [f"keys {reach} before the query to {reach} after it", *_scaled(curves, BARS)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self!r}\n{self.draw()}"


def _scaled(values: Float[Tensor, "rows columns"], levels: str) -> list[str]:
    """One character per number, the smallest of all numbers the first level and the largest the last."""
    values = values.detach().double().cpu()
    low, high = values.min(), values.max()
    share = (values - low) / (high - low).clamp_min(1e-12)
    steps = (share * len(levels)).long().clamp(0, len(levels) - 1)
    return ["".join(levels[step] for step in row) for row in steps.tolist()]


class Alibi(Modifier, Position):
    """e_ij − m_h |i + offset − j|, head h's slope m_h = 2^(−8h/H) (Press, Smith & Lewis 2022).

    Heads are the dimension before the queries. `Alibi(8)` has the slopes of the paper, `Alibi(slopes)` those of a
    tensor `[H]`, learned if it is a parameter. `offset` is the position of the first query, for key/value caches.
    """

    kernel = trace_key = "alibi"
    opaque = False
    additive = True

    def __init__(self, heads: int | Float[Tensor, " heads"], *, offset: int = 0) -> None:
        if isinstance(heads, torch.Tensor):
            if heads.dim() != 1 or not heads.numel() or not heads.is_floating_point():
                raise ValueError(f"Alibi takes one slope per head, [H]; got {heads.dtype} of shape {list(heads.shape)}")
            self.heads, self.slopes, self.published = heads.shape[0], heads, False
        else:
            if not isinstance(heads, int):
                raise TypeError(f"Alibi takes the number of heads or a tensor of slopes, got {heads!r}")
            if heads < 1:
                raise ValueError(f"Alibi needs at least one head, got {heads}")
            self.heads, self.published = heads, True
            self.slopes = torch.tensor(published_slopes(heads), dtype=torch.float32)
        self.offset = offset

    def arguments(self) -> dict[str, Any]:
        # A trace writes {"alibi": heads}, and slopes that are not the paper's as the tensor beside it.
        slopes = {} if self.published else {"slopes": self.slopes}
        return {"heads": self.heads, **slopes, "offset": self.offset}

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Alibi:
        return self if self.published else Alibi(function(self.slopes), offset=self.offset)

    def to_device(self, device: torch.device) -> Modifier:
        return Alibi(self.slopes.to(device), offset=self.offset) if self.published else self

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if not batch or batch[-1] != self.heads:
            raise ValueError(
                f"Alibi({self.heads}) needs {self.heads} heads in dimension -3, the leading shape is {list(batch)}"
            )

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        slope = self._on(e.device)[batch[-1]]
        return e - (slope * (i + self.offset - j).abs()).to(e.dtype)

    def continues(self, first: Modifier, queries: int) -> bool:
        if not isinstance(first, Alibi) or self.offset != first.offset + queries:
            return False
        return self.slopes is first.slopes or torch.equal(self.slopes, first.slopes)

    def kernel_arguments(self) -> dict[str, Any]:
        return {"slopes": self.slopes.detach().float(), "offset": self.offset}

    def _on(self, device: torch.device) -> Tensor:
        if not self.published or not readable(self.slopes):
            return self.slopes.to(device)  # a traced tensor must not be cached, and a learned one changes
        return _published_on(self.heads, device)

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        return -self.slopes.detach().cpu()[:, None] * distances.abs()

    def __repr__(self) -> str:
        of = self.heads if self.published else f"slopes [{self.heads}]"
        return f"Alibi({of}{f', offset={self.offset}' if self.offset else ''})"


@lru_cache(maxsize=64)
def _published_on(heads: int, device: torch.device) -> Float[Tensor, " heads"]:
    """Kept for all: a decoder makes an `Alibi` for each step, and a CUDA graph cannot copy from the CPU."""
    with torch.inference_mode(False):  # else a graph that needs gradients could not use what inference made first
        return torch.tensor(published_slopes(heads), dtype=torch.float32, device=device)


def published_slopes(heads: int) -> list[float]:
    """2^(−8h/H), h = 1 … H; where H is no power of two, those of the power below and every other one of the next."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    more = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return slopes + more[: heads - power]


class RelativeBias(Modifier, Position):
    """e_ij + table[bucket(j − i − offset), h] (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the other half ranges that grow logarithmically up to `longest`; all
    larger distances share the last. With `bidirectional` keys after the query have half of the buckets for themselves,
    else they count as distance 0. Heads are the dimension before the queries. `table` is a Hugging Face T5 model's
    `relative_attention_bias.weight`; `offset` the position of the first query, for key/value caches.
    """

    opaque = False
    additive = True

    def __init__(
        self,
        table: Float[Tensor, "buckets heads"],
        *,
        bidirectional: bool = True,
        longest: int = 128,
        offset: int = 0,
    ) -> None:
        if not isinstance(table, torch.Tensor) or table.dim() != 2 or not table.is_floating_point():
            raise TypeError(f"RelativeBias takes a tensor of floats [buckets, heads], got {_described(table)}")
        whole("RelativeBias's longest distance", longest)
        exact = table.shape[0] // (4 if bidirectional else 2)
        if exact < 1 or longest <= exact:
            raise ValueError(
                f"RelativeBias with {table.shape[0]} buckets has {exact} for single distances; expected at least one, "
                f"and a longest distance above it, got {longest}"
            )
        self.table, self.bidirectional, self.longest, self.offset = table, bidirectional, longest, offset

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        heads = self.table.shape[1]
        if not batch or batch[-1] != heads:
            raise ValueError(
                f"RelativeBias of {heads} heads needs them in dimension -3, the leading shape is {list(batch)}"
            )

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The row of the table for keys `distance` = j − i from the query."""
        count = self.table.shape[0]
        after = torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            after, distance = (distance > 0) * count, distance.abs()
        else:
            distance = (-distance).clamp_min(0)
        exact = count // 2
        growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.longest / exact)
        far = (exact + (growth * (count - exact)).long()).clamp_max(count - 1)
        return after + torch.where(distance < exact, distance, far)

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        table = self.table.to(e.device)
        return e + table[self.bucket(j - i - self.offset), batch[-1]].to(e.dtype)

    def continues(self, first: Modifier, queries: int) -> bool:
        if not isinstance(first, RelativeBias) or self.offset != first.offset + queries:
            return False
        same = (self.bidirectional, self.longest) == (first.bidirectional, first.longest)
        return same and (self.table is first.table or torch.equal(self.table, first.table))

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        return self.table.detach().cpu()[self.bucket(distances)].mT

    def __repr__(self) -> str:
        way = "" if self.bidirectional else ", bidirectional=False"
        offset = f", offset={self.offset}" if self.offset else ""
        return f"RelativeBias({list(self.table.shape)}{way}, longest={self.longest}{offset})"


def _described(x: object) -> str:
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


_SCALED_DOT = ScaledDot()
BASE = 10_000.0


def geometric_rates(planes: int, base: float, device: torch.device | None = None) -> Float[Tensor, " planes"]:
    """base^(−i/planes) for plane i, in float64 where the device has it."""
    kind = torch.float32 if device is not None and device.type == "mps" else torch.float64
    return torch.exp(torch.arange(planes, device=device, dtype=kind) * (-math.log(base) / planes))


def angles(positions: Float[Tensor, "*batch t"], rates: Float[Tensor, " planes"]) -> Float[Tensor, "*batch t planes"]:
    """p · rate, in the precision of the rates: in float32 an angle at position 100,000 would be off by 0.004."""
    return positions[..., None].to(rates.dtype) * rates


def mean_cosine(distances: Int[Tensor, " n"], rates: Float[Tensor, " planes"]) -> Float[Tensor, "1 n"]:
    """The cosine of the angle between vectors of positions this far apart, as a curve for the picture."""
    return angles(distances, rates).cos().mean(-1)[None]


def rotate(
    x: Float[Tensor, "*batch t d"], angle: Float[Tensor, "*batch t planes"], layout: Layout = "half"
) -> Float[Tensor, "*batch t d"]:
    """Plane i of x turned by angle i; components beyond the planes stay as they are.

    The planes of "half" are (x_i, x_{i + planes}) (GPT-NeoX, Llama), those of "interleaved" (x_{2i}, x_{2i+1}) (GPT-J).
    """
    planes = angle.shape[-1]
    kind = torch.promote_types(x.dtype, torch.float32)  # rounded once, at the end
    cos, sin = angle.cos().to(kind), angle.sin().to(kind)
    turned = x[..., : 2 * planes].to(kind)
    if layout == "half":
        left, right = turned.chunk(2, dim=-1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
    else:
        left, right = turned.unflatten(-1, (planes, 2)).unbind(-1)
        turned = torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)
    turned = turned.to(x.dtype)
    return turned if x.shape[-1] == 2 * planes else torch.cat([turned, x[..., 2 * planes :]], dim=-1)


class Rotary(nn.Module, Position):
    """energy(R_i q_i, R_j k_j): plane n of a vector at position p is turned by p · base^(−2n/d) (Su et al. 2021).

    With a dot product the energy depends on the positions through j − i alone. `Weights` keeps the rotated queries and
    keys, and every backend that computes the inner energy computes this one.

    - `width`: how many of the first components are rotated (all; GPT-NeoX rotates a quarter).
    - `layout`: which components form a plane, see `rotate`.
    - `rates`: the angle per position of each plane, instead of base^(−2n/d): a Hugging Face model's `inv_freq`.
    - `scaling`: "linear" divides positions by `factor` (Chen et al. 2023); "ntk" multiplies the base by
      factor^(d/(d−2)), which stretches slow planes and keeps fast ones (bloc97 2023).
    - `offset`: the position of the first query, for key/value caches. The first key has position 0.
    - `positions` [T] or [B, T] of the queries, and of the keys unless `key_positions` gives theirs. The dimensions
      before T belong to the first leading dimensions of q and k.
    """

    positions: Tensor | None
    key_positions: Tensor | None

    def __init__(
        self,
        energy: Energy | Callable[[Tensor, Tensor], Tensor] = _SCALED_DOT,
        *,
        base: float = BASE,
        width: int | None = None,
        layout: Layout = "half",
        rates: Float[Tensor, " planes"] | None = None,
        scaling: Literal["linear", "ntk"] | None = None,
        factor: float = 1.0,
        offset: int = 0,
        positions: Int[Tensor, "*batch q"] | None = None,
        key_positions: Int[Tensor, "*batch k"] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(energy, type) or not callable(energy):
            raise TypeError(f"Rotary takes an energy first, such as ScaledDot(); got {energy!r}")
        if layout not in ("half", "interleaved"):
            raise ValueError(f'Rotary has layout {layout!r}; expected "half" or "interleaved"')
        if scaling not in (None, "linear", "ntk"):
            raise ValueError(f'Rotary has scaling {scaling!r}; expected "linear", "ntk" or None')
        if not base > 0 or not factor > 0:
            raise ValueError(f"Rotary needs base and factor > 0, got {base} and {factor}")
        if width is not None and (width < 2 or width % 2):
            raise ValueError(f"Rotary rotates pairs of components: width is even and at least 2, got {width}")
        if rates is not None and (width is not None or scaling is not None):
            raise ValueError("Rotary's rates decide its width and scaling; give no width and no scaling beside them")
        if positions is not None and offset:  # in this order: an offset may be a symbol under torch.export
            raise ValueError("Rotary has an offset and positions; add the offset to the positions")
        self.energy, self.base, self.width, self.layout = energy, base, width, layout
        self.rates, self.scaling, self.factor, self.offset = rates, scaling, factor, offset
        # Buffers follow `.to(device)`. The rates do not: `.to(torch.bfloat16)` would round them, and so the angles.
        self.register_buffer("positions", positions, persistent=False)
        self.register_buffer("key_positions", positions if key_positions is None else key_positions, persistent=False)

    @property
    def modifiers(self) -> tuple[Modifier, ...]:
        """Those of the inner energy."""
        return getattr(self.energy, "modifiers", ())

    def check(self, width_q: int, width_k: int) -> None:
        rotated = self.rotated(width_q)
        if rotated % 2 or rotated > min(width_q, width_k) or (self.rates is None and rotated != self.rotated(width_k)):
            raise ValueError(
                f"Rotary rotates an even number of components that queries and keys have; it is to rotate {rotated}, "
                f"queries are {width_q} wide and keys {width_k}. Choose them with width=…"
            )
        check = getattr(self.energy, "check", None)
        if check is not None:
            check(width_q, width_k)

    def rotated(self, width: int) -> int:
        """How many components of a vector this wide are rotated."""
        if self.rates is not None:
            return 2 * self.rates.shape[-1]
        return width if self.width is None else self.width

    def angle_rates(self, width: int, device: torch.device | None = None) -> Float[Tensor, " planes"]:
        """The angle per position of each plane, for vectors this wide."""
        if self.rates is not None:
            return self.rates.to(device).to(torch.promote_types(self.rates.dtype, torch.float32))
        rotated, base = self.rotated(width), self.base
        if self.scaling == "ntk":
            base *= self.factor ** (rotated / max(rotated - 2, 1))
        rates = geometric_rates(rotated // 2, base, device)
        return rates / self.factor if self.scaling == "linear" else rates

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        q = self._rotate(q, self.positions, "queries", self.offset)
        return split(self.energy, q, self._rotate(k, self.key_positions, "keys", 0))

    def _rotate(self, x: Tensor, positions: Tensor | None, side: str, first: int) -> Tensor:
        length = x.shape[-2]
        if positions is None:
            positions = torch.arange(first, first + length, device=x.device)
        lead = positions.dim() - 1
        fits = lead <= x.dim() - 2 and all(n in (1, m) for n, m in zip(positions.shape[:-1], x.shape, strict=False))
        if lead < 0 or positions.shape[-1] != length or not fits:
            raise ValueError(
                f"Rotary has positions of shape {list(positions.shape)} for {side} of shape {list(x.shape)}; expected "
                f"[{length}], or [B, {length}] with the first dimension of the {side}"
            )
        angle = angles(positions.to(x.device), self.angle_rates(x.shape[-1], x.device))
        # [B, T, planes] → [B, 1, T, planes] beside [B, heads, T, d]
        angle = angle.reshape(*angle.shape[:lead], *[1] * (x.dim() - 2 - lead), *angle.shape[lead:])
        return rotate(x, angle, self.layout)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return EnergyMatrix.of(q, k, self).whole()

    def matrix(self, count: int) -> Float[Tensor, "count planes"]:
        """The cosine of each plane's angle at the first positions, of heads 64 wide where no width is given."""
        return angles(torch.arange(count), self.angle_rates(_PICTURE_WIDTH).cpu()).cos()

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        """The mean cosine over planes: what remains of the dot product of two equal vectors this far apart."""
        return mean_cosine(distances, self.angle_rates(_PICTURE_WIDTH).cpu())

    def extra_repr(self) -> str:
        named = [] if isinstance(self.energy, nn.Module) else [repr(self.energy)]
        given = {"base": BASE, "width": None, "layout": "half", "scaling": None, "factor": 1.0, "offset": 0}
        named += [f"{name}={getattr(self, name)!r}" for name, usual in given.items() if getattr(self, name) != usual]
        tensors = {"rates": self.rates, "positions": self.positions, "key_positions": self.key_positions}
        return ", ".join(named + [f"{name}={list(x.shape)}" for name, x in tensors.items() if x is not None])


_PICTURE_WIDTH = 64
