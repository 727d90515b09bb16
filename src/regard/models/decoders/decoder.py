"""What every decoder does: read annotations, teacher-forced over whole sentences or one token at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from ..annotations import Annotations


class State(ABC):
    """What a decoder remembers between steps, for `sentences × beams` rows; beam b of sentence s is row s·beams + b.

    A state is never changed in place where a caller could see it: `step`, `reorder` and `keep` give a new one, and the
    old one is not to be used again (its memory may be taken over).
    """

    @abstractmethod
    def reorder(self, rows: Int[Tensor, "rows"]) -> State:
        """Row i of the new state is row rows[i] of this one; a row stays within its sentence."""

    @abstractmethod
    def keep(self, sentences: Int[Tensor, "kept"]) -> State:
        """Only these sentences, with all their beams, go on."""


S = TypeVar("S", bound=State)


@dataclass
class Decoded:
    """Features of every target position, and the weights over the source they were made with, where asked for."""

    features: Float[Tensor, "batch target width"]
    weights: Float[Tensor, "batch maps target places"] | None  # a map per layer and head; one for an RNN; None if none


class Decoder(nn.Module, ABC, Generic[S]):
    """p(y_t | y_<t, source): `forward` for all t at once, or `start` and then `step` for one t after the other.

    The two agree to rounding. Both give features; `readout` turns features into logits over the vocabulary, so that a
    loss can skip padding and a search can ask for the last position alone.
    """

    embedding: nn.Embedding
    output: nn.Linear

    @abstractmethod
    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> Decoded:
        """Features at t, from tokens 0..t (the first is <s>): what predicts token t + 1."""

    @abstractmethod
    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> S:
        """The state before the first token, for `beams` rows per sentence and at most `steps` steps."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows"], state: S, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], S, Float[Tensor, "rows maps places"] | None]:
        """Feed one token per row: features that predict the next, the state after it, the weights if asked for."""

    def read(self, tokens: Int[Tensor, "rows n"], state: S) -> S:
        """The state after these, which are known already: a prompt. Some decoders read them all at once."""
        for one in tokens.unbind(1):
            _, state, _ = self.step(one, state)
        return state

    def extra(
        self, decoded: Decoded, wanted: Int[Tensor, "batch target"], real: Bool[Tensor, "batch target"]
    ) -> Tensor | None:
        """What a decoder adds to the loss of what it was made to write, summed over the batch; as a rule nothing."""
        return None

    def updated(self) -> None:
        """To be called after each update of the weights in training; as a rule nothing changes by it."""

    @property
    def most_steps(self) -> int | None:
        """How many steps there are positions for; None where there is no end to them."""
        return None

    @abstractmethod
    def readout(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Logits over the target vocabulary."""
