"""Plug-ins: encoders, decoders, heads, tasks, tokenizers and data from other packages.

A plug-in is named "package.module:Class", or by an entry point of an installed package in the group "regard.encoders",
"regard.decoders", and so on. The name may stand in a recipe or in the config.json of a model, and both may come from
anybody. So a name alone imports nothing: the package must be one that the user allowed (`allow_plugins`, `regard
--plugins`, the environment variable REGARD_PLUGINS), or its module one that the program imported itself.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

UNKNOWN_KIND = "if it is a plug-in, install the package that has it"
VARIABLE = "REGARD_PLUGINS"
"""The environment variable with the names of packages, separated by commas."""
GROUPS = {part: f"regard.{part}s" for part in ("encoder", "decoder", "head", "task", "tokenizer")}
GROUPS["loss"] = "regard.losses"
GROUPS["data"] = "regard.data"
"""The groups of entry points, by part."""
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_allowed: set[str] = set()


class PluginError(ValueError):
    """A plug-in that is not installed, not allowed, or not what its place needs."""


def allow_plugins(*packages: str) -> None:
    """Allow recipes and models to name classes of these packages: their code is imported and runs."""
    _allowed.update(*map(_names, packages))


def _names(text: str) -> set[str]:
    """The names of packages in a text, where commas separate them."""
    return {name.strip() for name in text.split(",") if name.strip()}


def plugin_path(name: str, part: str) -> str | None:
    """ "package.module:Class" for a name that is one or is an entry point of the group; None for any other name."""
    if _PATH.fullmatch(name):
        return name
    return next((point.value for point in entry_points(group=GROUPS[part]) if point.name == name), None)


def _in_reach(package: str) -> bool:
    """Whether the working directory, in which the command `regard` looks for no packages, has it."""
    return Path(package).is_dir() or Path(f"{package}.py").is_file()


def load_plugin(name: str, part: str, base: type[T], key: str) -> type[T]:
    """The class that `name` names, a subclass of `base`. `key` is where the name stands, for errors."""
    path = plugin_path(name, part)
    if path is None:
        raise PluginError(f"{key} is {name!r:.80}; a plug-in is named package.module:Class, or by an entry point")
    module_name, _, class_name = path.partition(":")
    package = module_name.split(".")[0]
    if module_name not in sys.modules:
        if find_spec(package) is None:
            raise PluginError(
                f"{key} is {name!r}, a plug-in of the package {package}, which is not installed here: install it with "
                "pip (pip install -e FOLDER for your own), or add the folder that holds it to PYTHONPATH"
                + (f"; the working directory holds {package}, so PYTHONPATH=. is enough" if _in_reach(package) else "")
            )
        if package not in _allowed | _names(os.environ.get(VARIABLE, "")):
            raise PluginError(
                f"{key} is {name!r}, code of the package {package}. It runs only if you allow it: "
                f"regard --plugins {package} …, or {VARIABLE}={package}, or regard.plugins.allow_plugins({package!r})"
            )
        try:
            import_module(module_name)
        except ModuleNotFoundError as error:
            raise PluginError(f"{key} is {name!r}: {error}") from None
    loaded = vars(sys.modules[module_name]).get(class_name)
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise PluginError(f"{key} is {name!r}: {module_name} has no subclass {class_name} of {base.__name__}")
    attribute = "plugin" if hasattr(loaded, "plugin") else "kind"
    require_own_name(getattr(loaded, attribute, name), f"{class_name}.{attribute}", name, part, key)
    return loaded


def require_own_name(declared: object, attribute: str, name: str, part: str, key: str) -> None:
    """Refuse a class whose own name does not lead to it: a saved model has that name, and is loaded by it.

    The path and the name of an entry point lead to the same class, so a recipe may have either.
    """
    if not isinstance(declared, str) or plugin_path(declared, part) != plugin_path(name, part):
        raise PluginError(f"{key} is {name!r}, and {attribute} is {declared!r:.80}: make it {name!r}")
