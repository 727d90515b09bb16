"""Recurrent decoders without attention (Cho et al. 2014; Sutskever et al. 2014), and what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..attention.energies import Additive, Concat, Dot, General
from ..attention.step import Memory
from ..layers.kernels.packed_products import Dropout, linear
from ..layers.recurrent import Hidden, RecurrentCell, loop_dtype, wide
from .configurations import CellKind  # noqa: TC001  read at run time
from .decoder import Decoder, DecoderConfig, DecoderOutput, State, beam_rows, output_matrix
from .encoders import drop_words, token_embedding

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from ..attention.energies import LearnedEnergy
    from .configurations import Annotations
    from .encoders import EncoderConfig


@dataclass(frozen=True)
class RecurrentDecoderConfig(DecoderConfig):
    """A GRU or LSTM that attends to the annotations before its step (Bahdanau), after it (Luong), between two steps
    (conditional), or not at all."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["rnn"] = "rnn"
    attention: Literal["none", "bahdanau", "luong", "conditional"] = "bahdanau"
    energy: Literal["additive", "dot", "general", "concat"] = "additive"
    scope: Literal["global", "local-m", "local-p"] = "global"  # Luong 2015, section 3.2
    window: int = 10  # D of local attention: it covers 2D + 1 positions
    input_feeding: bool = True  # Luong 2015, section 3.3
    cell: CellKind = "gru"
    embedding: int = 256
    width: int = 512
    layers: int = 1
    readout: Literal["plain", "maxout"] = "plain"
    dropout: float = 0.2
    recurrent_dropout: float = 0.0  # of the state, where recurrent matrices read it: one mask per sentence (Gal 2016)
    word_dropout: float = 0.0  # of whole input words
    copy: bool = False  # copy words of the source (`PointerDecoder`)

    @property
    def output_width(self) -> int:
        return self.width if self.attention == "luong" else self.embedding

    def problems(self) -> list[str]:
        wrong = super().problems()
        if self.scope != "global" and self.attention != "luong":
            wrong.append(f'scope = "{self.scope}" needs attention = "luong", and it is "{self.attention}"')
        if self.readout == "maxout" and self.attention == "luong":
            wrong.append('readout = "maxout" is not for attention = "luong", which reads out h̃; set it to "plain"')
        if self.copy and (self.attention == "none" or self.scope != "global"):
            wrong.append(
                "copy = true copies the words that attention points to, with weights that sum to 1; it needs attention "
                f'with scope = "global", and here attention = "{self.attention}" and scope = "{self.scope}"'
            )
        return wrong

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        if self.attention == "none":
            return []
        if encoder.kind == "none":
            return [f'decoder.attention = "{self.attention}" has nothing to attend to; set it to "none"']
        if self.energy == "dot" and self.width != encoder.annotation_width:
            return [
                f'decoder.energy = "dot" needs a decoder as wide as the annotations: decoder.width is {self.width}, '
                f'and they are {encoder.annotation_width} wide; change one, or use "general"'
            ]
        return []

    def build(self, vocabulary: int, memory: int, longest: int) -> RecurrentDecoder:
        from .bahdanau import BahdanauDecoder, ConditionalDecoder
        from .luong import LuongDecoder

        kinds = {"bahdanau": BahdanauDecoder, "conditional": ConditionalDecoder, "luong": LuongDecoder}
        return kinds.get(self.attention, RecurrentDecoder)(self, vocabulary, memory)

    def energy_function(self, memory: int) -> LearnedEnergy | Dot:
        """The energy of a state and an annotation `memory` wide."""
        if self.energy == "dot":
            return Dot()
        if self.energy == "general":
            return General(self.width, memory)
        kind = Additive if self.energy == "additive" else Concat
        return kind(self.width, memory, self.width)


@dataclass
class RecurrentState(State):
    """The states of all layers after a step, and what stays the same in the loop."""

    hidden: list[Hidden]
    memory: Memory | None  # what it attends to
    summary: Float[Tensor, "sentences width"] | None  # of the source, for a decoder that does not attend
    masks: list[Tensor] | list[None]  # of recurrent dropout, for each layer
    fed: Float[Tensor, "rows width"] | None = None  # Luong's h̃
    position: Int[Tensor, "sentences"] | None = None  # of the next word, for attention around it
    beams: int = 1

    @property
    def h(self) -> Float[Tensor, "rows width"]:
        """The state of the first layer, as recurrent matrices read it."""
        h, mask = self.hidden[0][0], self.masks[0]
        return h if mask is None else h * mask

    def reorder(self, rows: Int[Tensor, "rows"]) -> RecurrentState:
        fed = None if self.fed is None else self.fed[rows]
        return replace(self, hidden=[tuple(x[rows] for x in layer) for layer in self.hidden], fed=fed)

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentState:
        memory = None if self.memory is None else self.memory.select(sentences)
        summary, position = (None if x is None else x[sentences] for x in (self.summary, self.position))
        rows = self.reorder(beam_rows(sentences, self.beams))
        return replace(rows, memory=memory, summary=summary, position=position)


class RecurrentStep(NamedTuple):
    """What a step of the loop gives: the states, and of attention the context and its weights."""

    state: RecurrentState
    context: Float[Tensor, "rows memory"] | None = None
    weights: Float[Tensor, "rows places"] | None = None
    log_prob: Float[Tensor, "rows"] | None = None  # of a sampled place
    entropy: Float[Tensor, "rows"] | None = None  # of the distribution that it is a sample of


class LoopDecoder(Decoder[RecurrentState]):
    """A decoder each of whose steps needs the one before: `forward` is a loop of `next`.

    What its first cell makes of the words, W y_{t−1} + b, is computed for all steps at once.
    """

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch embedding"]:
        """The words as vectors y."""

    @abstractmethod
    def input_gates(self, y: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch gates"]:
        """W y + b."""

    @abstractmethod
    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        """One step, given the part of its gates that depends on the last word: W y_{t−1} + b."""

    @abstractmethod
    def features(
        self, y: Float[Tensor, "rows time embedding"], steps: list[RecurrentStep]
    ) -> Float[Tensor, "rows time width"]:
        """What predicts the next word, for every step."""

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        y, state = self.embed(tokens), self.start(annotations)  # y [batch, target, embedding]
        steps = []
        for gates in self.input_gates(y).unbind(1):
            steps.append(self.next(gates, state))
            state = steps[-1].state
        return self.decoded(y, steps, weights)

    def decoded(self, y: Float[Tensor, "batch target e"], steps: list[RecurrentStep], weights: bool) -> DecoderOutput:
        maps = [step.weights for step in steps if step.weights is not None]
        return DecoderOutput(self.features(y, steps), torch.stack(maps, 1)[:, None] if weights and maps else None)

    def step(
        self, tokens: Int[Tensor, "rows"], state: RecurrentState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], RecurrentState, Float[Tensor, "rows maps places"] | None]:
        y = self.embed(tokens)
        step = self.next(self.input_gates(y), state)
        maps = step.weights[:, None] if weights and step.weights is not None else None
        return self.features(y[:, None], [step])[:, 0], step.state, maps


class RecurrentDecoder(LoopDecoder):
    """h_t = cell([y_{t−1}; c], h_{t−1}), c the encoder's summary (Cho et al. 2014; Sutskever et al. 2014).

    Reads out tanh(W [h_t; y_{t−1}; c]), or the larger of each two numbers (maxout) in place of the tanh (Bahdanau et
    al. 2015, appendix A.2.2). With `memory` 0 there are no annotations: a language model, h_t = cell(y_{t−1}, h_{t−1})
    from zeros.
    """

    def __init__(self, config: RecurrentDecoderConfig, vocabulary: int, memory: int, late: int = 0) -> None:
        """`late` is the width of an input of the first cell that is computed at each step."""
        super().__init__()
        self.config = config
        self.embedding = token_embedding(vocabulary, config.embedding)
        self.dropout, self.word_dropout = Dropout(config.dropout), Dropout(config.word_dropout)
        self.recurrent_dropout = Dropout(config.recurrent_dropout)
        self.bridges = nn.ModuleList(nn.Linear(memory, config.width) for _ in range(config.layers) if memory)
        first = RecurrentCell(config.cell, config.embedding, late, config.width)
        above = (RecurrentCell(config.cell, 0, config.width, config.width) for _ in range(config.layers - 1))
        self.cells = cast("list[RecurrentCell]", nn.ModuleList([first, *above]))
        self.energy = None if config.attention == "none" else config.energy_function(memory)
        self.context = nn.Linear(memory, first.size) if self.energy is None and memory else None
        self.join, self.output = self.readers(vocabulary, memory)

    def readers(self, vocabulary: int, memory: int) -> tuple[nn.Linear, nn.Linear]:
        """The matrix that joins state, word and context, and the one that makes logits of that."""
        config, twice = self.config, 2 if self.config.readout == "maxout" else 1
        join = nn.Linear(config.width + config.embedding + memory, config.embedding * twice)
        return join, output_matrix(config.embedding, vocabulary)

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch embedding"]:
        y: Tensor = self.dropout(drop_words(self.embedding(tokens), self.word_dropout))
        return y

    def input_gates(self, y: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch gates"]:
        return self.cells[0].input_gates(y)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> RecurrentState:
        summary, config, rows = annotations.summary, self.config, annotations.lengths.shape[0] * beams
        dtype = loop_dtype(annotations.vectors if self.bridges else self.embedding.weight)
        memory, zeros = None, wide(torch.zeros(rows, config.width, dtype=dtype, device=summary.device))
        if self.energy is not None:
            memory = Memory(self.energy, annotations.vectors.to(dtype), lengths=annotations.lengths)
        h = [wide(torch.tanh(bridge(summary)).to(dtype)).repeat_interleave(beams, 0) for bridge in self.bridges]
        hidden = [cell.first(first) for cell, first in zip(self.cells, h or [zeros] * config.layers, strict=True)]
        masks = [None] * (config.layers + 1)
        if self.training and config.recurrent_dropout:
            masks = [self.recurrent_dropout(torch.ones_like(zeros)) for _ in masks]
        return RecurrentState(hidden, memory, None if self.context is None else summary, masks, beams=beams)

    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        if self.context is not None and state.summary is not None:
            gates = gates + self.context(state.summary).repeat_interleave(state.beams, 0)
        return RecurrentStep(self.stacked(state, self.cells[0](gates, state.hidden[0], mask=state.masks[0])))

    def stacked(self, state: RecurrentState, hidden: Hidden) -> RecurrentState:
        """The state after the first layer has become `hidden` and the layers above have read it."""
        layers = [hidden]
        for cell, before, mask in zip(self.cells[1:], state.hidden[1:], state.masks[1:], strict=False):
            layers.append(cell(None, before, self.dropout(layers[-1][0]), mask=mask))
        return replace(state, hidden=layers)

    def features(
        self, y: Float[Tensor, "rows time embedding"], steps: list[RecurrentStep]
    ) -> Float[Tensor, "rows time width"]:
        parts = [torch.stack([step.state.hidden[-1][0] for step in steps], 1), y]
        state = steps[0].state
        if state.summary is not None:
            parts.append(state.summary.repeat_interleave(state.beams, 0)[:, None].expand(-1, len(steps), -1))
        elif self.energy is not None:
            parts.append(torch.stack([step.context for step in steps if step.context is not None], 1))
        joined = linear(self.join, torch.cat([part.to(y.dtype) for part in parts], -1))
        maxout = self.config.readout == "maxout"
        return self.dropout(joined.unflatten(-1, (-1, 2)).amax(-1) if maxout else torch.tanh(joined))  # type: ignore[no-any-return]
