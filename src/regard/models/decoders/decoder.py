"""The interface of every decoder, of its state while decoding, and of its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ...layers import linear
from ..config_base import PartConfig
from ..cross_entropy import cross_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from ..annotations import Annotations
    from ..cross_entropy import Loss
    from ..encoders.encoder import EncoderConfig


class DecoderConfig(PartConfig):
    """Base of the configurations of decoders."""

    @property
    def attends(self) -> bool:
        """Whether it attends to the annotations."""
        return getattr(self, "attention", None) != "none"

    @property
    def copies(self) -> bool:
        """Whether it can copy words of the source (`PointerDecoder`)."""
        return bool(getattr(self, "copy", False))

    @property
    def output_width(self) -> int:
        """Width of the features that the output matrix reads."""
        return self.embedding_width

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        """Why it cannot decode from this encoder; keys are given as encoder.KEY and decoder.KEY."""
        return []

    def build(self, vocabulary: int, memory: int, longest: int) -> Decoder[Any]:
        """The decoder over annotations `memory` wide, 0 where there are none."""
        raise NotImplementedError


class State(ABC):
    """A decoder's state between steps, for `sentences × beams` rows; beam b of sentence s is row s·beams + b.

    `step`, `reorder` and `keep` return a new state. The old one must not be used again: its memory may be reused.
    """

    @abstractmethod
    def reorder(self, rows: Int[Tensor, "rows"]) -> State:
        """Row i of the new state is row rows[i] of this one; a row stays within its sentence."""

    @abstractmethod
    def keep(self, sentences: Int[Tensor, "kept"]) -> State:
        """Only these sentences, with all their beams, continue."""


def beam_rows(sentences: Int[Tensor, "kept"], beams: int) -> Int[Tensor, "rows"]:
    """The rows of all beams of these sentences."""
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


S = TypeVar("S", bound=State)


@dataclass
class DecoderOutput:
    """Features of every target position, and the attention weights over the source where requested."""

    features: Float[Tensor, "batch target width"]
    weights: Float[Tensor, "batch maps target places"] | None  # one map per layer and head; one for an RNN
    _: KW_ONLY
    generation: Float[Tensor, "batch target"] | None = None  # p_gen of a decoder that copies
    source: Int[Tensor, "batch places"] | None = None  # the ids that it copies from


class Decoder(nn.Module, ABC, Generic[S]):
    """p(y_t | y_<t, source): `forward` for all t at once, or `start` and then `step` for one t after the other.

    The two agree to rounding. Both return features; `readout` maps them to logits over the vocabulary, so that a loss
    can skip padding and a search can compute the last position alone.
    """

    embedding: nn.Embedding
    output: nn.Linear
    most_steps: int | None = None
    """The number of positions it has; None where they are unlimited."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens of the target vocabulary."""
        return self.embedding.num_embeddings

    @abstractmethod
    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        """Features at t, from tokens 0..t (the first is <s>): what predicts token t + 1."""

    @abstractmethod
    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> S:
        """The state before the first token, for `beams` rows per sentence and at most `steps` steps."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows"], state: S, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], S, Float[Tensor, "rows maps places"] | None]:
        """Feed one token per row: features that predict the next, the new state, the weights if requested."""

    def read(self, tokens: Int[Tensor, "rows n"], state: S) -> S:
        """The state after the tokens of a prompt. Some decoders read them all at once."""
        for token in tokens.unbind(1):
            _, state, _ = self.step(token, state)
        return state

    def target_logprobs(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target"]:
        """log p of each wanted token, in float32 at least. `loss` is minus its sum over the real positions."""
        logits = self.readout(decoded.features)
        log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_p.gather(-1, wanted[..., None])[..., 0]

    def loss(
        self,
        decoded: DecoderOutput,
        wanted: Int[Tensor, "batch target"],
        real: Bool[Tensor, "batch target"],
        smoothing: float = 0.0,
    ) -> Loss:
        """−Σ log p(wanted) over the real positions, with label smoothing."""
        return cross_entropy(decoded.features, self.output.weight, wanted, real, smoothing)

    def extra(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"], real: Bool[Tensor, "batch target"]
    ) -> Tensor | None:
        """A term that the decoder adds to the loss, summed over the batch; None for most."""
        return None

    def updated(self) -> None:
        """Called after each update of the weights in training; most decoders ignore it."""

    def readout(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Logits over the target vocabulary."""
        return linear(self.output, features)


def output_matrix(width: int, vocabulary: int) -> nn.Linear:
    """The matrix from features to logits; its rows have length about 1, as those of an embedding table have."""
    matrix = nn.Linear(width, vocabulary, bias=False)
    nn.init.normal_(matrix.weight, std=width**-0.5)
    return matrix
