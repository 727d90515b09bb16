"""What ran unseen is named: no answer is called faithful while an attention module was not seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch


class SeenAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class HashedAttention(nn.Module):
    """Attention by a function that nothing sees."""

    def forward(self, x: Tensor) -> Tensor:
        e = x @ x.mT
        return (e - e.logsumexp(-1, keepdim=True)).exp() @ x


class MambaMixer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(dim=-2)


class AttentionScale(nn.Module):
    """A part of an attention module, not one itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


class AttentionHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class OuterAttention(nn.Module):
    """It attends itself, with a part whose class has attention in its name."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = AttentionHelper()

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.helper(x), x, x)


def seen_of(*layers: nn.Module) -> list[str]:
    model = nn.Sequential(*layers)
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 2, 5, 4))
    assert seen.faithful is (not seen.missed)
    return seen.missed


def test_an_attention_module_that_called_nothing_is_named() -> None:
    (message,) = seen_of(SeenAttention(), HashedAttention())
    assert message.startswith("1: it ran without a softmax")
    assert "regard.note" in message


def test_a_state_space_layer_is_named_with_its_reason() -> None:
    (message,) = seen_of(SeenAttention(), MambaMixer(), SeenAttention())
    assert message == "1: a state-space or linear layer: no weights exist here"


def test_parts_of_attention_modules_are_not_named() -> None:
    assert not seen_of(SeenAttention(), AttentionScale())
    assert not seen_of(OuterAttention())


def test_what_did_not_run_or_was_not_selected_is_not_named() -> None:
    model = nn.ModuleList([SeenAttention(), HashedAttention()])
    with watch(model) as seen:
        model[0](torch.randn(1, 2, 5, 4))
    assert seen.faithful
    with watch(model, layers="0") as seen:
        for layer in model:
            layer(torch.randn(1, 2, 5, 4))
    assert seen.faithful


def test_classes_are_as_before_after_the_watch() -> None:
    before = HashedAttention.forward
    model = nn.Sequential(HashedAttention(), HashedAttention())
    with watch(model), watch(model) as seen:
        model(torch.randn(1, 2, 5, 4))
        assert HashedAttention.forward is not before
    assert HashedAttention.forward is before
    assert len(seen.missed) == 2
