"""The writer: an encoder, a decoder that reads its annotations, and the loss that trains both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from . import config as configs
from .cross_entropy import cross_entropy
from .factory import decoder_of, encoder_of
from .model_folder import Saved

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .annotations import Annotations
    from .cross_entropy import Loss
    from .decoders.decoder import Decoded, Decoder


class Sentences(Protocol):
    """A batch of pairs, as `regard.data.Batch` holds them: ids, samples of sound or pictures, and what to write."""

    source: Tensor
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]


class Writer(Saved):
    """p(target | source), for any encoder under any decoder: `config` says which.

    A translator reads text, a captioner a picture, a speller sound, and a language model nothing.
    """

    model_type = "regard-writer"

    def __init__(self, config: configs.Writer) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder_of(config.encoder, config.source_vocabulary, config.longest)
        self.decoder: Decoder[Any] = decoder_of(
            config.decoder, config.target_vocabulary, self.encoder.width, config.longest
        )
        self._tie()

    @classmethod
    def read_config(cls, values: dict[str, Any]) -> configs.Writer:
        return configs.Writer.from_dict(values)

    def _tie(self) -> None:
        tied, decoder = self.config.tied, self.decoder
        if tied == "none":
            return
        if decoder.output.weight.shape != decoder.embedding.weight.shape:
            raise ValueError(
                f"tied = {tied!r} shares the decoder's embeddings {list(decoder.embedding.weight.shape)} with its "
                f"output {list(decoder.output.weight.shape)}; make them equally wide, or tie nothing"
            )
        decoder.output.weight = decoder.embedding.weight
        if tied == "all":
            table = getattr(self.encoder, "embedding", None)
            if not isinstance(table, nn.Embedding):
                raise ValueError("tied = 'all' shares the encoder's table of words too, and this encoder reads no text")
            if table.weight.shape != decoder.embedding.weight.shape:
                raise ValueError(
                    f"tied = 'all' needs one vocabulary and one width on both sides; the encoder's embeddings are "
                    f"{list(table.weight.shape)}, the decoder's {list(decoder.embedding.weight.shape)}"
                )
            table.weight = decoder.embedding.weight

    def encode(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        annotations: Annotations = self.encoder(source, lengths)
        return annotations

    def forward(
        self,
        source: Tensor,
        lengths: Int[Tensor, "batch"],
        target: Int[Tensor, "batch target"],
        *,
        weights: bool = False,
    ) -> Decoded:
        """Features at every target position, teacher-forced; `readout` turns them into logits."""
        decoded: Decoded = self.decoder(target, self.encode(source, lengths), weights=weights)
        return decoded

    def readout(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.decoder.readout(features)

    def loss(
        self,
        batch: Sentences,
        *,
        smoothing: float = 0.0,
    ) -> Loss:
        """−Σ log p(y_t | y_<t, source), with label smoothing and what the decoder adds to it.

        Targets begin with <s> and end in </s>.
        """
        given, wanted = batch.target[:, :-1], batch.target[:, 1:]
        decoded = self(batch.source, batch.source_lengths, given)
        real = torch.arange(wanted.shape[1], device=wanted.device) < (batch.target_lengths - 1)[:, None]
        loss = cross_entropy(decoded.features, self.decoder.output.weight, wanted, real, smoothing)
        extra = self.decoder.extra(decoded, wanted, real)
        return loss if extra is None else replace(loss, total=loss.total + extra)
