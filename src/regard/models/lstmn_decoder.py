"""The LSTMN decoder: it attends to its own memory tape and, where there is a source, to the encoder's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

import torch
from torch import nn

from ..attention.energies import Additive
from ..attention.step import Memory, attend_step
from ..layers.kernels.packed_products import Dropout, linear
from ..layers.recurrent import LSTMN, LSTMNState, loop_dtype, wide
from .decoder import Decoder, DecoderConfig, DecoderOutput, State, beam_rows, output_matrix
from .encoders import token_embedding

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .configurations import Annotations
    from .encoders import EncoderConfig


@dataclass(frozen=True)
class LSTMNDecoderConfig(DecoderConfig):
    """An LSTM that attends over all its states so far, and over an encoder's (Cheng et al. 2016, section 4)."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["lstmn"] = "lstmn"
    fusion: Literal["none", "shallow", "deep"] = "deep"  # how the encoder's tape enters; none without an encoder
    embedding: int = 256
    width: int = 256
    layers: int = 1
    dropout: float = 0.2

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        if (self.fusion == "none") == (encoder.kind == "none"):
            return []
        return [
            f'decoder.fusion = "{self.fusion}" over an encoder of kind "{encoder.kind}": it is "none" without an '
            'encoder, and "shallow" or "deep" with one'
        ]

    def build(self, vocabulary: int, memory: int, longest: int) -> LSTMNDecoder:
        return LSTMNDecoder(self, vocabulary, memory)


@dataclass
class LSTMNDecoderState(State):
    """The tapes of every layer after a step, and what the first layer attends to in the source."""

    layers: list[LSTMNState]
    memory: Memory | None  # values: the annotations γ and, for deep fusion, the memory tape α beside them
    read: Float[Tensor, "rows width"] | None  # what the next query of the source has: h_{t−1} (shallow), γ̃_{t−1} (deep)
    beams: int = 1

    def reorder(self, rows: Int[Tensor, "rows"]) -> LSTMNDecoderState:
        layers = [layer.select(rows) for layer in self.layers]
        return replace(self, layers=layers, read=None if self.read is None else self.read[rows])

    def keep(self, sentences: Int[Tensor, "kept"]) -> LSTMNDecoderState:
        memory = None if self.memory is None else self.memory.select(sentences)
        return replace(self.reorder(beam_rows(sentences, self.beams)), memory=memory)


class LSTMNStep(NamedTuple):
    """What a step of the first layer gives: h_t, and of the source the context γ̃_t and its weights."""

    hidden: Float[Tensor, "rows width"]
    context: Float[Tensor, "rows memory"] | None = None
    weights: Float[Tensor, "rows places"] | None = None


class LSTMNDecoder(Decoder[LSTMNDecoderState]):
    """An LSTMN over the target (Cheng, Dong and Lapata 2016, section 4), x_t the token it is given at step t.

    - none: a language model; there is no source.
    - shallow: γ̃_t = attend(h_{t−1}, γ) is one more input of the gates, as in Bahdanau et al. 2015.
    - deep: one attention over the encoder's tapes γ (its states) and α (its memories); its result enters the memory
      through a gate of its own:

        b_j^t = u · tanh(W_γ γ_j + W_x x_t + W_γ̃ γ̃_{t−1}),   p^t = softmax(b^t)
        γ̃_t = Σ_j p_j^t γ_j,   α̃_t = Σ_j p_j^t α_j
        r_t = σ(W_r [γ̃_t; x_t] + b_r),   c_t = r_t ⊙ α̃_t + f_t ⊙ c̃_t + i_t ⊙ ĉ_t

    Only the first layer attends to the source. The first entry of every layer's tapes is a state computed from the
    encoder's summary, if there is one. For an encoder without memories α = γ; tapes of another width than the
    decoder's are mapped to it. The features are tanh(W [h_t; x_t; γ̃_t]).
    """

    def __init__(self, config: LSTMNDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__()
        self.config = config
        width, deep = config.width, config.fusion == "deep"
        self.embedding = token_embedding(vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        self.bridges = nn.ModuleList(nn.Linear(memory, width) for _ in range(config.layers) if memory)
        first = LSTMN(config.embedding, width, late=memory if config.fusion == "shallow" else 0)
        self.layers = cast(
            "list[LSTMN]", nn.ModuleList([first, *(LSTMN(width, width) for _ in range(config.layers - 1))])
        )
        self.energy = Additive(config.embedding + memory if deep else width, memory, width) if memory else None
        self.gate = nn.Linear(config.embedding + memory, width) if deep else None
        self.tape = nn.Linear(memory, width, bias=False) if deep and memory != width else nn.Identity()
        self.join = nn.Linear(width + config.embedding + memory, config.embedding)
        self.output = output_matrix(config.embedding, vocabulary)

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        y, starts = self.dropout(self.embedding(tokens)), self._starts(annotations)
        state = self._state(annotations, starts[:1], tokens.shape[1])  # the layers above run on their own
        gates = self.layers[0].cell.input_gates(y)
        steps = [self.next(y_t, state, w_t) for y_t, w_t in zip(y.unbind(1), gates.unbind(1), strict=True)]
        h = torch.stack([step.hidden for step in steps], 1)  # [batch, target, width]
        for layer, start in zip(self.layers[1:], starts[1:], strict=True):
            h, _ = layer(self.dropout(h), start)
        contexts = [step.context for step in steps if step.context is not None]
        maps = [step.weights for step in steps if step.weights is not None]
        features = self._features(h, y, torch.stack(contexts, 1) if contexts else None)
        return DecoderOutput(features, torch.stack(maps, 1)[:, None] if weights and maps else None)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> LSTMNDecoderState:
        state = self._state(annotations, self._starts(annotations), steps)
        if beams == 1:
            return state
        rows = torch.arange(len(annotations.lengths), device=annotations.lengths.device).repeat_interleave(beams)
        return replace(state.reorder(rows), beams=beams)

    def step(
        self, tokens: Int[Tensor, "rows"], state: LSTMNDecoderState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], LSTMNDecoderState, Float[Tensor, "rows maps places"] | None]:
        y = self.dropout(self.embedding(tokens))
        step = self.next(y, state)
        h = step.hidden
        for layer, tapes in zip(self.layers[1:], state.layers[1:], strict=True):
            h, _ = layer.step(self.dropout(h), tapes)
        features = self._features(h, y, step.context)
        return features, state, step.weights[:, None] if weights and step.weights is not None else None

    def next(
        self,
        y: Float[Tensor, "rows embedding"],
        state: LSTMNDecoderState,
        gates: Float[Tensor, "rows gates"] | None = None,
    ) -> LSTMNStep:
        """One step of the first layer, which attends to the source; `gates` is W x_t + b, where it is known."""
        layer, tapes = self.layers[0], state.layers[0]
        if state.memory is None or state.read is None:
            return LSTMNStep(layer.step(y, tapes, gates=gates)[0])
        if self.gate is None:
            context, weights = attend_step(state.read, state.memory)
            hidden, _ = layer.step(y, tapes, gates=gates, late=context)
            state.read = hidden
            return LSTMNStep(hidden, context, weights)
        both, weights = attend_step(torch.cat([y, state.read.to(y.dtype)], -1), state.memory)
        width = self.config.width
        context, memory = both.split([both.shape[-1] - width, width], -1)  # γ̃, α̃
        r = torch.sigmoid(linear(self.gate, torch.cat([y, context.to(y.dtype)], -1)))
        hidden, _ = layer.step(y, tapes, gates=gates, added=r * memory)
        state.read = context
        return LSTMNStep(hidden, context, weights)

    def _starts(self, annotations: Annotations) -> list[Tensor | None]:
        """The first entry of each layer's tapes."""
        if not self.bridges:
            return [None] * self.config.layers
        return [wide(torch.tanh(bridge(annotations.summary))) for bridge in self.bridges]

    def _state(self, annotations: Annotations, starts: list[Tensor | None], steps: int) -> LSTMNDecoderState:
        """The state before the first step, of as many layers as there are `starts`."""
        rows, vectors = annotations.lengths.shape[0], annotations.vectors.to(loop_dtype(annotations.vectors))
        layers = [layer.start(rows, steps, start) for layer, start in zip(self.layers, starts, strict=False)]
        if self.energy is None:
            return LSTMNDecoderState(layers, None, None)
        if self.gate is None:
            memory = Memory(self.energy, vectors, lengths=annotations.lengths)
            return LSTMNDecoderState(layers, memory, starts[0])
        alpha = vectors if annotations.tape is None else annotations.tape.to(vectors.dtype)
        both = torch.cat([vectors, self.tape(alpha)], -1)
        memory = Memory(self.energy, vectors, both.to(vectors.dtype), lengths=annotations.lengths)
        return LSTMNDecoderState(layers, memory, vectors.new_zeros(rows, vectors.shape[-1]))

    def _features(
        self,
        h: Float[Tensor, "*steps width"],
        y: Float[Tensor, "*steps embedding"],
        context: Float[Tensor, "*steps memory"] | None,
    ) -> Float[Tensor, "*steps embedding"]:
        """The features that predict the next token."""
        parts = [h, y] if context is None else [h, y, context]
        features: Tensor = self.dropout(torch.tanh(self.join(torch.cat([x.to(y.dtype) for x in parts], -1))))
        return features
