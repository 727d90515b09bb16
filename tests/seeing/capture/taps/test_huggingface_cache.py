"""The tap of a growing cache: steps are joined without a comparison where the cache made their keys, and only there."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from regard import watch
from regard.seeing.capture.recording import captured_call, key_growth

transformers = pytest.importorskip("transformers")


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    return model


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each comparison of rows."""
    entries, before = [], captured_call._same_rows

    def same_rows(*args: object) -> bool:
        entries.append("rows")
        return before(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(captured_call, "_same_rows", same_rows)
    return entries


def test_a_generation_is_joined_without_comparing_rows(compared: list[str]) -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=5, do_sample=False)  # type: ignore[operator]
    assert not compared
    assert [call.steps for call in seen] == [[3, 1, 1, 1, 1]] * 2
    assert seen.faithful


def test_beams_are_reordered_and_compared(compared: list[str]) -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=6, do_sample=False, num_beams=3)  # type: ignore[operator]
    assert compared
    assert seen.faithful


@pytest.mark.parametrize("change", ["the older keys", "the newer keys", "another cache"])
def test_keys_that_were_changed_are_compared(change: str, compared: list[str]) -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(torch.tensor([[3, 4, 5]]), past_key_values=cache)
        if change == "the older keys":
            cache.layers[0].keys.mul_(2)
        elif change == "another cache":
            cache = transformers.DynamicCache(config=model.config)
            model(torch.tensor([[6, 7, 8]]), past_key_values=cache)
        else:
            layer, update = cache.layers[1], cache.layers[1].update

            def changed(*args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
                k, v = update(*args, **options)
                return k.mul_(2), v

            layer.update = changed
        model(torch.tensor([[9]]), past_key_values=cache)
    if change == "another cache":
        assert not compared
        assert [call.steps for call in seen] == [[3], [3], [3, 1], [3, 1]]
        assert seen.faithful
    elif change == "the older keys":  # both have the changed rows, and what the first step computed is lost
        assert compared
        assert [call.fidelity().faithful for call in seen] == [False, True]
    else:
        assert compared
        assert sorted(call.steps for call in seen if call.layer == 1) == [[1], [3]]
        assert seen[-1].fidelity().faithful


def test_nothing_is_noted_without_a_watch_and_nothing_is_kept_alive() -> None:
    cache = transformers.cache_utils.DynamicLayer()
    rows = torch.randn(1, 1, 2, 4)
    assert key_growth.take() is None
    cache.update(rows, rows)
    cache.update(rows, rows)
    assert key_growth.take() is None
    model = llama()
    with watch(model):
        cache.update(rows, rows)
        growth = key_growth.latest.growth
        assert growth is not None
        assert growth[0][0] is cache.keys
    assert key_growth.take() is None


def test_an_update_of_other_code_proves_nothing(compared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    layer = transformers.cache_utils.DynamicLayer
    original = layer.update

    @functools.wraps(original)
    def halved(self: Any, *args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = original(self, *args, **options)
        self.keys, self.values = k / 2, v
        return self.keys, self.values

    monkeypatch.setattr(layer, "update", halved)
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, do_sample=False)  # type: ignore[operator]
    assert compared
    assert sorted(call.steps for call in seen) == [[1], [1], [1], [1], [3], [3]]
    assert seen.faithful


def test_values_without_a_version_counter_are_compared(compared: list[str]) -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(torch.tensor([[3, 4, 5]]), past_key_values=cache)
        with torch.inference_mode():
            cache.layers[0].values = cache.layers[0].values.clone()
        model(torch.tensor([[6]]), past_key_values=cache)
    assert compared
    assert seen.faithful
