"""The tap of attention modules as such: which of them ran without a call that another tap saw.

The classes are found by their names, and `forward` is replaced in the class. A hook on the module would turn off fast
paths of PyTorch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import call_routing
from ..module_depth import ATTENTION, STATE_SPACE
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    if type(module).__module__.startswith(("torch.", "regard.")) or isinstance(module, torch.jit.ScriptModule):
        return False  # these are seen by their functions
    if NOT_ATTENTION.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) or NOT_ATTENTION.search(name):
        return False
    return bool(ATTENTION.search(name) or STATE_SPACE.search(name))


def _innermost(model: nn.Module) -> list[nn.Module]:
    """The attention modules that contain no other."""
    modules = [x for x in model.modules() if _is_attention(x)]
    return [x for x in modules if not any(_is_attention(part) for part in x.modules() if part is not x)]


def _replacements(model: nn.Module) -> Iterator[Replacement]:
    for kind in dict.fromkeys(type(x) for x in _innermost(model)):
        yield Replacement(kind, "forward", _forward)


def _forward(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    state = call_routing.thread_state
    before = state.events
    result = original(module, *args, **kwargs)
    if state.events == before:
        linear = STATE_SPACE.search(type(module).__name__) is not None
        call_routing.report_unseen(module, NO_WEIGHTS if linear else NOT_SEEN)
    return result


TAP = Tap("", model_replacements=_replacements)
