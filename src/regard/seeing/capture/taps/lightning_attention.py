"""Lightning attention in MiniMax's form: a module whose parts say what it computes.

w_ij = q_i·k_j exp(−m_h (i − j)) for j ≤ i (Qin et al. 2024, "Lightning Attention-2"; MiniMax-01 2025). The module runs
blocks of it, without a function that could be replaced. So queries, keys and values are computed again from its input
when they are asked for, and fidelity is measured on the output of the module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ....attention import Unnormalized, causal
from ....attention.energies.modifiers import Modifier
from ....attention.tensor_versions import ChangedInPlaceError, TensorVersions
from .. import call_routing
from ..call_inputs_and_output import Record, dot_energies, some_rows
from .linear_tap import CONTINUES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor, nn

    from ....attention.block_indices import Batch

PARTS = ("qkv_proj", "act_fn", "slope_rate", "output_gate", "norm", "out_proj", "num_attention_heads", "head_dim")


@dataclass(frozen=True, slots=True, eq=False)
class DistanceDecay(Modifier):
    """e_ij · exp(−m_h (i − j)): a decay of each head's own, as in retention (Sun et al. 2023)."""

    slopes: Float[Tensor, " heads"]
    opaque = False

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return e * torch.exp(-self.slopes.to(e)[batch[-1]] * (i - j).clamp_min(0))


def is_lightning(module: nn.Module) -> bool:
    """Whether it has all parts."""
    return all(hasattr(module, name) for name in PARTS)


def continues(module: Any, options: dict[str, Any]) -> bool:
    """Whether the cache has a state of earlier tokens, before the module runs."""
    cache = options.get("past_key_values")
    return cache is not None and isinstance(cache.get_linear_cache(module.layer_idx), torch.Tensor)


def report_lightning(
    module: Any,
    result: Any,
    continued: bool,
    hidden_states: Float[Tensor, "b t width"],
    *args: Any,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> None:
    """Report the call of a module that has run."""
    if continued:
        call_routing.report_missed(CONTINUES, module)
        return
    hidden = hidden_states.detach()
    call_routing.try_report(lambda: _deferred(module, hidden, attention_mask, result[0]), module, tensors=(hidden,))


def _deferred(module: Any, hidden: Tensor, padding: Tensor | None, out: Tensor) -> Callable[[], Record]:
    rows, kept = some_rows(out.detach())
    versions = TensorVersions([hidden, *module.parameters(), *module.buffers()])
    heads, width = module.num_attention_heads, module.head_dim

    def after(z: Tensor, at: Tensor) -> Tensor:
        """[B, heads, rows, D] → [B, rows, E]"""
        z = module.norm(z.transpose(1, 2).flatten(2).to(hidden.dtype))
        out: Tensor = module.out_proj(torch.sigmoid(module.output_gate(hidden[:, at])) * z)
        return out

    def make() -> Record:
        if versions.changed():
            raise ChangedInPlaceError("its inputs or parameters were changed in place since it was called")
        with torch.no_grad(), call_routing.suspend_reports():
            x = module.act_fn(module.qkv_proj(hidden))
            if padding is not None and padding.dim() == 2 and padding.shape == x.shape[:2]:
                x = x * padding[..., None].to(x.dtype)
            q, k, v = x.unflatten(-1, (heads, 3 * width)).transpose(1, 2).split(width, dim=-1)
        energies = dot_energies(q, k, 1.0, masks=(causal(),))
        decay = DistanceDecay(module.slope_rate.detach().flatten().float())
        energies = replace(energies, modifiers=(decay,))
        return Record(
            energies, v, kept, "lightning attention", normalize=Unnormalized(), rows=rows, after=after, cross=False
        )

    return make
