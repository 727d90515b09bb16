"""ModuleDepths: which attention layer of its stack a module is, in wrapped models and hybrids too."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .recording.tensor_parallel import head_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .recording.tensor_parallel import HeadShare

ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
STATE_SPACE = re.compile(
    r"mamba|rwkv|ssm|state.?space|delta.?(net|rule|product)|linear.?attention|lightning.?attention|retention|hyena|"
    r"rg.?lru|recurrent|[sm]lstm|kimi.?delta|mixer$",
    re.IGNORECASE,
)
"""Classes of layers that mix tokens without weights."""


Parts = list[tuple[str, "nn.Module"]]
"""All modules of a model with their names, the model itself first, named ""."""


def named_parts(model: nn.Module) -> Parts:
    """`model.named_modules()` as a list, in a third of the time."""
    parts: Parts = []
    known: set[int] = set()

    def visit(name: str, part: nn.Module) -> None:
        known.add(id(part))
        parts.append((name, part))
        for key, child in part._modules.items():
            if child is not None and id(child) not in known:
                visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return parts


class ModuleDepths:
    """Layers are counted among modules at the same place of a repeated structure: "encoder.layer.*.attention.self".

    So the third block of a second stage follows those of the first, numbers of a wrapper do not count, and layers
    without attention between others are left out.
    """

    def __init__(self, parts: Parts | Callable[[], Parts]) -> None:
        """`parts` may be a function that lists them on first use: nothing needs it while the model runs."""
        self._parts = parts
        self._places: dict[str, list[tuple[list[int], str, str]]] | None = None

    def of(self, name: str) -> int | None:
        """The depth of the module of this name; None if its place is not repeated."""
        if self._places is None:
            self._places = {}
            for part, module in self._listed():
                self._places.setdefault(_place(part), []).append((_numbers(part), part, type(module).__name__))
        place = _place(name)
        alike = sorted(self._places.get(place, [])) if place != name else []
        kind = next((kind for _, part, kind in alike if part == name), None)
        if kind is None:
            return None
        return [part for _, part, other in alike if _same_kind(kind, other)].index(name)

    def share(self, name: str) -> HeadShare:
        """Which of the heads of the module of this name this process has."""
        return head_share(next((part for own, part in self._listed() if own == name), None))

    def _listed(self) -> Parts:
        if callable(self._parts):
            self._parts = self._parts()
        return self._parts

    def selects(self, name: str, layer: int | str) -> bool:
        """Whether a module is this layer: by depth, by whole components of its name, or by a pattern for it."""
        if isinstance(layer, int):
            return self.of(name) == layer
        return f".{layer}." in f".{name}." or fnmatchcase(name, layer)


def _same_kind(kind: str, other: str) -> bool:
    if kind == other:
        return True
    return all(ATTENTION.search(x) is not None and STATE_SPACE.search(x) is None for x in (kind, other))


def _place(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
