"""The LSTMN decoder: it attends to its own memory tape and, where there is a source, to the encoder's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import nn

from ..attention.energies import Additive
from ..layers.encoder_memory import EncoderMemory
from ..layers.kernels.loop import DeferredLinear
from ..layers.kernels.packed import Dropout
from ..layers.recurrent import LSTMN, loop_dtype
from .decoder import Decoder, DecoderConfig, DecoderOutput, State, beam_rows, output_matrix
from .encoders import token_embedding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..layers.recurrent import LSTMNInput, LSTMNLoop
    from .base import Annotations
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
class SourceAttention:
    """What is constant in a loop over the target: the encoder's tapes, and the matrices applied to them."""

    memory: EncoderMemory  # values: the annotations γ and, for deep fusion, the memory tape α beside them
    query: DeferredLinear  # of h_{t−1} (shallow) or γ̃_{t−1} (deep)
    gate: DeferredLinear | None  # of γ̃_t, for r_t


@dataclass
class LSTMNStep:
    """The result of a step: for the next the recurrent part of the query, for the output h_t and the context."""

    query: Float[Tensor, "rows width"] | None = None
    hidden: Float[Tensor, "rows width"] | None = None
    context: Float[Tensor, "rows memory"] | None = None
    weights: Float[Tensor, "rows places"] | None = None


@dataclass
class LSTMNDecoderState(State):
    loops: list[LSTMNLoop]
    source: SourceAttention | None
    last: LSTMNStep
    beams: int

    def reorder(self, rows: Int[Tensor, "rows"]) -> LSTMNDecoderState:
        query = None if self.last.query is None else self.last.query[rows]
        return replace(self, loops=[loop.select(rows) for loop in self.loops], last=LSTMNStep(query))

    def keep(self, sentences: Int[Tensor, "kept"]) -> LSTMNDecoderState:
        source = None if self.source is None else replace(self.source, memory=self.source.memory.select(sentences))
        return replace(self.reorder(beam_rows(sentences, self.beams)), source=source)


@dataclass
class TokenInputs:
    """The parts that depend on the tokens, for all steps at once: of gates and queries, source queries, and gate r."""

    y: Float[Tensor, "rows time embedding"]
    tape: LSTMNInput
    source: Float[Tensor, "rows time width"] | None
    gate: Float[Tensor, "rows time width"] | None

    def steps(self) -> Iterator[tuple[LSTMNInput, Tensor | None, Tensor | None]]:
        parts = (repeat(None) if x is None else x.unbind(1) for x in (self.source, self.gate))
        return zip(zip(*(x.unbind(1) for x in self.tape), strict=True), *parts, strict=False)


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
        inputs = self._inputs(tokens)
        starts = self._starts(annotations)
        state = self._start(
            annotations, starts[:1], inputs.y, tokens.shape[1]
        )  # the other layers have loops of their own
        steps, last = [], state.last
        for step_inputs in inputs.steps():
            last = self._first(state, last, *step_inputs)
            steps.append(last)
        h = torch.stack([step.hidden for step in steps if step.hidden is not None], 1)  # [batch, target, width]
        for layer, start in zip(self.layers[1:], starts[1:], strict=True):
            h, _ = layer(self.dropout(h), start)
        contexts = [step.context for step in steps if step.context is not None]
        features = self._features(h, inputs.y, torch.stack(contexts, 1) if contexts else None)
        maps = [step.weights for step in steps if step.weights is not None]
        return DecoderOutput(features, torch.stack(maps, 1)[:, None] if weights and maps else None)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> LSTMNDecoderState:
        state = self._start(annotations, self._starts(annotations), self.embedding.weight, steps)
        if beams == 1:
            return state
        rows = torch.arange(len(annotations.lengths), device=annotations.lengths.device).repeat_interleave(beams)
        return replace(state.reorder(rows), beams=beams)

    def step(
        self, tokens: Int[Tensor, "rows"], state: LSTMNDecoderState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], LSTMNDecoderState, Float[Tensor, "rows maps places"] | None]:
        inputs = self._inputs(tokens[:, None])
        last = self._first(state, state.last, *next(inputs.steps()))
        h = cast("Tensor", last.hidden)
        for layer, loop in zip(self.layers[1:], state.loops[1:], strict=True):
            h, _ = layer.step(loop, layer.inputs(self.dropout(h)))
        features = self._features(h[:, None], inputs.y, None if last.context is None else last.context[:, None])
        maps = last.weights[:, None] if weights and last.weights is not None else None
        return features[:, 0], replace(state, last=last), maps

    def _inputs(self, tokens: Int[Tensor, "rows time"]) -> TokenInputs:
        y = self.dropout(self.embedding(tokens))
        if self.gate is None or self.energy is None:
            return TokenInputs(y, self.layers[0].inputs(y), None, None)
        early = self.config.embedding
        return TokenInputs(
            y,
            self.layers[0].inputs(y),
            nn.functional.linear(y, self.energy.query.weight[:, :early]),
            nn.functional.linear(y, self.gate.weight[:, :early], self.gate.bias),
        )

    def _starts(self, annotations: Annotations) -> list[Tensor | None]:
        """The first entry of each layer's tapes; float32 at least, as the tapes are."""
        if not self.bridges:
            return [None] * self.config.layers
        starts = [torch.tanh(bridge(annotations.summary)) for bridge in self.bridges]
        return [start.to(torch.promote_types(start.dtype, torch.float32)) for start in starts]

    def _start(
        self, annotations: Annotations, starts: list[Tensor | None], like: Tensor, steps: int
    ) -> LSTMNDecoderState:
        """The state before the first step, of as many layers as there are `starts`."""
        vectors, tape = annotations.vectors, annotations.tape
        dtype = loop_dtype(like)
        rows = annotations.lengths.shape[0]
        loops = [layer.begin(rows, steps, dtype, start) for layer, start in zip(self.layers, starts, strict=False)]
        if self.energy is None:
            return LSTMNDecoderState(loops, None, LSTMNStep(), 1)
        late = self.energy.query.weight[:, self.config.embedding :] if self.gate else self.energy.query.weight
        query = DeferredLinear(late.to(dtype))
        if self.gate is None:
            source = SourceAttention(
                EncoderMemory.project(self.energy, vectors.to(dtype), annotations.lengths), query, None
            )
            return LSTMNDecoderState(loops, source, LSTMNStep(query(cast("Tensor", starts[0]))), 1)
        both = torch.cat([vectors, self.tape(vectors if tape is None else tape.to(vectors.dtype))], -1)
        memory = EncoderMemory.project(self.energy, vectors.to(dtype), annotations.lengths, values=both.to(dtype))
        gate = DeferredLinear(self.gate.weight[:, self.config.embedding :].to(dtype))
        return LSTMNDecoderState(
            loops, SourceAttention(memory, query, gate), LSTMNStep(query.matrix.new_zeros(rows, len(late))), 1
        )

    def _first(
        self, state: LSTMNDecoderState, last: LSTMNStep, x: LSTMNInput, query: Tensor | None, gate: Tensor | None
    ) -> LSTMNStep:
        """One step of the first layer, which attends to the source."""
        layer, loop, source = self.layers[0], state.loops[0], state.source
        if source is None or last.query is None:
            return LSTMNStep(hidden=layer.step(loop, x)[0])
        q = last.query if query is None else query + last.query
        context, weights = (x.flatten(0, 1) for x in source.memory.attend(q.unflatten(0, (-1, state.beams))))
        if source.gate is None or gate is None:
            hidden, _ = layer.step(loop, x, late=context)
            return LSTMNStep(source.query(hidden), hidden, context, weights)
        context, memory = context.split([context.shape[-1] - self.config.width, self.config.width], -1)
        r = torch.sigmoid(gate + source.gate(context))
        hidden, _ = layer.step(loop, x, added=r * memory)
        return LSTMNStep(source.query(context), hidden, context, weights)

    def _features(
        self,
        h: Float[Tensor, "rows time width"],
        y: Float[Tensor, "rows time embedding"],
        context: Float[Tensor, "rows time memory"] | None,
    ) -> Float[Tensor, "rows time embedding"]:
        """The features that predict the next token, for every step."""
        parts = [h, y] if context is None else [h, y, context]
        features: Tensor = self.dropout(torch.tanh(self.join(torch.cat([x.to(y.dtype) for x in parts], -1))))
        return features
