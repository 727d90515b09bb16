"""One encoder with several decoders that are trained together (Dong et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .decoders.decoder_switch import DecoderSwitch
from .encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from .encoders.tag_encoder import TagEncoder

if TYPE_CHECKING:
    from typing import Any

    from .config_base import ExportEngine
    from .decoders.decoder import Decoder
    from .encoders.encoder import Encoder


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
