"""The loss of a language model that reads a text token by token, as it does when it generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ...models import EncoderDecoder


@torch.no_grad()
def step_by_step_nll(model: EncoderDecoder, windows: Int[Tensor, "rows tokens"]) -> float:
    """−log p per token; a step sees the tokens before it only, also where the model was trained without a mask."""
    rows, count = windows.shape
    one = windows.new_ones(rows)
    state = model.decoder.start(model.encode(one[:, None], one), steps=count)
    total = 0.0
    for at in range(count - 1):
        features, state, _ = model.decoder.step(windows[:, at], state)
        log_p = torch.log_softmax(model.decoder.readout(features).double(), -1)
        total -= float(log_p.gather(1, windows[:, at + 1, None]).sum())
    return total / (rows * (count - 1))
