"""ModuleLayout: the modules of a model by name, and what is patched for it; listed again only where they changed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..module_depth import kinds_of, named_parts
from ..taps import patching

if TYPE_CHECKING:
    from torch import nn

_layouts: dict[int, tuple[weakref.ref[nn.Module], ModuleLayout]] = {}
"""By the id of the model, since a module may not be hashable. A layout holds no module."""


class ModuleLayout:
    """Names by the ids of modules, and what to patch. The ids are valid while somebody holds the modules."""

    def __init__(self, model: nn.Module) -> None:
        parts = named_parts(model)
        self.names = {id(part): name for name, part in parts}
        self.names[id(model)] = type(model).__name__
        self.kinds = kinds_of(parts)
        self.plan = patching.plan(parts)
        most = 4 * len(parts) + 64  # more only if a module contains itself: it is then listed every time
        modules, self._keys, has_own_function = _walk(model, most)
        compiled = any(type(module).__name__ == "OptimizedModule" for module in modules)
        self.is_fixed = not compiled and not has_own_function
        """Whether it is valid as long as the modules stay the same. A `forward` of a module's own is patched in the
        module: the plan then holds that module, and another `forward` needs another plan. No module is compiled."""
        self._types, self._ids = list(map(type, modules)), list(map(id, modules)) if len(modules) <= most else []

    def modules(self, model: nn.Module) -> list[nn.Module] | None:
        """All modules of the model if they are those of the layout, under the same names; otherwise None."""
        modules, keys, has_own_function = _walk(model, len(self._ids))
        same = keys == self._keys and list(map(id, modules)) == self._ids and list(map(type, modules)) == self._types
        return modules if same and not has_own_function else None


def layout_of(model: nn.Module) -> tuple[ModuleLayout, list[nn.Module]]:
    """The layout of a model, made anew if modules were added, removed, replaced or renamed; and all its modules."""
    key = id(model)
    reference, layout = _layouts.get(key, (None, None))
    if layout is not None and reference is not None and reference() is model:
        modules = layout.modules(model)
        if modules is not None:
            return layout, modules
    layout = ModuleLayout(model)
    if layout.is_fixed:
        _layouts[key] = weakref.ref(model, lambda _: _layouts.pop(key, None)), layout
    else:
        _layouts.pop(key, None)
    return layout, [part for _, part in named_parts(model)]


def _walk(model: nn.Module, most: int) -> tuple[list[nn.Module], list[str], bool]:
    """All modules, outer ones first, and the names of all children in the same order; stops beyond `most` modules.

    Also whether a module has a `forward` beside that of its class, as accelerate's hooks set it, or was compiled. A
    module at two places is listed twice. Every watch of a model walks through all its modules when it opens: it is
    about six times as fast as listing them with their names.
    """
    modules, keys, has_own_function = [model], list[str](), False
    for module in modules:
        own = module.__dict__
        if "forward" in own or "_compiled_call_impl" in own:
            has_own_function = True
        children = own["_modules"]
        if children:
            keys += children
            if None in children.values():
                modules += [child for child in children.values() if child is not None]
            else:
                modules += children.values()
            if len(modules) > most:
                break
    return modules, keys, has_own_function
