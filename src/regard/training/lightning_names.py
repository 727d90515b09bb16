"""Lightning under either of its names: the packages pytorch-lightning and lightning hold the same code."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

NAMES = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
"""The names of its modules in pytorch-lightning, which this package imports, and in lightning."""


class AliasFinder(MetaPathFinder, Loader):
    """Imports the modules of one package under the name of another: the same objects, not copies."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package not in self.names or find_spec(self._target_name(package, rest)) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package, _, rest = spec.name.partition(".")
        return import_module(self._target_name(package, rest))

    def exec_module(self, module: ModuleType) -> None:
        """The module has run under its own name."""

    def _target_name(self, package: str, rest: str) -> str:
        return f"{self.names[package]}.{rest}" if rest else self.names[package]


def install_aliases() -> None:
    """Make pytorch_lightning importable where only lightning is installed."""
    missing = find_spec("pytorch_lightning") is None
    if missing and find_spec("lightning") is not None:
        sys.meta_path.insert(0, AliasFinder(NAMES))  # before the one that would run a submodule a second time
