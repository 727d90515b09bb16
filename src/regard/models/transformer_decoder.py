"""The Transformer decoder, with a key/value cache for decoding token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import nn

from ..attention.masks import padding
from ..attention.parts import readable
from ..layers.kernels.packed_products import Dropout
from ..layers.positions import absolute_positions
from ..layers.transformer import DecoderLayer
from .decoder import Decoder, DecoderConfig, DecoderOutput, State, beam_rows, output_matrix
from .encoders import TransformerConfig, scaled_embedding, token_embedding

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.weights import Weights
    from ..layers.transformer import KeysValues
    from .configurations import Annotations
    from .encoders import EncoderConfig


@dataclass(frozen=True)
class TransformerDecoderConfig(TransformerConfig, DecoderConfig):
    """Vaswani et al. 2017, section 3.1: masked self-attention, attention over the annotations, feed-forward."""

    capturable: ClassVar[bool] = True
    masked: bool = True  # false lets every position see the tokens after it while training
    copy: bool = False  # copy words of the source (`PointerDecoder`)

    def layer_options(self) -> dict[str, Any]:
        return {**super().layer_options(), "masked": self.masked}

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        if self.masked or encoder.kind == "none":
            return []
        return [
            "decoder.masked = false is for language models; targets of other models are padded, and the mask hides it"
        ]

    def build(self, vocabulary: int, memory: int, longest: int) -> TransformerDecoder:
        return TransformerDecoder(self, vocabulary, memory, longest)


@dataclass
class TransformerDecoderState(State):
    """Keys and values of every layer: `cache` has those of the tokens so far."""

    cache: list[KeysValues]  # each [rows, heads, steps, d]
    source: list[KeysValues | None]  # each [sentences, heads, places, d]; None: no annotations
    lengths: Int[Tensor, "sentences"]
    padded: bool = True  # whether a sentence may have less places than others

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.cache[0][0].shape[2]

    def reorder(self, rows: Int[Tensor, "rows"]) -> TransformerDecoderState:
        return replace(self, cache=[(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.cache])

    def keep(self, sentences: Int[Tensor, "kept"]) -> TransformerDecoderState:
        beams = self.cache[0][0].shape[0] // self.lengths.shape[0]
        source = [None if each is None else (each[0][sentences], each[1][sentences]) for each in self.source]
        kept = self.reorder(beam_rows(sentences, beams))
        return replace(kept, source=source, lengths=self.lengths[sentences])


class TransformerDecoder(Decoder[TransformerDecoderState]):
    """Vaswani et al. 2017, section 3.1: masked self-attention, attention over the annotations, feed-forward.

    With `memory` 0 there are no annotations to attend to: a language model (Radford et al. 2018).
    """

    def __init__(self, config: TransformerDecoderConfig, vocabulary: int, memory: int, longest: int) -> None:
        super().__init__()
        self.config, self.most_steps = config, longest if config.positions == "learned" else None
        self.embedding = token_embedding(vocabulary, config.width)
        self.positions = absolute_positions(config.positions, config.width, longest)
        self.dropout = Dropout(config.dropout)
        layers = (DecoderLayer(memory=memory, **config.layer_options()) for _ in range(config.layers))
        self.layers = cast("list[DecoderLayer]", nn.ModuleList(layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        self.output = output_matrix(config.width, vocabulary)

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        x = scaled_embedding(self.embedding, tokens)
        if self.positions is not None:
            x = self.positions(x, first)
        return self.dropout(x)  # type: ignore[no-any-return]

    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        x, mask = self._embed(tokens, 0), padding(annotations.lengths)
        layer_weights = []
        for layer in self.layers:
            x, w = layer(x, annotations.vectors, mask, weights=weights)
            layer_weights.append(w)
        return DecoderOutput(self.norm(x), _maps(layer_weights) if weights and any(layer_weights) else None)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> TransformerDecoderState:
        source = [None if layer.cross is None else layer.cross.keys(annotations.vectors) for layer in self.layers]
        config, like = self.config, self.embedding.weight if source[0] is None else source[0][0]
        heads, rows = config.key_heads or config.heads, annotations.lengths.shape[0] * beams
        empty = like.new_empty(rows, heads, 0, config.width // config.heads)
        lengths, places = annotations.lengths, annotations.vectors.shape[1]
        # On a GPU reading the lengths would wait for it.
        padded = lengths.device.type != "cpu" or not readable(lengths) or bool((lengths < places).any())
        return TransformerDecoderState([(empty, empty)] * len(source), source, lengths, padded)

    def step(
        self, tokens: Int[Tensor, "rows"], state: TransformerDecoderState, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], TransformerDecoderState, Float[Tensor, "rows maps places"] | None]:
        x, state, layer_weights = self._feed(tokens[:, None], state, weights)
        maps = None
        if weights and any(layer_weights):
            maps = (
                _maps(layer_weights).transpose(1, 2).flatten(0, 1)
            )  # beams were queries: [sentences · beams, maps, places]
        return self.norm(x)[:, 0], state, maps

    def read(self, tokens: Int[Tensor, "rows n"], state: TransformerDecoderState) -> TransformerDecoderState:
        return self._feed(tokens, state, weights=False)[1]

    def _feed(
        self, tokens: Int[Tensor, "rows n"], state: TransformerDecoderState, weights: bool
    ) -> tuple[Float[Tensor, "rows n width"], TransformerDecoderState, list[Weights | None]]:
        """The next few positions of every row; their keys and values go into the cache."""
        x, mask = self._embed(tokens, state.position), padding(state.lengths) if state.padded else None
        cache, layer_weights = [], []
        for layer, before, source in zip(self.layers, state.cache, state.source, strict=True):
            x, after, w = layer.step(x, before, source, mask, weights=weights)
            cache.append(after)
            layer_weights.append(w)
        return x, replace(state, cache=cache), layer_weights


def _maps(layer_weights: list[Weights | None]) -> Float[Tensor, "batch maps queries places"]:
    """One map per layer and head, layers first."""
    return torch.cat([w.dense() for w in layer_weights if w is not None], dim=1)
