"""Effective approaches to attention-based neural machine translation (Luong, Pham and Manning 2015)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention.masks import dense
from ..attention.step import attend_step
from ..layers.kernels.packed_products import linear
from ..layers.recurrent import LocalAttention
from .decoder import output_matrix
from .recurrent_decoder import RecurrentDecoder, RecurrentStep

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from .configurations import Annotations
    from .recurrent_decoder import RecurrentDecoderConfig, RecurrentState


class LuongDecoder(RecurrentDecoder):
    """h_t = cell([y_{t−1}; h̃_{t−1}], h_{t−1}),  c_t = attend(h_t, annotations),  h̃_t = tanh(W [c_t; h_t])

    h̃_{t−1} is an input with input feeding (section 3.3). The words are predicted from h̃_t. The paper's location score
    softmax(W_a h_t), equation 8, is left out: it knows one longest source.
    """

    def __init__(self, config: RecurrentDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__(config, vocabulary, memory, late=config.width if config.input_feeding else 0)
        self.local = None if config.scope == "global" else LocalAttention(config.width, config.window, config.scope)

    def readers(self, vocabulary: int, memory: int) -> tuple[nn.Linear, nn.Linear]:
        width = self.config.width
        return nn.Linear(memory + width, width, bias=False), output_matrix(width, vocabulary)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> RecurrentState:
        state = super().start(annotations, beams=beams, steps=steps)
        position = None if self.local is None else torch.zeros_like(annotations.lengths)
        return replace(state, fed=torch.zeros_like(state.hidden[-1][0]), position=position)

    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        hidden = self.cells[0](gates, state.hidden[0], state.fed, mask=state.masks[0])
        after = self.stacked(state, hidden)
        h = after.hidden[-1][0]
        context, weights = self.attend(h, state)
        fed = torch.tanh(linear(self.join, torch.cat([context, h.to(context.dtype)], -1)))
        position = None if state.position is None else state.position + 1
        return RecurrentStep(replace(after, fed=fed, position=position), context, weights)

    def attend(
        self, h: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows memory"], Float[Tensor, "rows places"]]:
        """To all annotations, or to those around a place (section 3.2)."""
        memory = state.memory
        assert memory is not None
        if self.local is None or state.position is None:
            return attend_step(h, memory)
        beams = h.unflatten(0, (-1, state.beams))
        places = torch.arange(memory.places, device=h.device)
        closed, scale = self.local(beams, state.position, memory.lengths, places)
        return attend_step(h, memory, mask=dense(closed == 0), factor=scale)

    def features(
        self, y: Float[Tensor, "rows time embedding"], steps: list[RecurrentStep]
    ) -> Float[Tensor, "rows time width"]:
        h = torch.stack([step.state.fed for step in steps if step.state.fed is not None], 1)
        return self.dropout(h)  # type: ignore[no-any-return]
