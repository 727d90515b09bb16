"""Several decoders over one encoder: each sentence is decoded by one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from .decoder import Decoder, DecoderOutput, State, beam_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..annotations import Annotations


@dataclass
class SwitchState(State):
    """The states of the decoders in use, each over all rows; `choice` is the decoder of each row."""

    states: dict[int, Any]
    choice: Int[Tensor, "rows"]
    beams: int

    def reorder(self, rows: Int[Tensor, "rows"]) -> SwitchState:
        states = {number: state.reorder(rows) for number, state in self.states.items()}
        return replace(self, states=states, choice=self.choice[rows])

    def keep(self, sentences: Int[Tensor, "kept"]) -> SwitchState:
        states = {number: state.keep(sentences) for number, state in self.states.items()}
        return replace(self, states=states, choice=self.choice[beam_rows(sentences, self.beams)])


class JoinedOutput(nn.Module):
    """The output matrices of the decoders side by side: [vocabulary, decoders × width]."""

    def __init__(self, decoders: Sequence[Decoder[Any]]) -> None:
        super().__init__()
        self.decoders = tuple(decoders)  # a tuple, which does not register them again

    @property
    def weight(self) -> Float[Tensor, "vocabulary width"]:
        return torch.cat([decoder.output.weight for decoder in self.decoders], -1)

    def forward(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return nn.functional.linear(features, self.weight)


class DecoderSwitch(Decoder[SwitchState]):
    """Row b is decoded by decoder number `annotations.decoder[b]`.

    The features of a row are zero but for the block of its own decoder, so the joined output matrix gives its logits:
    [0, f] · [W_0, W_1]ᵀ = f · W_1ᵀ.
    """

    def __init__(self, decoders: Sequence[Decoder[Any]]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)
        self.embedding = decoders[0].embedding
        self.output = cast("nn.Linear", JoinedOutput(decoders))
        self.most_steps = min((each.most_steps for each in decoders if each.most_steps is not None), default=None)

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        choice, features, maps = self._choice(annotations), None, None
        for number in choice.unique().tolist():
            rows = (choice == number).nonzero().squeeze(1)
            decoded = self.decoders[number](tokens[rows], annotations.select(rows), weights=weights)
            features = _scatter(features, self._block(decoded.features, number), rows, len(choice))
            if decoded.weights is not None:
                maps = _scatter(maps, decoded.weights, rows, len(choice))
        return DecoderOutput(cast("Tensor", features), maps)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> SwitchState:
        choice = self._choice(annotations)
        states = {
            number: self._each(number).start(annotations, beams=beams, steps=steps)
            for number in choice.unique().tolist()
        }
        return SwitchState(states, choice.repeat_interleave(beams), beams)

    def step(
        self, tokens: Int[Tensor, "rows"], state: SwitchState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], SwitchState, Float[Tensor, "rows maps places"] | None]:
        features, maps, states = None, None, {}
        for number, before in state.states.items():
            features_of_decoder, states[number], own = self._each(number).step(tokens, before, weights=weights)
            is_chosen = state.choice == number
            block = self._block(features_of_decoder * is_chosen[:, None], number)
            features = block if features is None else features + block
            if own is not None:
                own = own * is_chosen[:, None, None]
                maps = own if maps is None else maps + own
        return cast("Tensor", features), replace(state, states=states), maps

    def updated(self) -> None:
        for number in range(len(self.decoders)):
            self._each(number).updated()

    def _each(self, number: int) -> Decoder[Any]:
        return cast("Decoder[Any]", self.decoders[number])

    def _choice(self, annotations: Annotations) -> Int[Tensor, "batch"]:
        if annotations.decoder is None:
            raise ValueError("these annotations do not say which decoder reads them; encode with the model's encoder")
        return annotations.decoder

    def _block(self, features: Float[Tensor, "*batch width"], number: int) -> Float[Tensor, "*batch joined"]:
        """The features in the block of this decoder, zeros in the others."""
        width = features.shape[-1]
        return nn.functional.pad(features, (number * width, (len(self.decoders) - 1 - number) * width))


def _scatter(into: Tensor | None, part: Tensor, rows: Int[Tensor, "rows"], count: int) -> Tensor:
    """Rows of a batch of `count` rows; the others keep what they have, or zeros."""
    whole = part.new_zeros(count, *part.shape[1:]) if into is None else into
    return whole.index_copy(0, rows, part.to(whole.dtype))
