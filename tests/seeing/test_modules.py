"""Layers are counted among the attention modules of a stack, whatever a wrapper is called."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import load_trace, watch
from regard.seeing.analysis import ablate
from regard.seeing.trace import ModuleDepths
from regard.seeing.watch import named_parts

if TYPE_CHECKING:
    from pathlib import Path


class SelfAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module | None = None) -> None:
        super().__init__()
        self.mixer = mixer or SelfAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(x)


class Mamba(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Encoder(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers or (Layer(), Layer(), Layer()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))


def layers_of(model: nn.Module, **options: object) -> list[int | None]:
    with torch.no_grad(), watch(model, **options) as seen:  # type: ignore[arg-type]
        model(X)
    return [call.layer for call in seen]


def test_the_number_of_a_wrapper_is_not_a_layer() -> None:
    assert layers_of(Encoder()) == [0, 1, 2]
    assert layers_of(nn.Sequential(Encoder())) == [0, 1, 2]
    assert layers_of(nn.Sequential(nn.Linear(8, 8), Encoder()), layers=1) == [1]


def test_blocks_of_stages_are_counted_through() -> None:
    stages = Encoder(Encoder(Layer()), Encoder(Layer(), Layer()))
    assert layers_of(stages) == [0, 1, 2]
    assert layers_of(stages, layers=[2]) == [2]


def test_layers_without_attention_are_left_out() -> None:
    assert layers_of(Encoder(Layer(Mamba()), Layer(), Layer(Mamba()), Layer())) == [0, 1]
    assert layers_of(nn.Sequential(nn.Linear(8, 8), SelfAttention(), nn.Linear(8, 8), SelfAttention())) == [0, 1]


def test_a_module_that_is_not_repeated_has_no_layer() -> None:
    assert layers_of(Layer()) == [None]
    assert ModuleDepths(named_parts(Layer())).of("elsewhere") is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_ablation_follows_the_layers_of_a_wrapped_model(wrapped: bool, tmp_path: Path) -> None:
    model: nn.Module = nn.Sequential(Encoder()) if wrapped else Encoder()
    with torch.no_grad(), ablate(model, heads={1: [0]}), watch(model) as seen:
        model(X)
    assert [call.ablated for call in seen] == ["", "heads 0", ""]
    assert "without heads 0" in repr(seen)
    assert seen.faithful
    seen.save(tmp_path / "trace")
    back = load_trace(tmp_path / "trace")
    assert [(call.layer, call.ablated) for call in back] == [(0, ""), (1, "heads 0"), (2, "")]


def test_ablated_tokens_are_in_the_trace() -> None:
    model = Encoder()
    with torch.no_grad(), ablate(model, tokens=[2]), watch(model) as seen:
        model(X)
    assert [call.ablated for call in seen] == ["tokens 2"] * 3


def test_parts_are_the_named_modules_each_once() -> None:
    model = Encoder(Layer(), Encoder())
    model.again = model.layers[0]
    model.nothing = None  # type: ignore[assignment]
    assert named_parts(model) == list(model.named_modules())


def test_what_was_seen_does_not_keep_the_model_alive() -> None:
    model = nn.Sequential(Encoder())
    with torch.no_grad(), watch(model) as seen:
        model(X)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert [call.layer for call in seen] == [0, 1, 2]
    assert [call.all_heads for call in seen] == [2, 2, 2]
    assert seen.faithful
