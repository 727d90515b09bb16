"""The translator: an encoder, a decoder that reads its annotations, and the loss that trains both."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from . import config as configs
from .encoders import RecurrentEncoder, TransformerEncoder
from .loss import cross_entropy
from .recurrent_decoder import RecurrentDecoder
from .transformer_decoder import TransformerDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Float, Int
    from torch import Tensor

    from .annotations import Annotations
    from .decoder import Decoded, Decoder
    from .loss import Loss


class Sentences(Protocol):
    """A batch of pairs, as `regard.data.Batch` holds them."""

    source: Int[Tensor, "batch places"]
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]


class Translator(nn.Module):
    """p(target | source), for any encoder under any decoder: `config` says which."""

    def __init__(self, config: configs.Translator) -> None:
        super().__init__()
        self.config = config
        self.encoder: RecurrentEncoder | TransformerEncoder
        self.decoder: Decoder  # type: ignore[type-arg]
        if isinstance(config.encoder, configs.RecurrentEncoder):
            self.encoder = RecurrentEncoder(config.encoder, config.source_vocabulary)
        else:
            self.encoder = TransformerEncoder(config.encoder, config.source_vocabulary, config.longest)
        if isinstance(config.decoder, configs.RecurrentDecoder):
            self.decoder = RecurrentDecoder(config.decoder, config.target_vocabulary, self.encoder.width)
        else:
            self.decoder = TransformerDecoder(
                config.decoder, config.target_vocabulary, self.encoder.width, config.longest
            )
        self._tie()

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
            if self.encoder.embedding.weight.shape != decoder.embedding.weight.shape:
                raise ValueError(
                    f"tied = 'all' needs one vocabulary and one width on both sides; the encoder's embeddings are "
                    f"{list(self.encoder.embedding.weight.shape)}, the decoder's {list(decoder.embedding.weight.shape)}"
                )
            self.encoder.embedding.weight = decoder.embedding.weight

    def encode(self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        annotations: Annotations = self.encoder(source, lengths)
        return annotations

    def forward(
        self,
        source: Int[Tensor, "batch places"],
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
        """−Σ log p(y_t | y_<t, source), with label smoothing. Targets begin with <s> and end in </s>."""
        given, wanted = batch.target[:, :-1], batch.target[:, 1:]
        features = self(batch.source, batch.source_lengths, given).features  # [batch, target, width]
        real = torch.arange(wanted.shape[1], device=wanted.device) < (batch.target_lengths - 1)[:, None]
        return cross_entropy(features, self.decoder.output.weight, wanted, real, smoothing)

    def save_pretrained(self, folder: str | Path, *, card: str | None = None, dtype: torch.dtype | None = None) -> None:
        """`config.json`, `model.safetensors` and, if given, the model card as README.md. Tokenizers save themselves.

        `dtype=torch.float16` halves the file; loaded, the model computes in float32 again.
        """
        from safetensors.torch import save_model

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = {"model_type": "regard-translator", **self.config.to_dict()}
        _replace(folder / "config.json", json.dumps(written, indent=2) + "\n")
        if card is not None:
            _replace(folder / "README.md", card)
        half_done = folder / "model.safetensors.part"
        save_model(self if dtype is None else copy.deepcopy(self).to(dtype), str(half_done))
        half_done.replace(folder / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Translator:
        """The model `save_pretrained` wrote, on the CPU and ready to translate (`eval`)."""
        from safetensors.torch import load_model

        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no model: there is no config.json in it")
        read: Mapping[str, object] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = read.get("model_type")
        if kind != "regard-translator":
            raise ValueError(f"{folder / 'config.json'} is of model_type {kind!r}; expected 'regard-translator'")
        model = cls(configs.Translator.from_dict({k: v for k, v in read.items() if k != "model_type"}))
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise ValueError(f"{folder} holds no weights: there is no model.safetensors in it")
        try:
            load_model(model, str(weights))
        except Exception as error:
            raise ValueError(f"{weights} does not hold the weights that config.json describes: {error}") from error
        return model.eval()


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    half_done = path.with_name(path.name + ".part")
    half_done.write_text(text, encoding="utf-8")
    half_done.replace(path)
