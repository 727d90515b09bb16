"""The classifier: an encoder, a pooling of its annotations, and a linear map to the classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ..layers import Dropout
from ..layers.pooling import Adaptive, Attentive, Last, Mean, Most, Pooling, Static
from . import config as configs
from .cross_entropy import Loss
from .encoders.bag_encoder import BagEncoder
from .factory import encoder_of
from .model_folder import Saved

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .annotations import Annotations

SPECIALS = 4  # <pad>, <s>, </s>, <unk>: the ids before the labels, in the vocabulary of the targets


class Labelled(Protocol):
    """A batch of sources with one label each, as `regard.data.Batch` holds them: target is <s>, label, </s>."""

    source: Tensor
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]


@dataclass
class Classified:
    """Logits of the classes; and the weight each place had, where asked for and where there is one."""

    logits: Float[Tensor, "batch classes"]
    places: Int[Tensor, "batch"]  # that are real; of sound, fewer than samples
    weights: Float[Tensor, "batch places"] | None


class Classifier(Saved):
    """p(label | source) = softmax(M z + b), z the encoder's annotations pooled (`layers/pooling.py`).

    `static` weighs words by how rare they were among the texts it was trained on. It is what pools where the head says
    so; for every other pooling of text it is there to compare with.
    """

    model_type = "regard-classifier"

    def __init__(self, config: configs.Classifier) -> None:
        super().__init__()
        self.config = config
        part, words, linear = config.encoder, config.source_vocabulary, False
        if isinstance(part, configs.BagEncoder) and not part.width:
            part, linear = replace(part, width=config.classes), True
        self.encoder = encoder = encoder_of(part, words, config.longest)
        if isinstance(encoder, BagEncoder) and linear:
            nn.init.zeros_(encoder.embedding.weight)  # class scores of words; one never met in training has none
        static = Static(words) if words else None
        self.pooling = _pooling(config.head, encoder.width, words, static, getattr(part, "stride", 1))
        self.static = static
        self.dropout = Dropout(config.head.dropout)
        self.output = nn.Identity() if linear else nn.Linear(encoder.width, config.classes, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.classes))

    @classmethod
    def read_config(cls, values: dict[str, Any]) -> configs.Classifier:
        return configs.Classifier.from_dict(values)

    def encode(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        annotations: Annotations = self.encoder(source, lengths)
        return annotations

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"], *, weights: bool = False) -> Classified:
        seen = self.encode(source, lengths)
        z, w = self.pooling(seen.vectors, seen.lengths, seen.summary, source, weights=weights)
        return Classified(self.output(self.dropout(z)) + self.bias, seen.lengths, w)

    def rarity(
        self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch places"] | None:
        """TF-IDF weights of texts, idf(x_j) / Σ_i idf(x_i), whatever this model pools with; None of what is no text.

        Counted here and not by `attend`: the model never used them, so `watch` must not see them.
        """
        if self.static is None:
            return None
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        rare = self.static.idf[source] * real
        return rare / rare.sum(1, keepdim=True)

    def loss(self, batch: Labelled, *, smoothing: float = 0.0) -> Loss:
        """−Σ log p(label | source), with label smoothing (Szegedy et al. 2016, 7). A filler row has no label."""
        logits = self(batch.source, batch.source_lengths).logits
        real = batch.target_lengths > 1
        wanted = torch.where(real, batch.target[:, 1] - SPECIALS, 0)
        log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        nll = -(log_p.gather(1, wanted[:, None])[:, 0] * real).sum()
        spread = -(log_p.mean(1) * real).sum()
        return Loss((1 - smoothing) * nll + smoothing * spread, nll.detach(), real.sum())


def _pooling(head: configs.Head, width: int, words: int, static: Static | None, stride: int) -> Pooling:
    if head.pooling in ("static", "learned"):
        if static is None:
            raise ValueError(f'head.pooling = "{head.pooling}" weighs words, and the source is no text')
        if stride > 1:
            raise ValueError(
                f'head.pooling = "{head.pooling}" weighs every word; encoder.stride is {stride}, set it to 1'
            )
        return static if head.pooling == "static" else Adaptive(words)
    if head.pooling == "attention":
        return Attentive(width, head.hidden)
    return {"mean": Mean, "last": Last, "max": Most}[head.pooling]()
