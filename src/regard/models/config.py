"""What a translator is made of, as plain data: written to config.json, read from a recipe, checked on the way in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Cell = Literal["gru", "lstm"]
Norm = Literal["pre", "post"]
Positions = Literal["sinusoidal", "learned", "rotary", "alibi"]


@dataclass(frozen=True)
class RecurrentEncoder:
    """Embeddings under a GRU or LSTM; both directions (Bahdanau) or one (Luong)."""

    kind: Literal["rnn"] = "rnn"
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
    width: int = 256
    heads: int = 4
    key_heads: int = 0  # fewer heads for keys and values; 0 means as many as `heads`
    hidden: int = 1024  # of the feed-forward part
    layers: int = 4
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    dropout: float = 0.1


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


Encoder = RecurrentEncoder | TransformerEncoder
Decoder = RecurrentDecoder | TransformerDecoder
_ENCODERS: dict[str, type[Encoder]] = {"rnn": RecurrentEncoder, "transformer": TransformerEncoder}
_DECODERS: dict[str, type[Decoder]] = {"rnn": RecurrentDecoder, "transformer": TransformerDecoder}


@dataclass(frozen=True)
class Translator:
    """A whole translator. `tied` shares embedding tables: the decoder's input and output, or the encoder's too."""

    source_vocabulary: int
    target_vocabulary: int
    encoder: Encoder = field(default_factory=TransformerEncoder)
    decoder: Decoder = field(default_factory=TransformerDecoder)
    tied: Literal["none", "decoder", "all"] = "none"
    longest: int = 512  # positions a `learned` table holds; what is longer is refused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Translator:
        """The config as `to_dict` wrote it; a key nobody knows is an error, not a shrug."""
        values = dict(values)
        values["encoder"] = _part(values.get("encoder", {}), _ENCODERS, "encoder")
        values["decoder"] = _part(values.get("decoder", {}), _DECODERS, "decoder")
        return cls(**_known(cls, values, "config"))


def _part(values: dict[str, Any], kinds: dict[str, Any], name: str) -> Any:
    kind = values.get("kind")
    if kind not in kinds:
        raise ValueError(f"{name}.kind is {kind!r}; known kinds are {', '.join(sorted(kinds))}")
    return kinds[kind](**_known(kinds[kind], values, name))


def _known(cls: Any, values: dict[str, Any], name: str) -> dict[str, Any]:
    unknown = sorted(set(values) - {f.name for f in fields(cls)})
    if unknown:
        raise ValueError(f"{name} has unknown keys: {', '.join(unknown)}; it was written by another version of regard")
    return values
