"""Recurrent decoders: without attention, or attending before the step (Bahdanau), after it (Luong) or between two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..attention.energies import Additive, Concat, Dot, General
from ..layers.encoder_memory import EncoderMemory, LocalAttention
from ..layers.kernels.loop import DeferredLinear
from ..layers.kernels.packed import Dropout, linear
from ..layers.recurrent import Hidden, LoopCell, RecurrentCell, loop_dtype
from .base import CellKind  # noqa: TC001  read at run time
from .decoder import Decoder, DecoderConfig, DecoderOutput, State, beam_rows, output_matrix
from .encoders import drop_words, token_embedding

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from ..attention.energies import LearnedEnergy
    from .base import Annotations
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
        return RecurrentDecoder(self, vocabulary, memory)


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

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentLoop:
        return replace(
            self,
            memory=None if self.memory is None else self.memory.select(sentences),
            summary=self.summary[sentences],
            context=None if self.context is None else self.context[sentences],
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

    def reorder(self, rows: Int[Tensor, "rows"]) -> RecurrentDecoderState:
        hidden = [tuple(x[rows] for x in layer) for layer in self.last.hidden]
        return replace(self, last=RecurrentStep(hidden, None if self.last.fed is None else self.last.fed[rows]))

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentDecoderState:
        return replace(self.reorder(beam_rows(sentences, self.beams)), loop=self.loop.keep(sentences))


class RecurrentDecoder(Decoder[RecurrentDecoderState]):
    """A GRU or LSTM over the target.

    - none: h_t = cell([y_{t−1}; c], h_{t−1}), c the encoder's summary (Cho et al. 2014; Sutskever et al. 2014)
    - bahdanau: c_t = attend(h_{t−1}, annotations), h_t = cell([y_{t−1}; c_t], h_{t−1})  (Bahdanau et al. 2015)
    - luong: h_t = cell([y_{t−1}; h̃_{t−1}], h_{t−1}), c_t = attend(h_t, annotations), h̃_t = tanh(W [c_t; h_t])
      (Luong et al. 2015; h̃_{t−1} is there with input feeding, section 3.3)
    - conditional: h'_t = cell₁(y_{t−1}, h_{t−1}), c_t = attend(h'_t, annotations), h_t = cell₂(c_t, h'_t)  (the
      conditional GRU of Firat and Cho 2016 and Nematus, Sennrich et al. 2017, section 2)

    Luong reads out h̃_t; the others tanh(W [h_t; y_{t−1}; c_t]), or the larger of each two numbers (maxout) in place
    of the tanh (Bahdanau et al. 2015, appendix A.2.2).

    With `memory` 0 there are no annotations: a language model, h_t = cell(y_{t−1}, h_{t−1}) from zeros.
    """

    def __init__(self, config: RecurrentDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__()
        luong = config.attention == "luong"
        self.config, self._luong = config, luong
        self.embedding = token_embedding(vocabulary, config.embedding)
        self.dropout, self.word_dropout = Dropout(config.dropout), Dropout(config.word_dropout)
        self.recurrent_dropout = Dropout(config.recurrent_dropout)
        self.bridges = nn.ModuleList(nn.Linear(memory, config.width) for _ in range(config.layers) if memory)
        fed = config.width if luong and config.input_feeding else 0
        late = memory if config.attention == "bahdanau" else fed
        first = RecurrentCell(config.cell, config.embedding, late, config.width)
        conditional = config.attention == "conditional"
        self.second = RecurrentCell(config.cell, 0, memory, config.width) if conditional else None
        above = (RecurrentCell(config.cell, 0, config.width, config.width) for _ in range(config.layers - 1))
        self.cells = cast("list[RecurrentCell]", nn.ModuleList([first, *above]))
        self.energy = None if config.attention == "none" else _energy(config, memory)
        self.context = nn.Linear(memory, first.size) if self.energy is None and memory else None
        self.local = None if config.scope == "global" else LocalAttention(config.width, config.window, config.scope)
        self.join: nn.Linear
        if luong:
            width, self.join = config.width, nn.Linear(memory + config.width, config.width, bias=False)
        else:
            width, twice = config.embedding, 2 if config.readout == "maxout" else 1
            self.join = nn.Linear(config.width + config.embedding + memory, width * twice)
        self.output = output_matrix(width, vocabulary)

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        y = self._embed(tokens)  # [batch, target, embedding]
        loop, step = self._start(annotations)
        steps = []
        for position, gates in enumerate(self.cells[0].input_gates(y).unbind(1)):
            step = self._step(loop, step, gates, position, beams=1)
            steps.append(step)
        features = self._features(loop, y, steps)
        if not weights or self.energy is None:
            return DecoderOutput(features, None)
        return DecoderOutput(features, torch.stack([s.weights for s in steps if s.weights is not None], 1)[:, None])

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> RecurrentDecoderState:
        loop, step = self._start(annotations)
        hidden = [tuple(x.repeat_interleave(beams, 0) for x in layer) for layer in step.hidden]
        fed = None if step.fed is None else step.fed.repeat_interleave(beams, 0)
        return RecurrentDecoderState(loop, RecurrentStep(hidden, fed), 0, beams)

    def step(
        self, tokens: Int[Tensor, "rows"], state: RecurrentDecoderState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], RecurrentDecoderState, Float[Tensor, "rows maps places"] | None]:
        y = self._embed(tokens)
        after = self._step(state.loop, state.last, self.cells[0].input_gates(y), state.position, state.beams)
        features = self._features(state.loop, y[:, None], [after])[:, 0]
        maps = after.weights[:, None] if weights and after.weights is not None else None
        return features, replace(state, last=after, position=state.position + 1), maps

    def _embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch embedding"]:
        y: Tensor = self.dropout(drop_words(self.embedding(tokens), self.word_dropout))
        return y

    def _start(self, annotations: Annotations) -> tuple[RecurrentLoop, RecurrentStep]:
        project = self.energy.query_matrix if isinstance(self.energy, nn.Module) else None
        vectors = annotations.vectors
        dtype = loop_dtype(vectors if vectors.shape[-1] else self.embedding.weight)
        vectors = vectors.to(dtype)
        # The state itself stays in float32 at least: rounding it at every step would add up.
        wide = torch.promote_types(dtype, torch.float32)
        # The query is the state before a step, which its cell multiplies too: one product for both. Luong's is not.
        also = None if self._luong else project

        def unroll(cell: RecurrentCell, also: Tensor | None) -> LoopCell:
            mask = None
            if self.training and self.config.recurrent_dropout:
                mask = self.recurrent_dropout(vectors.new_ones(len(vectors), self.config.width, dtype=wide))
            return cell.unroll(dtype, also=also, mask=mask)

        loop = RecurrentLoop(
            cells=[
                unroll(cell, None if number or self.second is not None else also)
                for number, cell in enumerate(self.cells)
            ],
            second=None if self.second is None else unroll(self.second, also),
            memory=None if self.energy is None else EncoderMemory.project(self.energy, vectors, annotations.lengths),
            query=DeferredLinear(project.to(dtype)) if self._luong and project is not None else None,
            join=DeferredLinear(self.join.weight.to(dtype)) if self._luong else None,
            summary=annotations.summary,
            context=None if self.context is None else self.context(annotations.summary),
        )
        starts = [torch.tanh(bridge(annotations.summary)).to(wide) for bridge in self.bridges] or [
            vectors.new_zeros(annotations.lengths.shape[0], self.config.width, dtype=wide)
        ] * len(self.cells)
        hidden = [cell.first(start) for cell, start in zip(self.cells, starts, strict=True)]
        feeds = self._luong and self.config.input_feeding
        return loop, RecurrentStep(hidden, torch.zeros_like(hidden[-1][0]) if feeds else None)

    def _step(
        self, loop: RecurrentLoop, last: RecurrentStep, gates: Float[Tensor, "rows gates"], position: int, beams: int
    ) -> RecurrentStep:
        """h_t from h_{t−1} and W y_{t−1}; c_t and the weights; of Luong also h̃_t."""
        first, before, memory = loop.cells[0], last.hidden[0], loop.memory
        recurrent, q = first.recall(before)
        context = weights = fed = None
        if self.config.attention == "bahdanau" and memory is not None:
            context, weights = _attend(memory, q, before, beams)
            hidden = [first.step(gates, context, recurrent, before)]
        elif loop.second is not None and memory is not None:
            between = first.step(gates, None, recurrent, before)
            recurrent, q = loop.second.recall(between)
            context, weights = _attend(memory, q, between, beams)
            hidden = [loop.second.step(None, context, recurrent, between)]
        else:
            gates = gates if loop.context is None else gates + loop.context.repeat_interleave(beams, 0)
            hidden = [first.step(gates, last.fed, recurrent, before)]
        for cell, before in zip(loop.cells[1:], last.hidden[1:], strict=True):
            hidden.append(cell.step(None, self.dropout(hidden[-1][0]), cell.recall(before)[0], before))
        if loop.join is not None and memory is not None:
            top, closed, scale = hidden[-1][0], None, None
            q = top.to(loop.join.matrix.dtype) if loop.query is None else loop.query(top)
            if self.local is not None:
                closed, scale = self.local(top.unflatten(0, (-1, beams)), position, memory.lengths, memory.places)
            attended = memory.attend(q.unflatten(0, (-1, beams)), closed=closed, scale=scale)
            context, weights = (x.flatten(0, 1) for x in attended)
            fed = torch.tanh(loop.join(torch.cat([context, top.to(context.dtype)], -1)))
        return RecurrentStep(hidden, fed, context, weights)

    def _features(
        self, loop: RecurrentLoop, y: Float[Tensor, "rows time embedding"], steps: list[RecurrentStep]
    ) -> Tensor:
        """The features that predict the next token, for every step: [rows, time, width]."""
        if self._luong:
            return self.dropout(torch.stack([s.fed for s in steps if s.fed is not None], 1))  # type: ignore[no-any-return]
        h = torch.stack([s.hidden[-1][0] for s in steps], 1)
        if self.energy is None:
            c = loop.summary.repeat_interleave(h.shape[0] // loop.summary.shape[0], 0)[:, None].expand(
                -1, len(steps), -1
            )
        else:
            c = torch.stack([s.context for s in steps if s.context is not None], 1)
        joined = linear(self.join, torch.cat([h.to(y.dtype), y, c.to(y.dtype)], -1))
        maxout = self.config.readout == "maxout"
        return self.dropout(joined.unflatten(-1, (-1, 2)).amax(-1) if maxout else torch.tanh(joined))  # type: ignore[no-any-return]


def _attend(
    memory: EncoderMemory, q: Float[Tensor, "rows d"], hidden: Hidden, beams: int
) -> tuple[Float[Tensor, "rows memory"], Float[Tensor, "rows places"]]:
    """Context and weights for a state `hidden` and its projection q, which is empty where the energy projects none."""
    q = q if q.shape[1] else hidden[0].to(q.dtype)
    context, weights = memory.attend(q.unflatten(0, (-1, beams)))
    return context.flatten(0, 1), weights.flatten(0, 1)


def _energy(config: RecurrentDecoderConfig, memory: int) -> LearnedEnergy | Dot:
    if config.energy == "dot":
        return Dot()
    if config.energy == "general":
        return General(config.width, memory)
    kind = Additive if config.energy == "additive" else Concat
    return kind(config.width, memory, config.width)
