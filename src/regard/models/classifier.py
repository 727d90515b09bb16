"""The classifier: an encoder, a pooling of its annotations, and a linear map to the classes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import nn

from ..layers.kernels.packed_products import Dropout
from ..layers.pooling import (
    AttentionPooling,
    LastPooling,
    LearnedWordPooling,
    MaxPooling,
    MeanPooling,
    Pooling,
    StaticPooling,
)
from ..special_tokens import SPECIALS
from .configurations import Config, ExportEngine, ModuleConfig, TaskName, part_config, plugin_config
from .decoder import Loss
from .encoder_decoder import ENCODERS
from .encoders import BagEncoder, BagEncoderConfig, EncoderConfig, RecurrentEncoderConfig
from .saved_weights import PretrainedModel

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .decoder import SourceTargetBatch


@dataclass(frozen=True)
class HeadConfig(ModuleConfig):
    """How a classifier pools annotations into one vector (`layers/pooling.py`); a linear map of it gives the logits."""

    capturable: ClassVar[bool] = True
    pooling: Literal["mean", "last", "max", "static", "learned", "attention"] = "attention"
    hidden: int = 64  # of attention's energy
    idf: Literal["smoothed", "plain"] = "smoothed"  # TF-IDF: log((1 + N) / (1 + n)) + 1, or log(N / n)
    dropout: float = 0.0  # of the pooled vector

    def build(self, width: int, words: int, static: StaticPooling | None) -> Pooling:
        """The pooling of annotations `width` wide; `static` is there where the source is text of `words` words."""
        if self.pooling == "static" and static is not None:
            return static
        if self.pooling == "learned":
            return LearnedWordPooling(words)
        if self.pooling == "attention":
            return AttentionPooling(width, self.hidden)
        return {"mean": MeanPooling, "last": LastPooling, "max": MaxPooling}[self.pooling]()


def head_config(values: Any) -> HeadConfig:
    """The configuration of a head; with a `kind` it is a plug-in."""
    if not isinstance(values, dict):
        raise ValueError(f"head is {values!r:.40}; it must be a table")
    if "kind" in values:
        config: HeadConfig = plugin_config(values, "head", HeadConfig)
        return config
    return HeadConfig.from_dict(values, "head")


@dataclass(frozen=True)
class ClassifierConfig(Config):
    """Configuration of a classifier."""

    source_vocabulary: int = field(metadata={"least": 0})  # 0 where the source is not text
    classes: int
    encoder: EncoderConfig = field(default_factory=RecurrentEncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    longest: int = 512  # positions of a `learned` table; longer sequences are refused

    @classmethod
    def from_dict(cls, values: dict[str, Any], name: str = "config") -> Self:
        head = head_config(values.get("head"))
        encoder = part_config(values.get("encoder"), ENCODERS, "encoder", EncoderConfig)
        return super().from_dict({**values, "encoder": encoder, "head": head}, name)

    @property
    def task(self) -> TaskName:
        return "classify"

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can record the loss."""
        return self.encoder.capturable and self.head.capturable

    def export_problem(self, engine: ExportEngine) -> str | None:
        """Why a model of this class is not exported to an engine; the exporter checks the kind of its encoder."""
        if engine == "ctranslate2":
            return "CTranslate2 runs translators, and this model is a classifier; export it with --to onnx"
        if (plugin := getattr(self.head, "kind", None)) is not None:
            return (
                f"a head of kind {plugin!r} is not exported to ONNX; exported are heads without a kind, which is for "
                "plug-ins"
            )
        return None

    def problems(self) -> list[str]:
        encoder, pooling = self.encoder, self.head.pooling
        wrong = super().problems()
        if encoder.kind == "none":
            wrong.append('a classifier needs a source, and encoder.kind is "none"')
        elif encoder.reads == "text" and not self.source_vocabulary:
            wrong.append("an encoder that reads text needs a vocabulary; source_vocabulary is 0")
        if pooling in ("static", "learned"):  # one weight per word of the vocabulary
            if encoder.reads != "text":
                wrong.append(f'head.pooling = "{pooling}" weighs words, and the encoder reads {encoder.reads}')
            elif not encoder.one_annotation_per_token:
                wrong.append(f'head.pooling = "{pooling}" weighs every word: set encoder.stride to 1')
        return wrong


@dataclass
class ClassifierOutput:
    """Logits of the classes; and the weight of each place, where requested and the pooling has weights."""

    logits: Float[Tensor, "batch classes"]
    places: Int[Tensor, "batch"]  # that are real; of sound, fewer than samples
    weights: Float[Tensor, "batch places"] | None


class Classifier(PretrainedModel):
    """p(label | source) = softmax(M z + b), z the encoder's annotations pooled (`layers/pooling.py`).

    `static` weighs words by their inverse document frequency in the training texts. Every classifier of text has it: as
    its pooling where the head says so, otherwise to compare with.
    """

    model_type = "regard-classifier"
    config_class = ClassifierConfig
    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        part, words, linear = config.encoder, config.source_vocabulary, False
        if isinstance(part, BagEncoderConfig) and not part.width:
            part, linear = replace(part, width=config.classes), True
        self.encoder = encoder = part.build(words, config.longest)
        if isinstance(encoder, BagEncoder) and linear:
            nn.init.zeros_(encoder.embedding.weight)  # class scores of words; those not met in training have none
        static = StaticPooling(words) if words else None
        self.pooling = config.head.build(encoder.width, words, static)
        self.static = static
        self.dropout = Dropout(config.head.dropout)
        self.output = nn.Identity() if linear else nn.Linear(encoder.width, config.classes, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.classes))

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"], *, weights: bool = False) -> ClassifierOutput:
        h = self.encode(source, lengths)
        z, w = self.pooling(h.vectors, h.lengths, h.summary, source, weights=weights)
        return ClassifierOutput(self.output(self.dropout(z)) + self.bias, h.lengths, w)

    def rarity(
        self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch places"] | None:
        """TF-IDF weights of texts, idf(x_j) / Σ_i idf(x_i), for any pooling; None where the source is not text.

        Not computed by `attend`: the model did not use them, so `watch` must not record them.
        """
        if self.static is None:
            return None
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        rare = self.static.idf[source] * real
        return rare / rare.sum(1, keepdim=True).clamp_min(torch.finfo(rare.dtype).tiny)  # all 0: no weight anywhere

    def loss(self, batch: SourceTargetBatch, *, smoothing: float = 0.0) -> Loss:
        """−Σ log p(label | source), with label smoothing (Szegedy et al. 2016, 7).

        Targets are <s>, label, </s>; a filler row has no label.
        """
        logits = self(batch.source, batch.source_lengths).logits
        real = batch.target_lengths > 1
        # The special tokens come before the labels, in the vocabulary of the targets.
        wanted = torch.where(real, batch.target[:, 1] - len(SPECIALS), 0)
        log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        nll = -(log_p.gather(1, wanted[:, None])[:, 0] * real).sum()
        spread = -(log_p.mean(1) * real).sum()
        return Loss((1 - smoothing) * nll + smoothing * spread, nll.detach(), real.sum())
