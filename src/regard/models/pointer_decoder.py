"""The pointer-generator: a decoder that can copy the words it attends to (Vinyals et al. 2015; See et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..layers.kernels.packed_products import linear
from ..special_tokens import UNKNOWN
from .decoder import Decoder, DecoderOutput, Loss, State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .configurations import Annotations


@dataclass
class PointerState(State):
    """The state of the decoder inside, and the ids it copies from."""

    inner: Any
    source: Int[Tensor, "sentences places"]
    beams: int

    def reorder(self, rows: Int[Tensor, "rows"]) -> PointerState:
        return replace(self, inner=self.inner.reorder(rows))

    def keep(self, sentences: Int[Tensor, "kept"]) -> PointerState:
        return replace(self, inner=self.inner.keep(sentences), source=self.source[sentences])


class PointerDecoder(Decoder[PointerState]):
    """p(w) = p_gen P_vocab(w) + (1 − p_gen) Σ_{i: x_i = w} a_i  (See et al. 2017, equation 9).

    a_i are the weights of `decoder` over the source (of a Transformer, the mean over the heads of its last layer).
    P_vocab is the softmax of its logits, and p_gen = σ(w · f + b) with f its features, which are a function of the
    state, the context and the last token as in equation 8. Attention is used as a pointer: what it points to is
    written.

    The last `slots` ids of the vocabulary are unknown words of the source (`UnknownWords`). They are copied and never
    generated, and read as <unk>.

    The features of this decoder are log p(w) itself, so `readout` is the identity.
    """

    def __init__(self, decoder: Decoder[Any], slots: int) -> None:
        super().__init__()
        self.decoder, self.slots = decoder, slots
        self.embedding, self.output, self.most_steps = decoder.embedding, decoder.output, decoder.most_steps
        self.gate = nn.Linear(decoder.output.in_features, 1)
        self.heads = getattr(self.config, "heads", 1)
        """How many maps of weights, the last ones, make the pointer."""

    @property
    def config(self) -> Any:
        return self.decoder.config

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        source = _source(annotations)
        decoded: DecoderOutput = self.decoder(known_ids(tokens, self.first_slot), annotations, weights=True)
        assert decoded.weights is not None
        log_p, gate = self._mixed(decoded.features, decoded.weights[:, -self.heads :].mean(1), source[:, None])
        return DecoderOutput(log_p, decoded.weights if weights else None, generation=gate, source=source)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> PointerState:
        return PointerState(self.decoder.start(annotations, beams=beams, steps=steps), _source(annotations), beams)

    def step(
        self, tokens: Int[Tensor, "rows"], state: PointerState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows vocabulary"], PointerState, Float[Tensor, "rows maps places"] | None]:
        features, inner, maps = self.decoder.step(known_ids(tokens, self.first_slot), state.inner, weights=True)
        assert maps is not None
        source = state.source.repeat_interleave(state.beams, 0)
        log_p, _ = self._mixed(features, maps[:, -self.heads :].mean(1), source)
        return log_p, replace(state, inner=inner), maps if weights else None

    def readout(self, features: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
        return features

    def target_logprobs(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target"]:
        """log p of each wanted token; an unknown word that the source does not have counts as <unk>."""
        assert decoded.source is not None
        in_source = (decoded.source[:, None] == wanted[..., None]).any(-1)
        wanted = wanted.where((wanted < self.first_slot) | in_source, UNKNOWN)
        return decoded.features.gather(-1, wanted[..., None])[..., 0]

    def loss(
        self,
        decoded: DecoderOutput,
        wanted: Int[Tensor, "batch target"],
        real: Bool[Tensor, "batch target"],
        smoothing: float = 0.0,
    ) -> Loss:
        """−Σ log p(wanted), as `target_logprobs` has it; smoothing spreads over the words that can be generated."""
        nll = -(self.target_logprobs(decoded, wanted) * real).sum()
        total = nll
        if smoothing:
            spread = -decoded.features[..., : self.first_slot].mean(-1)
            total = (1 - smoothing) * nll + smoothing * (spread * real).sum()
        return Loss(total, nll.detach(), real.sum())

    def updated(self) -> None:
        self.decoder.updated()

    @property
    def first_slot(self) -> int:
        return self.output.out_features - self.slots

    def _mixed(
        self,
        features: Float[Tensor, "*batch width"],
        weights: Float[Tensor, "*batch places"],
        source: Int[Tensor, "*batch places"],
    ) -> tuple[Float[Tensor, "*batch vocabulary"], Float[Tensor, "*batch"]]:
        """log p(w) and p_gen, in float32 at least."""
        wide = torch.promote_types(features.dtype, torch.float32)
        logits = linear(self.output, features).to(wide)
        if self.slots:
            logits[..., self.first_slot :] = -torch.inf
        gate = torch.sigmoid(self.gate(features).to(wide))  # [*batch, 1]
        p = gate * torch.softmax(logits, -1)
        p = p.scatter_add(-1, source.expand_as(weights), (1 - gate) * weights.to(wide))
        return p.clamp_min(torch.finfo(wide).tiny).log(), gate[..., 0]


def known_ids(ids: Int[Tensor, "*batch"], first_slot: int) -> Int[Tensor, "*batch"]:
    """The ids as embeddings know them: <unk> for those of unknown words."""
    return ids.where(ids < first_slot, UNKNOWN)


def _source(annotations: Annotations) -> Int[Tensor, "batch places"]:
    if annotations.source is None:
        raise ValueError("these annotations do not have the ids to copy from; make them with the model's `encode`")
    return annotations.source
