"""Logit lens: the next token that the residual stream would give after each layer (nostalgebraist 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .residual_stream import record_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Float, Int
    from torch import Tensor, nn


class NextTokens(NamedTuple):
    """The likeliest next tokens, likeliest first."""

    probabilities: Float[Tensor, "... count"]
    tokens: Int[Tensor, "... count"]


@torch.no_grad()
def logit_lens(
    model: nn.Module, inputs: Tensor | Mapping[str, Any], *, position: int = -1, head: nn.Module | None = None
) -> Float[Tensor, "layers_1 b v"]:
    """The output layer and the final norm applied to the stream before the first layer and after each.

    The last of the `layers + 1` are the logits of the model. A model that changes what its output layer gives (by a
    factor or a cap) is refused.
    """
    stream = record_stream(model, inputs, head=head)
    own, logits = stream.model_logits, stream.logits
    if isinstance(own, torch.Tensor) and own.shape == logits.shape:
        error = float((own.double() - logits.double()).norm() / logits.double().norm())
        if not error < 0.02:
            raise ValueError(
                f"{type(model).__name__} changes the logits after its output layer, by a factor or a cap (relative "
                f"difference {error:.2g}), so the output layer alone does not give its next tokens"
            )
    points = [stream.layers[0].before, *(layer.after for layer in stream.layers)]
    return torch.stack([stream.head(stream.norm(x[:, position])) for x in points])


def next_tokens(logits: Float[Tensor, "... v"], count: int = 5) -> NextTokens:
    """The probabilities of the likeliest next tokens."""
    top = logits.detach().float().softmax(-1).topk(min(count, logits.shape[-1]))
    return NextTokens(top.values, top.indices)
