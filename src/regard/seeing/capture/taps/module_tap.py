"""The tap of attention modules as such: which of them ran without a call that another tap saw.

The classes are found by their names, and `forward` is replaced in the class. A hook on the module would turn off fast
paths of PyTorch.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import call_routing
from ..module_depth import ATTENTION, STATE_SPACE
from .lightning_attention import continues, is_lightning, report_lightning
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..module_depth import Parts

NOT_ATTENTION = re.compile(
    r"norm|mask|bias|drop|embed|output|mlp|feed.?forward|ffn|adapter|cache|position|router|rotary|project|pool|head$|"
    r"gate$|scale|conv\dd?|activation|model$|for[A-Z]\w+$"
)
"""Parts of an attention module, and models that contain some."""

NO_WEIGHTS = "a state-space or linear layer: no weights exist here"
NOT_SEEN = (
    "it ran without a softmax, scaled_dot_product_attention or other function that can be seen; report what it "
    "computes with regard.note(q, k, v, out)"
)


@functools.cache
def _is_attention(kind: type) -> bool:
    name = kind.__name__
    if kind.__module__.startswith(("torch.", "regard.")) or issubclass(kind, torch.jit.ScriptModule):
        return False  # these are seen by their functions
    if NOT_ATTENTION.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) or NOT_ATTENTION.search(name):
        return False
    return bool(ATTENTION.search(name) or STATE_SPACE.search(name))


def _replacements(parts: Parts) -> Iterator[Replacement]:
    """The classes of the attention modules that contain no other."""
    kinds: list[tuple[str, type]] = [(name, type(part)) for name, part in parts]
    modules = {name: kind for name, kind in kinds if _is_attention(kind)}
    outer = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."} | {""}
    chosen = {name: kind for name, kind in modules.items() if name not in outer or len(modules) == 1}
    classes: set[type] = set()
    for name, part in parts:
        kind = chosen.get(name)
        if kind is None:
            continue
        tapped = _tapped_lightning if is_lightning(part) else _tapped_forward
        if kind not in classes:
            classes.add(kind)
            yield Replacement(kind, "forward", tapped, is_active=None)
        if "forward" in vars(part):  # its own: hooks of accelerate's device_map keep the one before
            yield Replacement(part, "forward", functools.partial(_own_forward, tapped, part), is_active=None)


def _own_forward(
    tapped: Callable[[Callable[..., Any]], Callable[..., Any]], module: nn.Module, original: Callable[..., Any]
) -> Callable[..., Any]:
    return functools.partial(tapped(lambda _, *args, **kwargs: original(*args, **kwargs)), module)


def _tapped_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    local = call_routing.local

    def forward(*args: Any, **kwargs: Any) -> Any:
        # Every line here runs once for each call of a watched model, and is written for speed.
        own = local.state
        outer, own.unheard = own.unheard, args[0]
        try:
            result = original(*args, **kwargs)
        except BaseException:
            own.unheard = None
            raise
        if own.unheard is not None:
            _finish(own, own.unheard, outer)
        return result

    return forward


def _finish(own: call_routing.ThreadState, module: nn.Module, outer: nn.Module | None) -> None:
    """After a module of which no call was seen."""
    own.unheard = outer
    if call_routing.is_active():
        linear = STATE_SPACE.search(type(module).__name__) is not None
        call_routing.report_unseen(module, NO_WEIGHTS if linear else NOT_SEEN)


def _tapped_lightning(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not call_routing.is_active():
            return original(module, *args, **kwargs)
        own = call_routing.local.state
        outer, own.unheard = own.unheard, module
        continued = continues(module, kwargs)
        try:
            result = original(module, *args, **kwargs)
        except BaseException:
            own.unheard = None
            raise
        if own.unheard is not None:
            own.unheard = outer
            report_lightning(module, result, continued, *args, **kwargs)
        return result

    return forward


TAP = Tap("", model_replacements=_replacements)
