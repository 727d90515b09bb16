"""Modules that are added or get a forward of their own between two watches are seen, and no model is kept alive."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_calls_of_a_module_added_between_two_watches_are_seen() -> None:
    model, x = nn.Sequential(Kernel()), torch.randn(1, 2, 4, 8)
    for count in (1, 2):
        with torch.no_grad(), watch(model) as seen:
            model(x)
        assert seen.names == [str(n) for n in range(count)]
        assert [call.layer for call in seen] == list(range(count))
        model.append(Kernel())


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
    model = nn.Sequential(Kernel())
    with watch(model):
        pass
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
