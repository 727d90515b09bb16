"""Energies e_ij = energy(q_i, k_j): how well query i matches key j.

An energy is a projection of each side followed by a form. Kernels differ by form only, so a kernel for one form serves
every energy that has it: `Dot`, `ScaledDot`, `Cosine` and `General` end in a dot product, `Additive` and `Concat` in a
tanh, `Gaussian` and `InverseDistance` in a distance.

An energy called on its own gives the whole matrix: `ScaledDot()(q, k)` is `[..., T_q, T_k]`. A plain function of
(q, k) is an energy too, as long as entry (i, j) depends on q_i and k_j alone: that is what lets every backend compute
it a block at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .kernels import TRITON, additive_cpu
from .parts import Part, depends_on_place, forward_mode, positive, readable, transformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor


class EnergyForm(Part):
    """e_ij = form(a_i, b_j). A subclass gives `__call__`; the rest makes it faster, or visible in the viewer."""

    scale: float = 1.0
    """What dot products are multiplied by."""

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        raise NotImplementedError

    def formula(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        """The same with derivatives of every order."""
        return self(a, b)

    def cost(self, width: int) -> int:
        """How many numbers are held per energy while a block is computed."""
        return width

    def has_kernel(self, device: str, precision: torch.dtype) -> bool:
        """Whether `kernel_energies` can be called there."""
        return False

    def kernel_energies(self, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"]) -> Float[Tensor, "n q k"]:
        """The energies without the [n, q, k, d] tensor of the formula, differentiated at most once."""
        raise NotImplementedError

    def write(self, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"], buffer: Tensor) -> Tensor | None:
        """The energies in the memory of `buffer`, without a graph; None where that is not possible."""
        return None

    def terms(self, q: Float[Tensor, " d"], k: Float[Tensor, "k d"]) -> Float[Tensor, "k d"] | None:
        """The numbers whose sum over d is the energy; None where it is no such sum."""
        return None


@dataclass(frozen=True)
class DotForm(EnergyForm):
    """e_ij = scale · a_i·b_j"""

    scale: float = 1.0
    kernel = trace_key = "dot"
    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        return (a * self.scale) @ b.mT

    def cost(self, width: int) -> int:
        return 1

    def write(self, a: Tensor, b: Tensor, buffer: Tensor) -> Tensor | None:
        return torch.bmm(a * self.scale, b.mT, out=buffer.resize_(a.shape[0], a.shape[1], b.shape[1]))

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.scale * q * k


@dataclass(frozen=True)
class TanhForm(EnergyForm):
    """e_ij = w · tanh(a_i + b_j)"""

    weight: Float[Tensor, " d"]
    kernel = trace_key = "tanh"
    opaque = False

    def __post_init__(self) -> None:
        if not isinstance(self.weight, torch.Tensor):  # a trace may have no such tensor
            raise TypeError(f"TanhForm takes a tensor, got {type(self.weight).__name__}")

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        hidden = torch.tanh(a[..., :, None, :] + b[..., None, :, :])  # [..., q, k, d]
        return hidden @ self.weight.to(hidden.dtype)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> TanhForm:
        return TanhForm(function(self.weight))  # torch.compile cannot trace a copy

    def has_kernel(self, device: str, precision: torch.dtype) -> bool:
        kernel_on_gpu = device == "cuda" and TRITON and precision == torch.float32 and not torch.is_grad_enabled()
        return device == "cpu" or kernel_on_gpu

    def kernel_energies(self, a: Tensor, b: Tensor) -> Tensor:
        if a.device.type == "cpu":
            return additive_cpu.TanhEnergies.apply(a, b, self.weight.to(a.dtype))  # type: ignore[no-any-return]
        from .kernels.additive_triton import pairwise

        return pairwise(a, b, self.weight)

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.weight.to(q.dtype) * torch.tanh(q + k)


NEAR = 2.0**-60
"""Distances below this count as equal. 1/d² still fits float32 there, so the gradient does not overflow either."""


@dataclass(frozen=True)
class DistanceForm(EnergyForm):
    """e_ij = −|a_i − b_j|² / 2, or where `inverse` 1 / |a_i − b_j|"""

    inverse: bool = False
    kernel = trace_key = "distance"
    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        apart = distance(a, b)
        return 1 / apart.clamp_min(NEAR) if self.inverse else apart.square() * -0.5

    def formula(self, a: Tensor, b: Tensor) -> Tensor:
        # torch.cdist has one derivative, which is wrong under vmap.
        a, b = wide(a), wide(b)
        if not (transformed() or forward_mode() or (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))):
            return self(a, b)
        square = (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1)  # [..., q, k] of [..., q, k, d]
        if not self.inverse:
            return square * -0.5
        near = square <= NEAR**2
        return square.masked_fill(near, 1).rsqrt().masked_fill(near, 1 / NEAR)

    def has_kernel(self, device: str, precision: torch.dtype) -> bool:
        return device == "cpu" and precision == torch.float32

    def kernel_energies(self, a: Tensor, b: Tensor) -> Tensor:
        return DistanceEnergies.apply(a, b, self.inverse)  # type: ignore[no-any-return]

    def cost(self, width: int) -> int:
        return 1

    def terms(self, q: Tensor, k: Tensor) -> Tensor | None:
        return None if self.inverse else (q - k).square() * -0.5


class DistanceEnergies(torch.autograd.Function):
    """The energies of float32 vectors by products in float64, |a − b|² = |a|² + |b|² − 2 a·b around the mean key.

    What cancels there is far below the digits of float32, except for distances that are tiny beside the vectors: their
    inverse is computed from the difference. With g'_ij = g_ij, or g_ij e_ij³ of inverse distances,

        da_i = Σ_j g'_ij (b_j − a_i)        db_j = Σ_i g'_ij (a_i − b_j)
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, inverse: bool) -> Tensor:
        left, right, rows, cols = _centred(a, b)
        half = torch.baddbmm(cols.mT, left, right.mT, beta=-1).sub_(rows)  # −|a − b|² / 2
        if not inverse:
            e = half.to(a.dtype)
        else:
            square = half.mul_(-2)
            near = square < NEARLY * torch.maximum(rows, cols.mT)
            if bool(near.any()):
                n, i, j = near.nonzero(as_tuple=True)
                square[n, i, j] = (a[n, i].double() - b[n, j].double()).square().sum(-1)
            e = square.clamp_min_(NEAR**2).rsqrt_().to(a.dtype)
        ctx.save_for_backward(a, b, *((e,) if inverse else ()))
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b, *rest = ctx.saved_tensors
        left, right, _, _ = _centred(a, b)
        g = g.double()
        for e in rest:
            g = g * e.double().pow_(3).masked_fill_(e >= 1 / NEAR, 0)
        into_a = torch.baddbmm(left * g.sum(-1, keepdim=True), g, right, beta=-1)
        into_b = torch.baddbmm(right * g.sum(-2)[..., None], g.mT, left, beta=-1)
        return into_a.to(a.dtype), into_b.to(b.dtype), None


NEARLY = 1e-8
"""The share of |a|² or |b|² below which a squared distance is computed from the difference."""


def _centred(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys around the mean key, in float64, and half their squared lengths."""
    centre = b.double().mean(-2, keepdim=True)
    left, right = a - centre, b - centre
    rows, cols = (x.square().sum(-1, keepdim=True).mul_(0.5) for x in (left, right))
    return left, right, rows, cols


@dataclass(frozen=True)
class EqualForm(EnergyForm):
    """e_ij = 1 where a_i = b_j in every component, else 0"""

    opaque = False

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        # The 0-norm counts the components that differ.
        return (distance(a.detach(), b.detach(), p=0.0) == 0).to(a.dtype)

    def cost(self, width: int) -> int:
        return 1


@dataclass(frozen=True)
class PairForm(EnergyForm):
    """e_ij = function(a_i, b_j): any function whose entry (i, j) depends on a_i and b_j alone."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, a: Float[Tensor, "*batch q d"], b: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        e = self.function(a, b)
        if e.shape[-2:] != (a.shape[-2], b.shape[-2]):
            raise ValueError(
                f"energy gave shape {list(e.shape)}; expected [..., {a.shape[-2]}, {b.shape[-2]}] "
                f"for queries {list(a.shape)} and keys {list(b.shape)}"
            )
        return e


def distance(a: Tensor, b: Tensor, p: float = 2.0) -> Float[Tensor, "*batch q k"]:
    # cdist never builds [..., q, k, d]. Its matrix-product mode is not used: |a|² + |b|² − 2ab cancels badly for
    # near neighbours, which matter most here. cdist has no half precision on CPU.
    return torch.cdist(wide(a), wide(b), p=p, compute_mode="donot_use_mm_for_euclid_dist")


def wide(x: Tensor) -> Tensor:
    """float32 at least: squares and quotients overflow half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Energy:
    """An energy with nothing to learn. Subclasses give `split`; calling it is then the formula."""

    matches_labels: bool = False
    """Whether it only asks if query and key are equal, so that `lookup` can take labels of any kind."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        """Project queries and keys, and name the form that joins them: energy(q, k) = form(a, b)."""
        raise NotImplementedError

    def check(self, width_q: int, width_k: int) -> None:
        """Raise ValueError where queries and keys of these widths cannot be compared."""
        if width_q != width_k:
            raise ValueError(
                f"{type(self).__name__} compares queries and keys of one width: queries are {width_q} wide, "
                f"keys {width_k}. Use General({width_q}, {width_k}) or Additive({width_q}, {width_k}, hidden), "
                "which learn to compare different widths."
            )

    def __call__(self, q: Float[Tensor, "*batch q d"], k: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        a, b, form = self.split(q, k)
        return form(a, b)


@dataclass(frozen=True, slots=True)
class Dot(Energy):
    """e_ij = q_i·k_j (Luong, Pham & Manning 2015, "dot")."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DotForm()


@dataclass(frozen=True, slots=True)
class ScaledDot(Energy):
    """e_ij = q_i·k_j / √d_k (Vaswani et al. 2017, eq. 1); `scale` replaces 1/√d_k."""

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not isinstance(self.scale, int | float):
            raise TypeError(
                f"ScaledDot's scale is a number, got {type(self.scale).__name__}; to learn one, scale q by it"
            )

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DotForm(max(1, q.shape[-1]) ** -0.5 if self.scale is None else self.scale)


@dataclass(frozen=True, slots=True)
class Cosine(Energy):
    """e_ij = q_i·k_j / (|q_i| |k_j|) (Graves, Wayne & Danihelka 2014, eq. 6). A zero vector matches nothing: 0."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return _unit(q), _unit(k), DotForm()


@dataclass(frozen=True, slots=True)
class Exact(Energy):
    """e_ij = 1 where q_i = k_j in every component, else 0: the dictionary. Use with `normalize=Proportional()`."""

    matches_labels = True

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, EqualForm()


@dataclass(frozen=True, slots=True)
class InverseDistance(Energy):
    """e_ij = 1/|q_i − k_j| (Shepard 1968). Use with `normalize=Proportional()`: an equal key then gives its value."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DistanceForm(inverse=True)


@dataclass(frozen=True, slots=True)
class Gaussian(Energy):
    """e_ij = −|q_i − k_j|² / 2σ²; with `Softmax` this is kernel regression (Nadaraya 1964, Watson 1964)."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        positive("Gaussian's sigma", self.sigma)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        # Scaling the inputs instead of the result keeps one form for every σ.
        return wide(q) / self.sigma, wide(k) / self.sigma, DistanceForm()


def _unit(x: Tensor) -> Tensor:
    """x / |x|, at any magnitude; a zero vector stays zero, with a gradient that is finite."""
    x = wide(x)
    if not x.shape[-1]:
        return x
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    x = x / largest.where(largest > 0, 1)
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.where(length > 0, 1)


def check_pairwise(form: EnergyForm, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"]) -> None:
    """Refuse a function whose energy of a query and a key depends on where in a block they stand."""
    if not form.opaque or not readable(a) or 0 in (*a.shape, *b.shape) or a.shape[1] < 2:
        return
    a, b = wide(a[:1, :2]), wide(b[:1, :16])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        second = form(a, b)[..., 1, :]
        alone, again = (form(a[:, 1:], b)[..., 0, :] for _ in range(2))
    if depends_on_place(second, alone, again):
        raise ValueError(
            "this energy gives one query and key different energies in different blocks; it must depend on q_i and k_j "
            "alone. For positions use Rotary(energy), Modified(energy, Bias(tensor)) or Modified(energy, Alibi(heads))"
        )


class LearnedEnergy(nn.Module):
    """An energy with parameters. Subclasses give `split`; calling the module is then the formula."""

    dim_q: int
    dim_k: int

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        raise NotImplementedError

    def check(self, width_q: int, width_k: int) -> None:
        if (width_q, width_k) != (self.dim_q, self.dim_k):
            raise ValueError(
                f"{type(self).__name__} was made for queries {self.dim_q} wide and keys {self.dim_k} wide; "
                f"given queries {width_q} wide and keys {width_k} wide"
            )

    def forward(
        self, q: Float[Tensor, "*batch q d_q"], k: Float[Tensor, "*batch k d_k"]
    ) -> Float[Tensor, "*batch q k"]:
        a, b, form = self.split(q, k)
        return form(a, b)


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Uniform in ±1/√fan_in, as `nn.Linear` starts out."""
    bound = 1 / math.sqrt(max(1, fan_in))
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class General(LearnedEnergy):
    """e_ij = q_iᵀ W k_j (Luong, Pham & Manning 2015, "general")."""

    def __init__(self, dim_q: int, dim_k: int) -> None:
        super().__init__()
        self.dim_q, self.dim_k = dim_q, dim_k
        self.weight = _uniform(dim_q, dim_k, fan_in=dim_q)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q @ self.weight.to(q.dtype), k, DotForm()

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}"


class Additive(LearnedEnergy):
    """e_ij = w · tanh(W q_i + U k_j) (Bahdanau, Cho & Bengio 2015, appendix A.1.2).

    With `bias` the sum inside the tanh also has a learned constant.
    """

    def __init__(self, dim_q: int, dim_k: int, hidden: int, *, bias: bool = False) -> None:
        super().__init__()
        self.dim_q, self.dim_k, self.hidden = dim_q, dim_k, hidden
        self.query = nn.Linear(dim_q, hidden, bias=bias)
        self.key = nn.Linear(dim_k, hidden, bias=False)
        self.weight = _uniform(hidden, fan_in=hidden)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        bias = None if self.query.bias is None else self.query.bias.to(q.dtype)
        a = nn.functional.linear(q, self.query.weight.to(q.dtype), bias)
        b = nn.functional.linear(k, self.key.weight.to(k.dtype))
        return a, b, TanhForm(self.weight)

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}, hidden={self.hidden}"


class Concat(LearnedEnergy):
    """e_ij = w · tanh(W [q_i; k_j]) (Luong, Pham & Manning 2015, "concat").

    W [q; k] = W_q q + W_k k, so nothing is ever concatenated: the two halves of W are applied once per row.
    """

    def __init__(self, dim_q: int, dim_k: int, hidden: int) -> None:
        super().__init__()
        self.dim_q, self.dim_k, self.hidden = dim_q, dim_k, hidden
        self.joint = nn.Linear(dim_q + dim_k, hidden, bias=False)
        self.weight = _uniform(hidden, fan_in=hidden)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        for_q, for_k = self.joint.weight.split([self.dim_q, self.dim_k], dim=1)
        a = nn.functional.linear(q, for_q.to(q.dtype))
        b = nn.functional.linear(k, for_k.to(k.dtype))
        return a, b, TanhForm(self.weight)

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}, hidden={self.hidden}"
