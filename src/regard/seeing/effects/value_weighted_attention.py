"""Value-weighted attention (Kobayashi et al. 2020): |w_ij| · ‖v_j W_O‖, how much of each value reaches the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Contributions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..capture.attention_call import Call


@torch.no_grad()
def value_weighted_attention(call: Call, projection: nn.Module) -> Contributions:
    """|w_ij| · ‖v_j W_O‖ of every head, [*batch, heads, T_q, T_k], as lazy as the weights.

        value_weighted_attention(seen[3], model.encoder.layer[3].attention.output.dense)

    `projection` is the linear module after the attention, W_O, which reads all heads side by side. Weights of a softmax
    are not negative; where they can be (`Unnormalized`), the result has their sign.
    """
    heads, groups = call.heads, call.record.energies.groups
    v = call.v
    if groups > 1 and v.shape[-3] * groups == heads:
        v = v.repeat_interleave(groups, dim=-3)
    width = v.shape[-1]
    weight = next(projection.parameters())
    read = v.new_zeros(1, heads * width, dtype=weight.dtype)
    bias = projection(read)
    norms = []
    for head in range(heads):  # one head's values beside zeros: what this head alone adds
        own = v[..., head, :, :].to(weight.dtype)
        alone = _beside_zeros(own, head * width, heads * width)
        norms.append((projection(alone) - bias).norm(dim=-1))
    sizes = torch.stack(norms, dim=-2)[..., None]  # [*batch, heads, T_k, 1]
    return Contributions(call.weights, sizes, torch.ones_like(sizes[..., :1, :]))


def _beside_zeros(x: Tensor, start: int, width: int) -> Tensor:
    wide = x.new_zeros(*x.shape[:-1], width)
    wide[..., start : start + x.shape[-1]] = x
    return wide
