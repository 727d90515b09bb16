"""Decoders that attend before a step of theirs: Bahdanau, Cho and Bengio 2015, and the conditional GRU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..attention.step import attend_step
from ..layers.recurrent import RecurrentCell
from .recurrent_decoder import RecurrentDecoder, RecurrentStep

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from .recurrent_decoder import RecurrentDecoderConfig, RecurrentState


class BahdanauDecoder(RecurrentDecoder):
    """Neural machine translation by jointly learning to align and translate (Bahdanau, Cho & Bengio 2015, A.2.2):

    c_t = attend(h_{t−1}, annotations),  h_t = cell([y_{t−1}; c_t], h_{t−1})

    `start` of `RecurrentDecoder` makes h_0 of the source's summary (the paper: of the backward state of its first
    word), and `features` the readout of h_t, y_{t−1} and c_t (equation 4; A.2.2 prints h_{t−1}).
    """

    def __init__(self, config: RecurrentDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__(config, vocabulary, memory, late=memory)

    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        assert state.memory is not None
        context, weights = attend_step(state.h, state.memory)  # [rows, annotation], [rows, places]
        hidden = self.cells[0](gates, state.hidden[0], context, mask=state.masks[0])
        return RecurrentStep(self.stacked(state, hidden), context, weights)


class ConditionalDecoder(RecurrentDecoder):
    """The conditional GRU attends between two steps (Firat and Cho 2016; Nematus, Sennrich et al. 2017, section 2):

    h'_t = cell₁(y_{t−1}, h_{t−1}),  c_t = attend(h'_t, annotations),  h_t = cell₂(c_t, h'_t)
    """

    def __init__(self, config: RecurrentDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__(config, vocabulary, memory)
        self.second = RecurrentCell(config.cell, 0, memory, config.width)

    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        assert state.memory is not None
        between, mask = self.cells[0](gates, state.hidden[0], mask=state.masks[0]), state.masks[-1]
        query = between[0] if mask is None else between[0] * mask
        context, weights = attend_step(query, state.memory)
        hidden = self.second(None, between, context, mask=mask)
        return RecurrentStep(self.stacked(state, hidden), context, weights)
