"""Configurations: plain data that config.json and recipes hold. Each class states the rules its values must obey."""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import torch

from ..plugins import UNKNOWN_KIND, load_plugin, plugin_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

CellKind = Literal["gru", "lstm"]
NormPlace = Literal["pre", "post", "none"]
PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "none"]
SequenceSource = Literal["text", "sound"]
ExportEngine = Literal["ctranslate2", "onnx"]
TaskName = Literal["translate", "write", "classify", "caption", "spell"]

SOURCES: dict[TaskName, tuple[str, ...]] = {
    "translate": ("text",),
    "write": ("none",),
    "caption": ("picture",),
    "spell": ("sound",),
    "classify": ("text", "sound"),
}
"""What each task reads."""
LARGEST = (1 << 31) - 1
"""The maximum of a size. Products of two sizes fit into the 64 bits that PyTorch counts with."""
UNBOUNDED = {"most": math.inf}
"""Metadata of a number that may be 1 and more; without it a float is a share, 0 ≤ x < 1."""


@dataclass(frozen=True)
class Config:
    """Base of every configuration. `problems` lists what is wrong; `check` raises it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], name: str = "config") -> Self:
        """The configuration that `to_dict` wrote. Unknown keys, missing keys and impossible values are errors."""
        unknown = sorted(set(values) - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(
                f"{name} has unknown keys: {', '.join(unknown)}; it was written by another version of regard"
            )
        for each in fields(cls):
            if each.name not in values and each.default is MISSING and each.default_factory is MISSING:
                raise ValueError(f"{name}.{each.name} is missing")
        config = cls(**values)
        config.check(name)
        return config

    def problems(self) -> list[str]:
        """What is wrong with these values, one sentence each; subclasses add the rules between their fields."""
        hints = get_type_hints(type(self))
        wrong = []
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Config):
                wrong += [f"{each.name}.{problem}" for problem in value.problems()]
            expected = _expected(value, hints[each.name], each)
            if expected:
                wrong.append(f"{each.name} is {value!r:.40}; it must be {expected}")
        return wrong

    def check(self, name: str = "") -> None:
        if wrong := self.problems():
            raise ValueError("; ".join(f"{name}.{problem}" if name else problem for problem in wrong))


class ModuleConfig(Config):
    """Configuration of a module that models are built of: an encoder, a decoder or a head.

    A subclass does not inherit `capturable`: it may build another module, so it sets it itself.
    """

    capturable: ClassVar[bool] = False
    """Whether a CUDA graph can record its forward pass: no branch on data, and nothing read back from the GPU."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "capturable" not in cls.__dict__:
            cls.capturable = False


class PartConfig(ModuleConfig):
    """Configuration of an encoder or a decoder: a frozen dataclass, listed in `models/encoder_decoder.py`."""

    kind: str  # its name in config.json
    recurrent: ClassVar[bool] = False
    """Whether one position is computed after another, each by small operations."""

    @property
    def width(self) -> int:
        raise NotImplementedError

    @property
    def embedding_width(self) -> int:
        """Width of the word embeddings."""
        return int(getattr(self, "embedding", self.width))


def plugin_config(
    values: dict[str, Any],
    name: str,
    base: type[Any],
    check: Callable[[type[Any], dict[str, Any]], None] = lambda plugin, values: None,
) -> Any:
    """The configuration of a part whose `kind` names a plug-in, after `check` of its class and the values.

    Its kind is the plug-in's own name, also where an entry point named it.
    """
    kind = str(values["kind"])
    plugin = load_plugin(kind, name, base, f"{name}.kind")
    check(plugin, values)
    return plugin.from_dict({**values, "kind": getattr(plugin, "kind", kind)}, name)


def part_config(values: Any, kinds: dict[str, type[Any]], name: str, base: type[Any]) -> Any:
    """The configuration of a part whose `kind` says which class it is: one of `kinds`, or a plug-in below `base`."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} is {values!r:.40}; it must be a table with a kind, one of {', '.join(sorted(kinds))}")
    kind = values.get("kind")
    if isinstance(kind, str) and kind not in kinds and plugin_path(kind, name):
        return plugin_config(values, name, base)
    if not isinstance(kind, str) or kind not in kinds:
        known = f"known kinds are {', '.join(sorted(kinds))}"
        hint = f"; {UNKNOWN_KIND}" if isinstance(kind, str) else ""
        raise ValueError(f"{name}.kind is {kind!r:.40}; {known}{hint}")
    return kinds[kind].from_dict(values, name)


def _expected(value: Any, hint: Any, declared: Field[Any]) -> str | None:
    """What a value should be, where it is not."""
    least = declared.metadata.get("least", 0 if declared.default == 0 else 1)
    most = declared.metadata.get("most", 1.0)
    if hint is int:  # a size; True is not one
        valid, expected = type(value) is int and least <= value <= LARGEST, f"a whole number ≥ {least} and < 2³¹"
    elif hint is float:
        valid = type(value) in (int, float) and 0 <= value < most
        expected = "a number ≥ 0 and < 1" if most == 1 else "a number ≥ 0"
    elif hint is bool:
        valid, expected = isinstance(value, bool), "true or false"
    elif hint == list[int]:
        valid = isinstance(value, list) and value != [] and all(type(x) is int and 0 < x <= LARGEST for x in value)
        expected = "a list of positive whole numbers"
    elif get_origin(hint) is Literal:
        valid, expected = value in get_args(hint), f"one of {', '.join(get_args(hint))}"
    else:
        return None
    return None if valid else expected


@dataclass
class Annotations:
    """One vector per position of the source (a word, a cell of a picture, a frame of sound), and a summary of them.

    A decoder without attention starts from `summary`: the last state of an RNN, the mean of a Transformer's vectors.
    `tape`, where an encoder has one, holds the memories beside the vectors (LSTMN). Positions at and past `lengths` are
    padding; nothing may depend on them.
    """

    vectors: Float[Tensor, "batch places width"]
    lengths: Int[Tensor, "batch"]
    summary: Float[Tensor, "batch width"]
    tape: Float[Tensor, "batch places width"] | None = None
    decoder: Int[Tensor, "batch"] | None = None
    """Which of several decoders reads each sentence, where there are several."""
    source: Int[Tensor, "batch places"] | None = None
    """The ids of the source, for a decoder that copies them."""
    parts: tuple[Annotations, ...] = ()
    """Those of every model of an ensemble."""

    def select(self, rows: Int[Tensor, "chosen"]) -> Annotations:
        """The annotations of these sentences, in this order."""
        tape = None if self.tape is None else self.tape[rows]
        decoder = None if self.decoder is None else self.decoder[rows]
        source = None if self.source is None else self.source[rows]
        parts = tuple(part.select(rows) for part in self.parts)
        return Annotations(self.vectors[rows], self.lengths[rows], self.summary[rows], tape, decoder, source, parts)


def zero_padding(
    x: Float[Tensor, "batch places width"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch places width"]:
    return x * (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]


def masked_mean(x: Float[Tensor, "batch places width"], lengths: Int[Tensor, "batch"]) -> Float[Tensor, "batch width"]:
    """The mean over each sentence, without its padding."""
    return (zero_padding(x, lengths).sum(1) / lengths[:, None]).to(x.dtype)
