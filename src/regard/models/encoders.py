"""Encoders: each reads a source and returns annotations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import nn

from ..attention.masks import padding
from ..layers.kernels.packed_products import Dropout
from ..layers.positions import absolute_positions
from ..layers.recurrent import LSTMN, RecurrentLayer
from ..layers.sound import LogMel
from ..layers.transformer import EncoderLayer
from .configurations import (
    Annotations,
    CellKind,
    NormPlace,
    PartConfig,
    PositionKind,
    SequenceSource,
    masked_mean,
    zero_padding,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class EncoderConfig(PartConfig):
    """Base of the configurations of encoders."""

    @property
    def reads(self) -> str:
        """The source: text, sound, picture or none."""
        raise NotImplementedError

    @property
    def annotation_width(self) -> int:
        """Width of the annotation vectors."""
        return self.width

    @property
    def one_annotation_per_token(self) -> bool:
        return True

    def build(self, vocabulary: int, longest: int) -> Encoder:
        """The encoder: with a table of `vocabulary` words where it reads text, for at most `longest` positions."""
        raise NotImplementedError


class Encoder(nn.Module, ABC):
    """Maps a sentence, a picture or a sound to annotation vectors; `width` is 0 where there is nothing to read."""

    width: int

    @abstractmethod
    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        """`source` is a batch of ids [B, S], samples [B, N] or pixels [B, H, W, 3]; `lengths` excludes padding."""

    def pretrain(self) -> None:
        """Load pretrained weights, where the encoder starts from them. Called before training."""


LOUDEST = 32768  # of 16-bit samples


class SoundEmbedding(nn.Module):
    """Samples into one vector per frame: log-mel energies, made equally loud, and a linear map of them.

    Each sound's energies are shifted and scaled to mean 0 and variance 1 over its frames and bands together, so that
    nothing depends on how near the microphone stood; silence becomes zeros.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logmel = LogMel()
        self.map = nn.Linear(self.logmel.bands, width)

    def forward(
        self, samples: Int[Tensor, "batch samples"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch frames width"], Int[Tensor, "batch"]]:
        inside = torch.arange(samples.shape[1], device=samples.device) < lengths[:, None]  # silence past the end
        energies = self.logmel(samples * inside / LOUDEST)  # [batch, frames, bands]
        frames = self.logmel.frames(lengths)
        real = (torch.arange(energies.shape[1], device=samples.device) < frames[:, None])[..., None]
        count = frames[:, None, None] * self.logmel.bands
        centred = (energies - (energies * real).sum((1, 2), keepdim=True) / count) * real
        spread = (centred.square().sum((1, 2), keepdim=True) / count).sqrt().clamp_min(1e-3)
        x = (centred / spread).to(self.map.weight.dtype)
        return self.map(x), frames


def token_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """An embedding table whose rows have length about 1, with zeros for <pad>."""
    table = nn.Embedding(vocabulary, width, padding_idx=0)
    nn.init.normal_(table.weight, std=width**-0.5)
    nn.init.zeros_(table.weight[0])
    return table


def source_embedding(reads: str, vocabulary: int, width: int) -> nn.Module:
    """The embedding of an encoder that reads text or sound."""
    return SoundEmbedding(width) if reads == "sound" else token_embedding(vocabulary, width)


def scaled_embedding(embedding: nn.Embedding, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
    """√d · E y: a Transformer's vectors of tokens, before positions are added (Vaswani et al. 2017, section 3.4)."""
    x: Tensor = embedding(tokens) * math.sqrt(embedding.embedding_dim)
    return x


def embed(
    embedding: nn.Module, source: Tensor, lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch places width"], Int[Tensor, "batch"]]:
    """Source vectors and their lengths: one vector per token, or one per frame of sound."""
    if isinstance(embedding, nn.Embedding):
        return embedding(source), lengths
    vectors, frames = embedding(source, lengths)
    return vectors, frames


def drop_words(x: Float[Tensor, "*batch width"], dropout: nn.Dropout) -> Float[Tensor, "*batch width"]:
    """Zeros for words drawn at random while training (Gal and Ghahramani 2016, section 4.2)."""
    if not dropout.training or not dropout.p:
        return x
    dropped: Tensor = x * dropout(x.new_ones(*x.shape[:-1], 1))
    return dropped


@dataclass(frozen=True)
class NoEncoderConfig(EncoderConfig):
    """No source: a decoder over it is a language model."""

    capturable: ClassVar[bool] = True
    kind: Literal["none"] = "none"

    @property
    def reads(self) -> str:
        return "none"

    @property
    def width(self) -> int:
        return 0

    def build(self, vocabulary: int, longest: int) -> NoEncoder:
        return NoEncoder()


class NoEncoder(Encoder):
    """Annotations without positions."""

    width = 0

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        empty = torch.zeros(len(lengths), 0, device=lengths.device)  # no parameters here, so no dtype of the model
        return Annotations(empty[:, None, :0].expand(-1, 0, 0), torch.zeros_like(lengths), empty)


@dataclass(frozen=True)
class BagEncoderConfig(EncoderConfig):
    """Word embeddings alone: each word has the same vector in every position."""

    capturable: ClassVar[bool] = True
    kind: Literal["bag"] = "bag"
    reads: Literal["text"] = "text"
    width: int = 0  # 0: the number of classes, so that the pooled vector is the logits
    dropout: float = 0.0

    def build(self, vocabulary: int, longest: int) -> BagEncoder:
        return BagEncoder(self, vocabulary)


class BagEncoder(Encoder):
    """h_j = E[x_j]. Under a pooling with weights w and no map above it,

        logits = Σ_j w_j E[x_j],   E one row of class scores per word,

    is a linear classifier of weighted word counts. With w from TF-IDF it is the textbook classifier, and attention with
    static weights and learned values.
    """

    def __init__(self, config: BagEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = token_embedding(vocabulary, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        x = self.embedding(source)
        return Annotations(self.dropout(x), lengths, masked_mean(x, lengths))


@dataclass(frozen=True)
class ConvolutionEncoderConfig(EncoderConfig):
    """Filters over windows of several sizes, side by side (Kim 2014); several layers of them for sound."""

    capturable: ClassVar[bool] = True
    kind: Literal["cnn"] = "cnn"
    reads: SequenceSource = "text"
    embedding: int = 128
    width: int = 100  # filters of each window size
    windows: list[int] = field(default_factory=lambda: [3, 4, 5])
    layers: int = 1
    stride: int = 1  # of each layer
    dropout: float = 0.2

    @property
    def annotation_width(self) -> int:
        return self.width * len(self.windows)

    @property
    def one_annotation_per_token(self) -> bool:
        return self.stride == 1

    def build(self, vocabulary: int, longest: int) -> ConvolutionEncoder:
        return ConvolutionEncoder(self, vocabulary)


class WindowConvolution(nn.Module):
    """c_j = relu(F [x_{j−a}; …; x_{j+b}] + f) for windows of several sizes, their results side by side (Kim 2014, 2).

    A window of k places reaches a = (k − 1) // 2 back and b = k // 2 on; beyond the ends are zeros. With a stride s
    only every s-th place has a result: n places become ⌈n/s⌉.
    """

    def __init__(self, width_in: int, width: int, windows: list[int], stride: int) -> None:
        super().__init__()
        self.stride = stride
        banks = (nn.Conv1d(width_in, width, size, stride=stride) for size in windows)
        self.banks = cast("list[nn.Conv1d]", nn.ModuleList(banks))

    def forward(
        self, x: Float[Tensor, "batch places width_in"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch kept out"], Int[Tensor, "batch"]]:
        x = zero_padding(x, lengths).mT  # [batch, width_in, places]
        outputs = []
        for bank in self.banks:
            size = bank.kernel_size[0]
            outputs.append(bank(nn.functional.pad(x, ((size - 1) // 2, size // 2))))
        return torch.relu(torch.cat(outputs, 1)).mT, (lengths + self.stride - 1) // self.stride


class ConvolutionEncoder(Encoder):
    """One layer over words is Kim's classifier under max pooling; several with strides read sound.

    From the second layer on the input is layer-normalised at each position. Batch normalisation would make sentences
    depend on each other.
    """

    def __init__(self, config: ConvolutionEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.annotation_width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        widths = [config.embedding, *[self.width] * (config.layers - 1)]
        layers = (WindowConvolution(width, config.width, config.windows, config.stride) for width in widths)
        self.layers = cast("list[WindowConvolution]", nn.ModuleList(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:])

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        for number, layer in enumerate(self.layers):
            x = x if number == 0 else self.norms[number - 1](x)
            x, lengths = layer(self.dropout(x), lengths)
        return Annotations(x, lengths, masked_mean(x, lengths))


@dataclass(frozen=True)
class RecurrentEncoderConfig(EncoderConfig):
    """A GRU or LSTM over embedded words or frames of sound, in both directions (Bahdanau) or one (Luong)."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["rnn"] = "rnn"
    reads: SequenceSource = "text"
    cell: CellKind = "gru"
    embedding: int = 256
    width: int = 256  # of each direction
    layers: int = 1
    bidirectional: bool = True
    dropout: float = 0.2
    word_dropout: float = 0.0  # of whole input words

    @property
    def annotation_width(self) -> int:
        return self.width * (2 if self.bidirectional else 1)

    def build(self, vocabulary: int, longest: int) -> RecurrentEncoder:
        return RecurrentEncoder(self, vocabulary)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j]: a GRU or LSTM in both directions (Bahdanau et al. 2015, 3.2) or one (Luong et al. 2015)."""

    def __init__(self, config: RecurrentEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.annotation_width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout, self.word_dropout = Dropout(config.dropout), Dropout(config.word_dropout)
        self.layers = nn.ModuleList(
            RecurrentLayer(
                config.cell,
                config.embedding if layer == 0 else self.width,
                config.width,
                bidirectional=config.bidirectional,
            )
            for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        x = drop_words(x, self.word_dropout)
        for layer in self.layers:
            x, summary = layer(self.dropout(x), lengths)
        return Annotations(self.dropout(x), lengths, summary)


@dataclass(frozen=True)
class LSTMNEncoderConfig(EncoderConfig):
    """An LSTM that attends over all its states so far (Cheng et al. 2016, section 3.1)."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["lstmn"] = "lstmn"
    reads: SequenceSource = "text"
    embedding: int = 256
    width: int = 256
    layers: int = 1
    dropout: float = 0.2

    def build(self, vocabulary: int, longest: int) -> LSTMNEncoder:
        return LSTMNEncoder(self, vocabulary)


class LSTMNEncoder(Encoder):
    """h_1 … h_n of an LSTMN, from left to right, and its memory tape (Cheng, Dong and Lapata 2016, section 3.1)."""

    def __init__(self, config: LSTMNEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            LSTMN(config.width if layer else config.embedding, config.width) for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        for layer in self.layers:
            x, tape = layer(self.dropout(x))
        last = (lengths - 1)[:, None, None]
        return Annotations(self.dropout(x), lengths, x.take_along_dim(last, 1)[:, 0], tape)


@dataclass(frozen=True)
class TransformerConfig(PartConfig):
    """What Transformer encoders and decoders have in common; `norm` says where the layer norms are."""

    kind: Literal["transformer"] = "transformer"
    width: int = 256
    heads: int = 4
    key_heads: int = 0  # fewer heads for keys and values; 0 means as many as `heads`
    hidden: int = 1024  # of the feed-forward part
    layers: int = 4
    norm: NormPlace = "pre"
    positions: PositionKind = "sinusoidal"
    residual: bool = True  # x + part(x); false leaves out the x
    scaled: bool = True  # energies over √d
    dropout: float = 0.1
    attention_dropout: float = 0.0  # of the attention weights

    def problems(self) -> list[str]:
        if wrong := super().problems():
            return wrong
        if self.width % self.heads:
            wrong.append(f"heads = {self.heads} does not divide width = {self.width}")
        if self.key_heads and self.heads % self.key_heads:
            wrong.append(f"key_heads = {self.key_heads} does not divide heads = {self.heads}")
        if self.positions == "sinusoidal" and self.width % 2:
            wrong.append(f'positions = "sinusoidal" needs an even width, and it is {self.width}')
        if self.positions == "rotary" and self.width // self.heads % 2:
            wrong.append(f'positions = "rotary" needs heads of an even width, and it is {self.width // self.heads}')
        return wrong

    def layer_options(self) -> dict[str, Any]:
        """The arguments of each layer."""
        names = ("width", "heads", "hidden", "key_heads", "norm", "positions", "residual", "scaled", "dropout")
        return {name: getattr(self, name) for name in (*names, "attention_dropout")}


@dataclass(frozen=True)
class TransformerEncoderConfig(TransformerConfig, EncoderConfig):
    """Vaswani et al. 2017, section 3.1."""

    capturable: ClassVar[bool] = True
    reads: SequenceSource = "text"

    def build(self, vocabulary: int, longest: int) -> TransformerEncoder:
        return TransformerEncoder(self, vocabulary, longest)


class TransformerEncoder(Encoder):
    """Layers of self-attention and feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: TransformerEncoderConfig, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = source_embedding(config.reads, vocabulary, config.width)
        self.positions = absolute_positions(config.positions, config.width, longest)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(**config.layer_options()) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        if isinstance(self.embedding, nn.Embedding):
            x = scaled_embedding(self.embedding, source)
        else:
            x, lengths = embed(self.embedding, source, lengths)
        if self.positions is not None:
            x = self.positions(x)
        x, mask = self.dropout(x), padding(lengths)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        return Annotations(x, lengths, masked_mean(x, lengths))
