"""ModuleLayout: listed once for a model, and again as soon as a module was added, removed, replaced or renamed."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.capture.module_depth import kinds_of, named_parts
from regard.seeing.capture.recording.module_layout import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def stack() -> nn.Sequential:
    return nn.Sequential(Kernel(), nn.Sequential(nn.Identity(), Kernel()), nn.Identity())


def test_a_model_that_did_not_change_is_listed_once() -> None:
    model = stack()
    first, modules = layout_of(model)
    second, again = layout_of(model)
    assert first is second
    assert sorted(map(id, modules)) == sorted(map(id, again))
    assert first.kinds == kinds_of(named_parts(model))


CHANGES: dict[str, Callable[[nn.Sequential], None]] = {
    "added": lambda model: model.append(Kernel()) and None,
    "removed": lambda model: model.pop(2) and None,
    "replaced": lambda model: setattr(model, "0", Kernel()),
    "by another class": lambda model: setattr(model[0], "__class__", nn.Identity),
    "renamed": lambda model: model._modules.update(last=model._modules.pop("2")),
    "inside": lambda model: model[1].append(Kernel()) and None,
    "missing": lambda model: setattr(model, "2", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change: str) -> None:
    model = stack()
    first, _ = layout_of(model)
    CHANGES[change](model)
    second, modules = layout_of(model)
    assert second is not first
    assert second.kinds == kinds_of(named_parts(model))
    assert {*map(id, modules)} == {*map(id, model.modules())}


def test_calls_of_a_module_added_between_two_watches_are_seen() -> None:
    model, x = nn.Sequential(Kernel()), torch.randn(1, 2, 4, 8)
    for count in (1, 2):
        with torch.no_grad(), watch(model) as seen:
            model(x)
        assert seen.names == [str(n) for n in range(count)]
        assert [call.layer for call in seen] == list(range(count))
        model.append(Kernel())


def test_shared_modules_and_modules_inside_themselves() -> None:
    shared = Kernel()
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Identity()))
    layout, _ = layout_of(model)
    assert layout_of(model)[0] is layout
    model[1]._modules["itself"] = model
    layout, modules = layout_of(model)
    assert layout.kinds == kinds_of(named_parts(model))
    assert {*map(id, modules)} == {*map(id, model.modules())}


class HashedAttention(nn.Module):
    """Attention without a function that can be seen: a watch names it as missed."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def _set_own_forward(module: nn.Module) -> None:
    """As the hooks of accelerate do: a forward of the module's own, which calls the one before."""
    before = module.forward
    module.forward = lambda x: before(x)


def test_a_forward_set_between_two_watches_is_seen() -> None:
    model, x = nn.Sequential(HashedAttention(), HashedAttention()), torch.randn(1, 2, 4)
    for change in (lambda _: None, _set_own_forward, _set_own_forward):
        for part in model:
            change(part)
        with torch.no_grad(), watch(model) as seen:
            model(x)
        assert [message.partition(": ")[0] for message in seen.missed] == ["0", "1"]


def test_a_model_whose_layers_have_a_forward_of_their_own_is_not_kept_alive() -> None:
    model = nn.Sequential(HashedAttention(), HashedAttention())
    for part in model:
        _set_own_forward(part)
    references = [weakref.ref(part) for part in model.modules()]
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 2, 4))
    assert len(seen.missed) == 2
    del model, part, seen
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_a_model_is_not_kept_alive() -> None:
    model = stack()
    layout_of(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
