"""ModuleDepths: which attention layer of its stack a module is, in wrapped models and hybrids too."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
STATE_SPACE = re.compile(
    r"mamba|rwkv|ssm|state.?space|delta.?(net|rule|product)|linear.?attention|lightning.?attention|retention|hyena|"
    r"rg.?lru|recurrent|[sm]lstm|kimi.?delta",
    re.IGNORECASE,
)
"""Classes of layers that mix tokens without weights."""


class ModuleDepths:
    """Layers are counted among modules at the same place of a repeated structure: "encoder.layer.*.attention.self".

    So the third block of a second stage follows those of the first, numbers of a wrapper do not count, and layers
    without attention between others are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._classes: dict[str, str] = {name: type(part).__name__ for name, part in model.named_modules()}
        self._depths: dict[str, int | None] = {}

    def of(self, name: str) -> int | None:
        """The depth of the module of this name; None if its place is not repeated."""
        if name not in self._depths:
            self._depths[name] = self._count(name)
        return self._depths[name]

    def selects(self, name: str, layer: int | str) -> bool:
        """Whether a module is this layer: by depth, by whole components of its name, or by a pattern for it."""
        if isinstance(layer, int):
            return self.of(name) == layer
        return f".{layer}." in f".{name}." or fnmatchcase(name, layer)

    def _count(self, name: str) -> int | None:
        place = _place(name)
        if place == name or name not in self._classes:
            return None
        kind = self._classes[name]
        alike = [other for other, its in self._classes.items() if _place(other) == place and _same_kind(kind, its)]
        return sorted(alike, key=_numbers).index(name)


def _same_kind(kind: str, other: str) -> bool:
    if kind == other:
        return True
    return all(ATTENTION.search(x) is not None and STATE_SPACE.search(x) is None for x in (kind, other))


def _place(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
