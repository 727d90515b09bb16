"""A model of an encoder and a decoder, and the table of both by the `kind` that config.json and recipes name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch

from .configurations import SOURCES, Config, ExportEngine, TaskName, part_config
from .decoder import DecoderConfig
from .encoders import (
    BagEncoderConfig,
    ConvolutionEncoderConfig,
    EncoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentEncoderConfig,
    TransformerEncoderConfig,
)
from .lstmn_decoder import LSTMNDecoderConfig
from .picture_encoders import EfficientNetEncoderConfig, GridEncoderConfig
from .pointer_decoder import PointerDecoder, known_ids
from .recurrent_decoder import RecurrentDecoderConfig
from .saved_weights import PretrainedModel
from .show_attend_tell_decoder import ShowAttendTellDecoderConfig
from .transformer_decoder import TransformerDecoderConfig

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from .configurations import Annotations
    from .decoder import Decoder, DecoderOutput, Loss, SourceTargetBatch
    from .encoders import Encoder

ENCODERS: dict[str, type[EncoderConfig]] = {
    each.kind: each
    for each in (
        NoEncoderConfig,
        RecurrentEncoderConfig,
        TransformerEncoderConfig,
        LSTMNEncoderConfig,
        BagEncoderConfig,
        ConvolutionEncoderConfig,
        GridEncoderConfig,
        EfficientNetEncoderConfig,
    )
}
DECODERS: dict[str, type[DecoderConfig]] = {
    each.kind: each
    for each in (RecurrentDecoderConfig, TransformerDecoderConfig, LSTMNDecoderConfig, ShowAttendTellDecoderConfig)
}


@dataclass(frozen=True)
class EncoderDecoderConfig(Config):
    """Configuration of an encoder-decoder.

    `tied` shares embedding tables: the decoder's input and output ("decoder"), or the encoder's too ("all").
    """

    source_vocabulary: int = field(metadata={"least": 0})  # 0 where the source is not text
    target_vocabulary: int
    encoder: EncoderConfig = field(default_factory=TransformerEncoderConfig)
    decoder: DecoderConfig = field(default_factory=TransformerDecoderConfig)
    tied: Literal["none", "decoder", "all"] = "none"
    longest: int = 512  # positions of a `learned` table; longer sequences are refused
    slots: int = 0  # the last ids of the vocabulary, for unknown words that a decoder with copy = true copies

    @classmethod
    def from_dict(cls, values: dict[str, Any], name: str = "config") -> Self:
        encoder = part_config(values.get("encoder"), ENCODERS, "encoder", EncoderConfig)
        decoder = part_config(values.get("decoder"), DECODERS, "decoder", DecoderConfig)
        return super().from_dict({**values, "encoder": encoder, "decoder": decoder}, name)

    @property
    def task(self) -> TaskName:
        """The task this model is for."""
        return next(task for task, sources in SOURCES.items() if self.encoder.reads in sources)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can record the loss."""
        return self.encoder.capturable and self.decoder.capturable

    def export_problem(self, engine: ExportEngine) -> str | None:
        """Why no model of this class is exported to an engine; the exporter checks the kinds of its parts."""
        if self.decoder.copies and engine != "onnx":
            return f"{engine} has no decoder that copies; export it to ONNX, or train one with decoder.copy = false"
        if engine == "onnx" and self.decoder.kind not in DECODERS:
            known = ", ".join(sorted(DECODERS))
            return f"a decoder of kind {self.decoder.kind!r} is not exported to ONNX; exported are {known}"
        return None

    def problems(self) -> list[str]:
        encoder, decoder = self.encoder, self.decoder
        if wrong := super().problems():
            return wrong
        wrong = self._tying_problems()
        if encoder.kind != "none" and not encoder.width:
            wrong.append("encoder.width = 0 means the number of classes, for classifiers; set it")
        if encoder.reads == "text" and not self.source_vocabulary:
            wrong.append("an encoder that reads text needs a vocabulary; source_vocabulary is 0")
        if decoder.copies and self.source_vocabulary != self.target_vocabulary:
            sizes = [self.source_vocabulary, self.target_vocabulary]
            wrong.append(f"decoder.copy = true needs one vocabulary for source and target; they have {sizes} tokens")
        if decoder.copies and (encoder.reads != "text" or getattr(encoder, "stride", 1) != 1):
            wrong.append(
                "decoder.copy = true copies words, and this encoder does not give one annotation for each word"
            )
        if self.slots and not decoder.copies:
            wrong.append(f"slots = {self.slots} are unknown words to copy, and decoder.copy is false; set one of them")
        return wrong + decoder.encoder_problems(encoder)

    def _tying_problems(self) -> list[str]:
        encoder, decoder, tied = self.encoder, self.decoder, f'tied = "{self.tied}"'
        if self.tied == "none":
            return []
        wrong = []
        if decoder.embedding_width != decoder.output_width:
            wrong.append(
                f"{tied} shares the decoder's embeddings with its output, {decoder.embedding_width} and "
                f"{decoder.output_width} wide; make them equally wide, or tie nothing"
            )
        if self.tied == "all" and encoder.reads != "text":
            wrong.append(f"{tied} shares the encoder's embeddings too, and this encoder does not read text")
        elif self.tied == "all" and encoder.embedding_width != decoder.embedding_width:
            widths = [encoder.embedding_width, decoder.embedding_width]
            wrong.append(f"{tied} needs embeddings of one width; encoder and decoder have {widths}")
        elif self.tied == "all" and self.source_vocabulary != self.target_vocabulary:
            sizes = [self.source_vocabulary, self.target_vocabulary]
            wrong.append(f"{tied} needs one vocabulary for source and target; they have {sizes} tokens")
        return wrong


class EncoderDecoder(PretrainedModel):
    """p(target | source), for any encoder under any decoder: `config` says which.

    A translator reads text, a captioner a picture, a speller sound, and a language model nothing.
    """

    model_type = "regard-writer"
    config_class = EncoderDecoderConfig
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self.encoder = self._build_encoder()
        self.decoder = self._build_decoder(self.encoder.width)
        self._tie()

    def _build_encoder(self) -> Encoder:
        return self.config.encoder.build(self.config.source_vocabulary, self.config.longest)

    def _build_decoder(self, memory: int) -> Decoder[Any]:
        decoder = self.config.decoder.build(self.config.target_vocabulary, memory, self.config.longest)
        return PointerDecoder(decoder, self.config.slots) if self.config.decoder.copies else decoder

    def encode(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        if not self.config.decoder.copies:
            return super().encode(source, lengths)
        known = known_ids(source, self.config.source_vocabulary - self.config.slots)
        return replace(super().encode(known, lengths), source=source)

    def _tie(self) -> None:
        tied, table = self.config.tied, self.decoder.embedding
        if tied != "none":
            self.decoder.output.weight = table.weight
        if tied == "all":
            cast("nn.Embedding", self.encoder.embedding).weight = table.weight

    def forward(
        self,
        source: Tensor,
        lengths: Int[Tensor, "batch"],
        target: Int[Tensor, "batch target"],
        *,
        weights: bool = False,
    ) -> DecoderOutput:
        """Features at every target position, teacher-forced; `readout` turns them into logits."""
        decoded: DecoderOutput = self.decoder(target, self.encode(source, lengths), weights=weights)
        return decoded

    def readout(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.decoder.readout(features)

    def loss(self, batch: SourceTargetBatch, *, smoothing: float = 0.0) -> Loss:
        """−Σ log p(y_t | y_<t, source), with label smoothing, plus the decoder's extra term.

        Targets begin with <s> and end in </s>.
        """
        inputs, wanted = batch.target[:, :-1], batch.target[:, 1:]
        decoded = self(batch.source, batch.source_lengths, inputs)
        real = torch.arange(wanted.shape[1], device=wanted.device) < batch.target_lengths[:, None] - 1
        loss = self.decoder.loss(decoded, wanted, real, smoothing)
        extra = self.decoder.extra(decoded, wanted, real)
        return loss if extra is None else replace(loss, total=loss.total + extra)
