"""The state of a recurrent decoder: what is constant in a loop over the target, and the result of the last step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .decoder import State, beam_rows
from .recurrent_products import should_merge_equal_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...layers import EncoderMemory
    from ...layers.recurrent.deferred_gradient import DeferredLinear
    from ...layers.recurrent.rnn_cell import Hidden, LoopCell
    from .recurrent_products import RecurrentProducts


@dataclass
class RecurrentLoop:
    """What is constant in a loop over the target: cells, matrices, and what the decoder attends to."""

    cells: list[LoopCell]
    second: LoopCell | None  # the cell of the conditional decoder's second step
    memory: EncoderMemory | None
    query: DeferredLinear | None  # Luong's projection of the query, where the energy has one
    join: DeferredLinear | None  # Luong's h̃
    summary: Float[Tensor, "sentences width"]
    context: Float[Tensor, "sentences gates"] | None  # without attention: the summary's part of the gates
    products: RecurrentProducts | None = None  # for a search with several beams

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentLoop:
        return replace(
            self,
            memory=None if self.memory is None else self.memory.select(sentences),
            summary=self.summary[sentences],
            context=None if self.context is None else self.context[sentences],
            products=None if self.products is None else self.products.keep(sentences),
        )


@dataclass
class RecurrentStep:
    """The result of a step: `hidden` and `fed` for the next, `context` and `weights` for the output."""

    hidden: list[Hidden]
    fed: Float[Tensor, "rows width"] | None = None  # Luong's h̃
    context: Float[Tensor, "rows memory"] | None = None
    weights: Float[Tensor, "rows places"] | None = None


@dataclass
class RecurrentDecoderState(State):
    loop: RecurrentLoop
    last: RecurrentStep
    position: int
    beams: int
    rows: Int[Tensor, "rows"] | None = None  # of `last`, that the next step continues; None: all, in their order

    def reorder(self, rows: Int[Tensor, "rows"]) -> RecurrentDecoderState:
        """Where equal rows are multiplied once, the next step does it: several beams may continue one row."""
        state = self.in_order()
        if state.loop.products is not None and should_merge_equal_rows(rows):
            return replace(state, rows=rows)
        return replace(state, rows=rows).in_order()

    def in_order(self) -> RecurrentDecoderState:
        if self.rows is None:
            return self
        rows = self.rows
        hidden = [tuple(x[rows] for x in layer) for layer in self.last.hidden]
        last = RecurrentStep(hidden, None if self.last.fed is None else self.last.fed[rows])
        return replace(self, last=last, rows=None)

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentDecoderState:
        state = replace(self.in_order(), rows=beam_rows(sentences, self.beams)).in_order()
        return replace(state, loop=self.loop.keep(sentences))
