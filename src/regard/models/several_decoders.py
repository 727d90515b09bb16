"""One encoder with several decoders that are trained together (Dong et al. 2015): a tag before the source names one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..special_tokens import BEGIN
from .decoder import Decoder, DecoderOutput, State, beam_rows
from .encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from .encoders import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int

    from .configurations import Annotations, ExportEngine


@dataclass(frozen=True)
class MultiDecoderConfig(EncoderDecoderConfig):
    """An encoder-decoder with one decoder for each source token in `tags`; all decoders have the same sizes."""

    tags: list[int] = field(default_factory=list)

    @property
    def capturable(self) -> bool:
        """No: which rows go to which decoder is read back from the GPU, and differs from batch to batch."""
        return False

    def export_problem(self, engine: ExportEngine) -> str | None:
        if engine == "onnx":
            return super().export_problem(engine)
        return (
            f"a model with several decoders, here {len(self.tags)}, is not exported to {engine}; export it with --to "
            "onnx, or train one model for each language, without `decoders` in the recipe"
        )

    def problems(self) -> list[str]:
        if wrong := super().problems():
            return wrong
        if self.tied == "all":
            return ['tied = "all" shares the encoder\'s embeddings with one decoder, and there are several']
        if self.decoder.copies:
            return ["decoder.copy = true is for a model with one decoder, and there are several"]
        if self.encoder.reads != "text":
            return [f"tags are words of a text, and this encoder reads {self.encoder.reads}"]
        return [] if len(set(self.tags)) == len(self.tags) else [f"tags has one token twice: {self.tags}"]


class TagEncoder(Encoder):
    """Replaces the tag that begins a sentence by <s> for all, so that annotations are the same for all decoders.

    The tag's number among `tags` goes into `Annotations.decoder`.
    """

    tags: Tensor

    def __init__(self, encoder: Encoder, tags: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.width = encoder, encoder.width
        self.register_buffer("tags", torch.tensor(tags), persistent=False)

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        matches = source[:, :1] == self.tags
        if not bool(matches.any(1).all()):
            row = int((~matches.any(1)).nonzero()[0])
            raise ValueError(
                f"sentence {row + 1} does not begin with a tag that names its decoder, as in '<2es> i am from canada'"
            )
        neutral = torch.cat([torch.full_like(source[:, :1], BEGIN), source[:, 1:]], 1)
        annotations: Annotations = self.encoder(neutral, lengths)
        return replace(annotations, decoder=matches.int().argmax(1))

    def pretrain(self) -> None:
        self.encoder.pretrain()


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
        choice = self._choice(annotations)
        rows = [(choice == number).nonzero().squeeze(1) for number in range(len(self.decoders))]
        decoded = [
            (number, self.decoders[number](tokens[own], annotations.select(own), weights=weights))
            for number, own in enumerate(rows)
            if len(own)
        ]
        order = torch.cat(rows).argsort()  # of the rows of all decoders, one decoder after the other
        features = torch.cat([self._block(each.features, number) for number, each in decoded])[order]
        maps = [each.weights for _, each in decoded if each.weights is not None]
        return DecoderOutput(features, torch.cat(maps)[order] if maps else None)

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
        blocks, maps, states = [], [], {}
        for number, before in state.states.items():
            features, states[number], own = self._each(number).step(tokens, before, weights=weights)
            chosen = (state.choice == number)[:, None]
            blocks.append(self._block(features * chosen, number))
            if own is not None:
                maps.append(own * chosen[..., None])
        return torch.stack(blocks).sum(0), replace(state, states=states), torch.stack(maps).sum(0) if maps else None

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


class MultiDecoder(EncoderDecoder):
    """p(target | source) in several languages, for one encoder: a tag before the sentence names the decoder.

    The annotations do not depend on the tag. Every decoder learns from them, so they have to serve all (Dong, Wu, He,
    Yu and Wang 2015, "Multi-Task Learning for Multiple Language Translation").
    """

    model_type = "regard-multi-decoder"
    config_class = MultiDecoderConfig
    config: MultiDecoderConfig

    def _build_encoder(self) -> Encoder:
        return TagEncoder(super()._build_encoder(), self.config.tags)

    def _build_decoder(self, memory: int) -> Decoder[Any]:
        decoders = [super(MultiDecoder, self)._build_decoder(memory) for _ in self.config.tags]
        if self.config.tied != "none":
            for decoder in decoders:
                decoder.output.weight = decoder.embedding.weight
        return DecoderSwitch(decoders)

    def _tie(self) -> None:
        """Each decoder's tables are tied where it is built."""
