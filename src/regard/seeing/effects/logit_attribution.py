"""Direct logit attribution: how much each head, MLP and the embedding adds to a logit, and each token through a head.

The logit of a token is W_U[t] · norm(x_L) + b. At the scale that the final norm really had, norm is linear, so that the
logit is a sum over everything that was added to the residual stream:

    logit = u · x_0 + Σ_l Σ_h g_lh · o_lh + Σ_l u · bias_l + Σ_l u · m_l + constant        g_lh = W_O,lhᵀ u

u is W_U[t] through the norm's gain, divided by its scale (and centred for a LayerNorm). Each head's part is in turn a
sum over source tokens, Σ_j w_ij (g · v_j): `Contributions`. The sum is exact up to the rounding of the model's own
arithmetic (Elhage et al. 2021; Wang et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .residual_stream import record_stream
from .stream_directions import StreamAttribution, stream_parts, through_norm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float

    from .residual_stream import ResidualStream


@dataclass(slots=True, eq=False)
class LogitAttribution(StreamAttribution):
    """The parts of a logit, or of the difference of two, for each entry of the batch."""

    logit: Float[Tensor, " b"]
    """What the output layer of the model computed."""


def logit_attribution(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    tokens: int | Sequence[int] | Tensor,
    minus: int | Sequence[int] | Tensor | None = None,
    *,
    position: int | Sequence[int] = -1,
    head: nn.Module | None = None,
) -> LogitAttribution:
    """Direct logit attribution from one run of the model.

        logit_attribution(model, {"input_ids": ids}, tokens=mary, minus=john).strongest(5)

    `tokens` are vocabulary indices, one for each entry of the batch or one for all; with `minus` the difference of two
    logits is attributed. `position` is where in the text the logit stands. `head` names the output layer of a model
    that has no `get_output_embeddings()`. See `residual_stream` for the models that are taken.
    """
    stream = record_stream(model, inputs, head=head)
    count, length = stream.last.shape[:2]
    positions = [position] * count if isinstance(position, int) else list(position)
    if len(positions) != count or not all(-length <= x < length for x in positions):
        raise ValueError(f"position is one of {length} tokens, for all or for each of {count} texts; got {position}")
    rows = [x % length for x in positions]
    at = torch.arange(count, device=stream.last.device), torch.tensor(rows, device=stream.last.device)
    chosen = _indices(tokens, count, stream)
    others = None if minus is None else _indices(minus, count, stream)
    u, constant = _unembedding(stream, chosen, others)
    u, offset = through_norm(stream.norm, stream.last[at], stream.normed[at], u)
    logits = stream.logits[at].double()
    logit = logits.gather(1, chosen[:, None]).squeeze(1)
    if others is not None:
        logit = logit - logits.gather(1, others[:, None]).squeeze(1)
    parts = stream_parts(stream, len(stream.layers), at, u, constant + offset)
    return LogitAttribution(**{field.name: getattr(parts, field.name) for field in fields(parts)}, logit=logit)


def _indices(tokens: int | Sequence[int] | Tensor, count: int, stream: ResidualStream) -> Tensor:
    indices = torch.as_tensor(tokens, device=stream.logits.device).flatten()
    size = stream.logits.shape[-1]
    if len(indices) not in (1, count) or not bool(((indices >= 0) & (indices < size)).all()):
        raise ValueError(
            f"tokens are indices below {size}, the size of the vocabulary: one, or one for each of {count} texts; got "
            f"{indices.tolist()}"
        )
    return indices.expand(count)


def _unembedding(stream: ResidualStream, chosen: Tensor, others: Tensor | None) -> tuple[Tensor, Tensor]:
    """W_U[t] of each entry, less that of the other token, and the bias of the output layer."""
    with torch.enable_grad():
        z = torch.zeros_like(stream.normed[:, 0], requires_grad=True)
        logits = stream.head(z)
        logit = logits.gather(1, chosen[:, None]).squeeze(1)
        if others is not None:
            logit = logit - logits.gather(1, others[:, None]).squeeze(1)
        (u,) = torch.autograd.grad(logit.sum(), z)
    return u.double(), logit.detach().double()
