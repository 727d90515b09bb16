"""The decoder of Show, Attend and Tell: an LSTM with soft or hard attention over a picture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import nn

from ..attention.energies import Additive
from ..attention.normalizers import Hard, Softmax
from ..attention.step import Memory, attend_step
from ..layers.kernels.packed_products import Dropout, linear
from ..layers.recurrent import RecurrentCell, loop_dtype, wide
from .configurations import UNBOUNDED
from .decoder import DecoderConfig, DecoderOutput, output_matrix
from .encoders import token_embedding
from .recurrent_decoder import LoopDecoder, RecurrentState, RecurrentStep

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .configurations import Annotations
    from .encoders import EncoderConfig

EXPECTED = 0.5  # share of sentences that use the average instead of a sample (Xu et al. 2015, section 4.1)
DECAY = 0.9  # of the moving average of the reward


@dataclass(frozen=True)
class ShowAttendTellDecoderConfig(DecoderConfig):
    """Show, Attend and Tell (Xu et al. 2015): an LSTM with gated attention over a picture before each word."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["tell"] = "tell"
    attention: Literal["none", "soft", "hard"] = "soft"
    penalty: float = field(default=0.0, metadata=UNBOUNDED)  # λ of the doubly stochastic penalty; soft attention's
    reward: float = field(default=0.1, metadata=UNBOUNDED)  # λ_r of REINFORCE; hard attention's
    entropy: float = field(default=0.002, metadata=UNBOUNDED)  # λ_e of the entropy of α; hard attention's
    warmup: int = 0  # updates over which hard attention goes from soft to sampled; `Decoder.updated` counts them
    hidden: int = 128  # of the additive energy
    embedding: int = 128
    width: int = 256
    dropout: float = 0.2

    def problems(self) -> list[str]:
        wrong = super().problems()
        for name, value, needed in (("penalty", self.penalty, "soft"), ("warmup", self.warmup, "hard")):
            if value and self.attention != needed:
                wrong.append(
                    f'{name} = {value} needs attention = "{needed}", and it is "{self.attention}"; set it to 0'
                )
        return wrong

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        if encoder.kind == "none":
            return ['decoder.kind = "tell" needs a source, and encoder.kind is "none"']
        return []

    def build(self, vocabulary: int, memory: int, longest: int) -> ShowAttendTellDecoder:
        return ShowAttendTellDecoder(self, vocabulary, memory)


@dataclass
class ShowAttendTellOutput(DecoderOutput):
    """In training, also what the attention's own term of the loss needs."""

    alphas: Float[Tensor, "batch target places"] | None = None  # attention weights α_ti
    log_prob: Float[Tensor, "batch target"] | None = None  # of the sampled places
    entropy: Float[Tensor, "batch target"] | None = None
    sampled: Bool[Tensor, "batch"] | None = None  # rows whose places were sampled


@dataclass
class ShowAttendTellState(RecurrentState):
    expected: Bool[Tensor, "sentences"] | None = None  # sentences that use the average, not a sample


class ShowAttendTellDecoder(LoopDecoder):
    """Xu et al. 2015, section 3.1.2, with a_i the annotations and ā their mean:

        h_0 = tanh(f_h(ā)), c_0 = tanh(f_c(ā))
        e_ti = w · tanh(W h_{t−1} + U a_i), α_t = softmax(e_t)
        β_t = σ(f_β(h_{t−1})), ẑ_t = β_t Σ_i α_ti a_i       (hard: β_t a_s for one place s; none: β_t ā)
        (h_t, c_t) = LSTM([E y_{t−1}; ẑ_t], h_{t−1}, c_{t−1})
        p(y_t) ∝ exp(L_o tanh(E y_{t−1} + L_h h_t + L_z ẑ_t))

    The tanh of the last line is in the authors' code, not in the paper. `extra` is the attention's term of the loss.
    """

    baseline: Float[Tensor, ""]
    updates: Int[Tensor, ""]  # so far

    def __init__(self, config: ShowAttendTellDecoderConfig, vocabulary: int, memory: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = token_embedding(vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        self.first_h = nn.Linear(memory, config.width)
        self.first_c = nn.Linear(memory, config.width)
        self.gate = nn.Linear(config.width, 1)
        self.cell = RecurrentCell("lstm", config.embedding, memory, config.width)
        self.energy = Additive(config.width, memory, config.hidden) if config.attends else None
        self.normalize = Hard("reinforce") if config.attention == "hard" else Softmax()
        self.from_state = nn.Linear(config.width, config.embedding)
        self.from_context = nn.Linear(memory, config.embedding, bias=False)
        self.output = output_matrix(config.embedding, vocabulary)
        if config.attention == "hard":
            self.register_buffer("baseline", torch.zeros(()))
        if config.warmup:
            self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def embed(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch embedding"]:
        y: Tensor = self.dropout(self.embedding(tokens))
        return y

    def input_gates(self, y: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch gates"]:
        return self.cell.input_gates(y)

    def decoded(self, y: Float[Tensor, "batch target e"], steps: list[RecurrentStep], weights: bool) -> DecoderOutput:
        decoded = super().decoded(y, steps, weights)
        alphas, log_prob, entropy = (_stacked(steps, name) for name in ("weights", "log_prob", "entropy"))
        if not self.training or alphas is None:
            return decoded
        expected = cast("ShowAttendTellState", steps[0].state).expected
        sampled = None if expected is None else ~expected
        return ShowAttendTellOutput(decoded.features, decoded.weights, alphas, log_prob, entropy, sampled)

    def extra(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"], real: Bool[Tensor, "batch target"]
    ) -> Tensor | None:
        """The term that attention adds to −log p(y | x), in training:

        - soft, with penalty λ: λ Σ_i (1 − Σ_t α_ti)², so that the weights of each place sum to 1 (section 4.2.1);
        - hard: −λ_r Σ_t log p(s_t) Σ_{u≥t} (log p(y_u | s) − b) − λ_e Σ_t H(α_t), whose gradient's expectation, at
          λ_r = 1 and λ_e = 0, together with that of −log p(y | s), is the gradient of −Σ_s p(s) log p(y | s) (section
          4.1). The paper rewards every sample with the whole caption; a sample cannot change the words before it, so
          their part is noise. The baseline b is a moving average of log p(y_u | s), updated after its use.
        """
        if not isinstance(decoded, ShowAttendTellOutput) or decoded.alphas is None:
            return None
        if decoded.log_prob is None or decoded.entropy is None or decoded.sampled is None:
            if not self.config.penalty:
                return None
            total = (decoded.alphas * real[..., None]).sum(1)  # [batch, places]
            filled = real.any(1)  # a filler row has no words
            return self.config.penalty * ((1 - total).square().sum(1) * filled).sum()
        with torch.no_grad():
            logits = self.readout(decoded.features)  # [batch, target, vocabulary]
            log_p = torch.log_softmax(logits, -1, dtype=self.baseline.dtype)
            reward = log_p.gather(-1, wanted[..., None])[..., 0]  # log p(y_u | s), [batch, target]
            sampled = decoded.sampled[:, None] & real
            advantage = (
                ((reward - self.baseline) * sampled).flip(1).cumsum(1).flip(1)
            )  # of this word and those after it
            mean = (reward * sampled).sum() / sampled.sum().clamp(min=1)
            self.baseline.copy_(torch.where(sampled.any(), torch.lerp(mean, self.baseline, DECAY), self.baseline))
        entropy = (decoded.entropy * real).sum()
        return -self.config.reward * (advantage * decoded.log_prob).sum() - self.config.entropy * entropy

    def updated(self) -> None:
        if self.config.warmup:
            self.updates += 1

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> ShowAttendTellState:
        dtype, summary, memory, expected = loop_dtype(annotations.vectors), annotations.summary, None, None
        if self.energy is not None:
            memory = Memory(
                self.energy, annotations.vectors.to(dtype), lengths=annotations.lengths, normalize=self.normalize
            )
        if self.training and self.config.attention == "hard":
            expected = torch.rand(len(summary), device=summary.device) < self._share()
        h, c = (wide(torch.tanh(first(summary))).repeat_interleave(beams, 0) for first in (self.first_h, self.first_c))
        mean = summary.to(dtype) if memory is None else None
        return ShowAttendTellState([(h, c)], memory, mean, [None], beams=beams, expected=expected)

    def next(self, gates: Float[Tensor, "rows gates"], state: RecurrentState) -> RecurrentStep:
        step = self.look(state.h, cast("ShowAttendTellState", state))
        assert step.context is not None
        beta = torch.sigmoid(linear(self.gate, state.h.to(self.gate.weight.dtype)))  # [rows, 1]
        z = beta * step.context
        hidden = self.cell(gates, state.hidden[0], z)
        return step._replace(state=replace(state, hidden=[hidden]), context=z)

    def look(self, h: Float[Tensor, "rows width"], state: ShowAttendTellState) -> RecurrentStep:
        """Σ_i w_i a_i with w = α (soft), or 1 at one place s (hard; section 4). In evaluation s = argmax α; in training
        s ~ α, and log α_s and the entropy H(α) are returned for REINFORCE. Rows that are `expected` use w = α."""
        memory, hard = state.memory, self.normalize
        if memory is None:
            assert state.summary is not None
            return RecurrentStep(state, state.summary.repeat_interleave(state.beams, 0))
        if state.expected is None or not isinstance(hard, Hard):
            return RecurrentStep(state, *attend_step(h, memory))
        e = memory.energies(memory.query(h[:, None]))
        log_alpha = torch.log_softmax(e, dim=-1)
        alpha = log_alpha.exp()
        sampled, picked = hard.both(e)
        w = torch.where(state.expected[:, None, None], alpha, sampled)
        # Not reported to a watch: rows with averages and rows with samples have no common normalizer.
        entropy = -(alpha * log_alpha.masked_fill(alpha == 0, 0)).sum(-1)  # 0 · log 0 = 0
        log_prob = log_alpha.gather(-1, picked[..., None])[..., 0]
        return RecurrentStep(state, memory.mix(w)[:, 0], w[:, 0], log_prob[:, 0], entropy[:, 0])

    def _share(self) -> float | Float[Tensor, ""]:
        """The share of sentences that use the average: with a warm-up, from all down to EXPECTED.

        A sample helps only once the decoder makes use of the context; before that it is noise.
        """
        if not self.config.warmup:
            return EXPECTED
        return (1 - (1 - EXPECTED) * self.updates / self.config.warmup).clamp(min=EXPECTED)

    def features(
        self, y: Float[Tensor, "rows time embedding"], steps: list[RecurrentStep]
    ) -> Float[Tensor, "rows time embedding"]:
        h = torch.stack([step.state.hidden[0][0] for step in steps], 1).to(y.dtype)
        z = torch.stack([step.context for step in steps if step.context is not None], 1).to(y.dtype)
        return self.dropout(torch.tanh(y + self.from_state(h) + self.from_context(z)))  # type: ignore[no-any-return]


def _stacked(steps: list[RecurrentStep], name: str) -> Tensor | None:
    values = [getattr(step, name) for step in steps]
    return None if any(value is None for value in values) else torch.stack(values, 1)
