"""What a translator is made of, as plain data: written to config.json, read from a recipe, checked on the way in."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
        """The config as `to_dict` wrote it; a key nobody knows, or a value that cannot be, is an error, not a shrug."""
        values = dict(values)
        values["encoder"] = _part(values.get("encoder"), _ENCODERS, "encoder")
        values["decoder"] = _part(values.get("decoder"), _DECODERS, "decoder")
        return cls(**_checked(cls, values, "config"))


def _part(values: Any, kinds: dict[str, Any], name: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{name} is {values!r:.40}; it must be a table with a kind, one of {', '.join(sorted(kinds))}")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{name}.kind is {kind!r:.40}; known kinds are {', '.join(sorted(kinds))}")
    return kinds[kind](**_checked(kinds[kind], values, name))


def _checked(cls: Any, values: dict[str, Any], name: str) -> dict[str, Any]:
    unknown = sorted(set(values) - {f.name for f in fields(cls)})
    if unknown:
        raise ValueError(f"{name} has unknown keys: {', '.join(unknown)}; it was written by another version of regard")
    hints = get_type_hints(cls)
    for each in fields(cls):
        if each.name in values:
            wanted = _wanted(values[each.name], hints[each.name], each.default)
            if wanted:
                raise ValueError(f"{name}.{each.name} is {values[each.name]!r:.40}; it must be {wanted}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{name}.{each.name} is missing")
    return values


def _wanted(value: Any, hint: Any, default: Any) -> str | None:
    """What a value should have been, where it is not; the parts, checked before, may be anything."""
    if hint is int:  # a size, 0 only where that is the default (key_heads); and True is no size
        right, wanted = type(value) is int and (value > 0 or value == default), "a positive whole number"
    elif hint is float:
        right, wanted = type(value) in (int, float) and 0 <= value < 1, "a number ≥ 0 and < 1"
    elif hint is bool:
        right, wanted = isinstance(value, bool), "true or false"
    elif get_origin(hint) is Literal:
        right, wanted = value in get_args(hint), f"one of {', '.join(get_args(hint))}"
    else:
        return None
    return None if right else wanted
