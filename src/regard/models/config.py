"""What a model is made of, as plain data: written to config.json, read from a recipe, checked on the way in."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

Cell = Literal["gru", "lstm"]
Norm = Literal["pre", "post"]
Positions = Literal["sinusoidal", "learned", "rotary", "alibi"]
ANY = {"most": math.inf}  # of a number that is no share: it may be 1 and more
Reads = Literal["text", "sound"]  # what an encoder over a sequence is given


@dataclass(frozen=True)
class NoEncoder:
    """Nothing to read: a decoder over it is a language model."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True)
class RecurrentEncoder:
    """A GRU or LSTM over embedded words or frames of sound; both directions (Bahdanau) or one (Luong)."""

    kind: Literal["rnn"] = "rnn"
    reads: Reads = "text"
    cell: Cell = "gru"
    embedding: int = 256
    width: int = 256  # of each direction
    layers: int = 1
    bidirectional: bool = True
    dropout: float = 0.2


@dataclass(frozen=True)
class TransformerEncoder:
    """Vaswani et al. 2017, section 3.1; `norm` says where the layer norms stand."""

    kind: Literal["transformer"] = "transformer"
    reads: Reads = "text"
    width: int = 256
    heads: int = 4
    key_heads: int = 0  # fewer heads for keys and values; 0 means as many as `heads`
    hidden: int = 1024  # of the feed-forward part
    layers: int = 4
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    dropout: float = 0.1
    attention_dropout: float = 0.0  # of the weights of its attentions


@dataclass(frozen=True)
class LSTMNEncoder:
    """An LSTM that attends over all its states so far (Cheng et al. 2016, section 3.1)."""

    kind: Literal["lstmn"] = "lstmn"
    reads: Reads = "text"
    embedding: int = 256
    width: int = 256
    layers: int = 1
    dropout: float = 0.2


@dataclass(frozen=True)
class BagEncoder:
    """Embeddings and nothing else: words in no order, each the same wherever it stands."""

    kind: Literal["bag"] = "bag"
    reads: Literal["text"] = "text"
    width: int = 0  # 0: as many as there are classes, so that what is pooled are the logits themselves
    dropout: float = 0.0


@dataclass(frozen=True)
class ConvolutionEncoder:
    """Filters over windows of several sizes, side by side (Kim 2014); layers of them for sound."""

    kind: Literal["cnn"] = "cnn"
    reads: Reads = "text"
    embedding: int = 128
    width: int = 100  # filters of each window size
    windows: list[int] = field(default_factory=lambda: [3, 4, 5])
    layers: int = 1
    stride: int = 1  # each layer keeps every so-manieth place
    dropout: float = 0.2


@dataclass(frozen=True)
class GridEncoder:
    """A small convolutional network over pictures, trained from scratch: one annotation per 8 × 8 pixels."""

    kind: Literal["grid"] = "grid"
    size: int = 64  # of the pictures, in pixels a side
    width: int = 128
    dropout: float = 0.0


@dataclass(frozen=True)
class EfficientNetEncoder:
    """EfficientNet-Lite0 as others trained it on ImageNet, frozen or tuned: one annotation per 32 × 32 pixels."""

    kind: Literal["efficientnet"] = "efficientnet"
    size: int = 224  # of the pictures, in pixels a side
    tuned: bool = False  # whether its weights learn too
    dropout: float = 0.0

    @property
    def width(self) -> int:
        return 1280


@dataclass(frozen=True)
class RecurrentDecoder:
    """A GRU or LSTM that looks at the annotations before its step (Bahdanau), after it (Luong), or not at all."""

    kind: Literal["rnn"] = "rnn"
    attention: Literal["none", "bahdanau", "luong"] = "bahdanau"
    energy: Literal["additive", "dot", "general", "concat"] = "additive"
    scope: Literal["global", "local-m", "local-p"] = "global"  # Luong 2015, section 3.2
    window: int = 10  # D of local attention: it looks at 2D + 1 places
    input_feeding: bool = True  # Luong 2015, section 3.3
    cell: Cell = "gru"
    embedding: int = 256
    width: int = 512
    layers: int = 1
    readout: Literal["plain", "maxout"] = "plain"
    dropout: float = 0.2


@dataclass(frozen=True)
class TransformerDecoder:
    """Vaswani et al. 2017, section 3.1: masked self-attention, attention over the annotations, feed-forward."""

    kind: Literal["transformer"] = "transformer"
    width: int = 256
    heads: int = 4
    key_heads: int = 0
    hidden: int = 1024
    layers: int = 4
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    dropout: float = 0.1
    attention_dropout: float = 0.0  # of the weights of its attentions


@dataclass(frozen=True)
class LSTMNDecoder:
    """An LSTM that attends over all its states so far, and over an encoder's (Cheng et al. 2016, section 4)."""

    kind: Literal["lstmn"] = "lstmn"
    fusion: Literal["none", "shallow", "deep"] = "deep"  # how the encoder's tape enters; none without an encoder
    embedding: int = 256
    width: int = 256
    layers: int = 1
    dropout: float = 0.2


@dataclass(frozen=True)
class TellDecoder:
    """Show, Attend and Tell (Xu et al. 2015): an LSTM with a gated look at a picture before each word."""

    kind: Literal["tell"] = "tell"
    attention: Literal["none", "soft", "hard"] = "soft"
    penalty: float = field(default=0.0, metadata=ANY)  # λ of the doubly stochastic penalty; soft attention's
    reward: float = field(default=0.1, metadata=ANY)  # λ_r of REINFORCE; hard attention's
    entropy: float = field(default=0.002, metadata=ANY)  # λ_e, of how open a draw is; hard attention's
    warmup: int = 0  # updates in which hard attention goes from soft to drawing; `Decoder.updated` counts them
    hidden: int = 128  # of the additive energy
    embedding: int = 128
    width: int = 256
    dropout: float = 0.2


Encoder = (
    NoEncoder
    | RecurrentEncoder
    | TransformerEncoder
    | LSTMNEncoder
    | BagEncoder
    | ConvolutionEncoder
    | GridEncoder
    | EfficientNetEncoder
)
Decoder = RecurrentDecoder | TransformerDecoder | LSTMNDecoder | TellDecoder


def annotated(encoder: Encoder) -> int:
    """How wide the annotations of an encoder are: what a decoder over it reads."""
    if isinstance(encoder, RecurrentEncoder):
        return encoder.width * (2 if encoder.bidirectional else 1)
    if isinstance(encoder, ConvolutionEncoder):
        return encoder.width * len(encoder.windows)
    return 0 if isinstance(encoder, NoEncoder) else encoder.width


ENCODERS: dict[str, type[Encoder]] = {each.kind: each for each in get_args(Encoder)}
DECODERS: dict[str, type[Decoder]] = {each.kind: each for each in get_args(Decoder)}


@dataclass(frozen=True)
class Writer:
    """Whatever writes text. `tied` shares embedding tables: the decoder's input and output, or the encoder's too."""

    source_vocabulary: int = field(metadata={"least": 0})  # 0 where the source is no text
    target_vocabulary: int
    encoder: Encoder = field(default_factory=TransformerEncoder)
    decoder: Decoder = field(default_factory=TransformerDecoder)
    tied: Literal["none", "decoder", "all"] = "none"
    longest: int = 512  # positions a `learned` table holds; what is longer is refused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Writer:
        """The config as `to_dict` wrote it; a key nobody knows, or a value that cannot be, is an error, not a shrug."""
        values = dict(values)
        values["encoder"] = part(values.get("encoder"), ENCODERS, "encoder")
        values["decoder"] = part(values.get("decoder"), DECODERS, "decoder")
        return cls(**checked(cls, values, "config"))


@dataclass(frozen=True)
class Head:
    """How a classifier makes one vector of many, `layers/pooling.py`; a linear map of it gives the logits."""

    pooling: Literal["mean", "last", "max", "static", "learned", "attention"] = "attention"
    hidden: int = 64  # of attention's energy
    dropout: float = 0.0  # of the pooled vector


@dataclass(frozen=True)
class Classifier:
    """Whatever names what it is given."""

    source_vocabulary: int = field(metadata={"least": 0})  # 0 where the source is no text
    classes: int
    encoder: Encoder = field(default_factory=RecurrentEncoder)
    head: Head = field(default_factory=Head)
    longest: int = 512  # positions a `learned` table holds; what is longer is refused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Classifier:
        """The config as `to_dict` wrote it, checked as a Writer's is."""
        values, head = dict(values), values.get("head")
        if not isinstance(head, dict):
            raise ValueError(f"head is {head!r:.40}; it must be a table")
        values["encoder"] = part(values.get("encoder"), ENCODERS, "encoder")
        values["head"] = Head(**checked(Head, head, "head"))
        return cls(**checked(cls, values, "config"))


def part(values: Any, kinds: dict[str, Any], name: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{name} is {values!r:.40}; it must be a table with a kind, one of {', '.join(sorted(kinds))}")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{name}.kind is {kind!r:.40}; known kinds are {', '.join(sorted(kinds))}")
    return kinds[kind](**checked(kinds[kind], values, name))


def checked(cls: Any, values: dict[str, Any], name: str) -> dict[str, Any]:
    unknown = sorted(set(values) - {f.name for f in fields(cls)})
    if unknown:
        raise ValueError(f"{name} has unknown keys: {', '.join(unknown)}; it was written by another version of regard")
    hints = get_type_hints(cls)
    for each in fields(cls):
        if each.name in values:
            least = each.metadata.get("least", 0 if each.default == 0 else 1)
            wanted = _wanted(values[each.name], hints[each.name], least, each.metadata.get("most", 1.0))
            if wanted:
                raise ValueError(f"{name}.{each.name} is {values[each.name]!r:.40}; it must be {wanted}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{name}.{each.name} is missing")
    return values


def _wanted(value: Any, hint: Any, least: int, most: float) -> str | None:
    """What a value should have been, where it is not; the parts, checked before, may be anything."""
    if hint is int:  # a size; and True is no size
        right, wanted = type(value) is int and value >= least, f"a whole number ≥ {least}"
    elif hint is float:
        right = type(value) in (int, float) and 0 <= value < most
        wanted = "a number ≥ 0 and < 1" if most == 1 else "a number ≥ 0"
    elif hint is bool:
        right, wanted = isinstance(value, bool), "true or false"
    elif hint == list[int]:
        right = isinstance(value, list) and value != [] and all(type(size) is int and size > 0 for size in value)
        wanted = "a list of positive whole numbers"
    elif get_origin(hint) is Literal:
        right, wanted = value in get_args(hint), f"one of {', '.join(get_args(hint))}"
    else:
        return None
    return None if right else wanted
