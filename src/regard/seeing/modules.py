"""Which share of a module's heads this process has, under tensor parallelism."""

from __future__ import annotations

import re
import sys
import weakref
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


class HeadShare(NamedTuple):
    """The heads of one process among those of `ranks`."""

    rank: int
    ranks: int


WHOLE = HeadShare(0, 1)


def head_share(module: nn.Module | None) -> HeadShare:
    """By the parameters: heads are divided where some are split by rows and others by columns over the same processes.

    That is how projections to queries, keys and values and the projection of the output are split (Shoeybi et al.
    2019). FSDP splits all parameters by rows and gathers them before the module runs: it divides no heads.
    """
    tensor = sys.modules.get("torch.distributed.tensor")  # imported if a parameter is a DTensor
    if module is None or tensor is None:
        return WHOLE
    split = [x for x in module.parameters() if isinstance(x, tensor.DTensor)]
    for mesh in {x.device_mesh for x in split}:
        for axis in range(mesh.ndim):
            placements = [x.placements[axis] for x in split if x.device_mesh == mesh]
            if {0, 1} <= {x.dim for x in placements if isinstance(x, tensor.Shard)}:
                return HeadShare(mesh.get_local_rank(axis), mesh.size(axis))
    return WHOLE


ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
STATE_SPACE = re.compile(
    r"mamba|rwkv|ssm|state.?space|delta.?(net|rule|product)|linear.?attention|lightning.?attention|retention|hyena|"
    r"rg.?lru|recurrent|[sm]lstm|kimi.?delta|mixer$",
    re.IGNORECASE,
)
"""Classes of layers that mix tokens without weights."""


Parts = list[tuple[str, "nn.Module"]]
"""All modules of a model with their names, the model itself first, named ""."""
ModuleKinds = list[tuple[str, str]]
"""The names of all modules of a model, each with the name of its class."""


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

    def __init__(self, kinds: ModuleKinds, model: nn.Module | None = None) -> None:
        """The model is not kept alive: what was recorded may outlive it."""
        self._kinds = kinds
        self._model = None if model is None else weakref.ref(model)
        self._places: dict[str, list[tuple[list[int], str, str]]] | None = None
        self._shares: dict[str, HeadShare] = {}

    def of(self, name: str) -> int | None:
        """The depth of the module of this name; None if its place is not repeated."""
        if self._places is None:
            self._places = {}
            for part, kind in self._kinds:
                self._places.setdefault(_place(part), []).append((_numbers(part), part, kind))
        place = _place(name)
        alike = sorted(self._places.get(place, [])) if place != name else []
        own = next((kind for _, part, kind in alike if part == name), None)
        if own is None:
            return None
        return [part for _, part, other in alike if _same_kind(own, other)].index(name)

    def share(self, name: str) -> HeadShare:
        """Which of the heads of the module of this name this process has."""
        share = self._shares.get(name)
        if share is None:
            model = None if self._model is None else self._model()
            self._shares[name] = share = head_share(_submodule(model, name))
        return share

    def keep_shares(self, names: Iterable[str]) -> None:
        """Find the shares of these modules while the model is alive. Only processes of a group share heads."""
        if is_distributed():
            for name in names:
                self.share(name)

    def selects(self, name: str, layer: int | str) -> bool:
        """Whether a module is this layer: by depth, by whole components of its name, or by a pattern for it."""
        if isinstance(layer, int):
            return self.of(name) == layer
        return f".{layer}." in f".{name}." or fnmatchcase(name, layer)


def is_distributed() -> bool:
    """Whether this process is one of a group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def kinds_of(parts: Parts) -> ModuleKinds:
    return [(name, type(part).__name__) for name, part in parts]


def _submodule(model: nn.Module | None, name: str) -> nn.Module | None:
    """The module of this name; None if there is none."""
    for key in name.split("."):
        model = None if model is None else model._modules.get(key)
    return model


def _same_kind(kind: str, other: str) -> bool:
    if kind == other:
        return True
    return all(ATTENTION.search(x) is not None and STATE_SPACE.search(x) is None for x in (kind, other))


def _place(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
