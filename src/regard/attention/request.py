"""A request: the inputs of `attend`, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .block_indices import check_device
from .energies.lazy_energy_matrix import EnergyMatrix, split
from .energies.modifiers import Modifier
from .masks.dense_mask import Dense
from .masks.hidden_keys import clear_hidden_keys
from .masks.mask import Mask, MaskMod
from .normalizers.function_normalizer import FunctionNormalizer
from .normalizers.normalizer import Normalizer
from .part import takes
from .torch_transforms import AUTOCAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from .energies.energies import Energy
    from .masks.mask import MaskFunction


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
