"""What is kept while a model runs is enough for exact weights, and no more; steps of a generation are joined."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend, note, watch
from regard.seeing import call as call_module
from regard.seeing import taps, trace
from regard.seeing.analysis import ablate
from regard.seeing.rollout_and_distances import evenly_spaced

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, 4, 5]])


class Kernel(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, length, 4, generator=torch.Generator().manual_seed(0)).unbind()
    return q, k, v


def test_gradients_keep_no_graph() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(5))
    model, doubled = Kernel(), q * 2
    with watch(model) as seen:
        model(doubled, k * 1, v * 1, torch.zeros(5, 5, requires_grad=True) + 1)
    assert seen.faithful
    assert all(x.grad_fn is None for x in seen[0].tensors())


@pytest.mark.parametrize("window", [100, 4])
def test_a_cache_that_grows_or_slides_is_one_call_of_exact_weights(window: int) -> None:
    (q, k, v), model = inputs(9), Kernel()
    expected = torch.zeros(1, 2, 9, 9)
    with torch.no_grad(), watch(model) as seen:
        for stop in (3, *range(4, 10)):
            rows, keys = slice(0 if stop == 3 else stop - 1, stop), slice(max(0, stop - window), stop)
            part = q[..., rows, :], k[..., keys, :].clone(), v[..., keys, :].clone()
            model(*part)
            expected[..., rows, keys] = torch.softmax(part[0] @ part[1].mT / 2, -1)
    assert len(seen) == 1
    assert seen.nbytes < 9 * 4 * k.nbytes / 9 + 2000  # the newest keys contain the others
    assert seen[0].steps == [3, 1, 1, 1, 1, 1, 1]
    assert float((seen[0].weights.dense() - expected).abs().max()) < 1e-6
    assert torch.equal(seen[0].v, v)
    assert seen.faithful


def test_the_newest_keys_changed_in_place_are_noticed() -> None:
    (q, k, v), model = inputs(4), Kernel()
    newest = k.clone()
    with torch.no_grad(), watch(model) as seen:
        model(q[..., :3, :], k[..., :3, :].clone(), v[..., :3, :].clone())
        model(q[..., 3:, :], newest, v.clone())
    newest.zero_()
    assert len(seen) == 1
    assert seen.faithful is False


def test_calls_of_other_settings_are_no_steps() -> None:
    class Scaled(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, scale=scale)

    (q, k, v), model = inputs(5), Scaled()
    for scale, steps in ((1.0, [[4, 1]]), (2.0, [[4], [1]])):
        with torch.no_grad(), watch(model) as seen:
            model(q[..., :4, :], k[..., :4, :].clone(), v[..., :4, :].clone(), 1.0)
            model(q[..., 4:, :], k, v, scale)
        assert [call.steps for call in seen] == steps
        assert seen.faithful


def test_a_reordered_cache_begins_a_new_call() -> None:
    q, k, v = torch.randn(3, 2, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    model = Kernel()
    with torch.no_grad(), watch(model) as seen:
        model(q[..., :4, :], k[..., :4, :].clone(), v[..., :4, :].clone())
        model(q[..., 4:5, :], k[..., :5, :].clone(), v[..., :5, :].clone())
        model(q[..., 5:6, :], k.flip(0), v.flip(0))
    assert [call.steps for call in seen] == [[4, 1], [1]]
    assert seen.faithful


def test_two_watches_join_the_steps_each_for_itself() -> None:
    (q, k, v), model = inputs(6), Kernel()
    with torch.no_grad(), watch(model) as outer:
        model(q[..., :4, :], k[..., :4, :].clone(), v[..., :4, :].clone())
        with watch(model) as inner:
            for n in (5, 6):
                model(q[..., n - 1 : n, :], k[..., :n, :].clone(), v[..., :n, :].clone())
    assert [call.steps for call in outer] == [[4, 1, 1]]
    assert [call.steps for call in inner] == [[1, 1]]
    assert outer.faithful
    assert inner.faithful


class OwnKernel(nn.Module):
    """Writes into the same memory at every call, as a kernel without version counters does."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = [torch.zeros(1, 2, 5, 4) for _ in range(4)]

    def forward(self, *inputs: Tensor) -> None:
        q, k, v, out = (x.numpy() for x in self.tensors)
        for place, x in zip((q, k, v), inputs, strict=True):
            place[:] = x.numpy()
        w = np.exp(q @ k.swapaxes(-1, -2) / 2)
        out[:] = w / w.sum(-1, keepdims=True) @ v
        note(*self.tensors)


def test_memory_that_a_kernel_writes_again_proves_only_the_last_call() -> None:
    model = nn.ModuleList([OwnKernel(), OwnKernel()])
    with torch.no_grad(), watch(model) as seen:
        for _ in range(3):
            for layer in model:
                layer(*torch.randn(3, 1, 2, 5, 4))
    assert [call.fidelity().faithful for call in seen] == [False] * 4 + [True] * 2


class Mixed(nn.Module):
    """Four ways to attend, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x, mask)
        x = self.fused(x, x, x)[0]
        x = torch.softmax(x @ x.mT, -1) @ x
        return attend(x, x, x)


def test_calls_are_listed_in_the_order_they_were_made() -> None:
    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    assert [call.origin.partition(",")[0] for call in seen] == [
        "sdpa",
        "nn.MultiheadAttention",
        "softmax in its own code",
        "regard.attend",
    ]
    assert seen.faithful


def test_an_error_in_a_record_is_named_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(taps, "_energies", fails)
    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    assert len(seen) == 3
    assert seen.missed == ["Mixed: the call could not be recorded: on purpose"]
    assert seen.faithful is False


def test_long_masks_are_shortened_when_the_watch_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "LONG_MASKS", 150 * 150)
    model, mask = Mixed().train(), torch.ones(150, 150, dtype=torch.bool).tril()
    with watch(model) as seen:
        model(torch.randn(1, 150, 8), mask)
    kept = weakref.ref(mask)
    del mask
    assert kept() is None
    assert seen[0].energies.mask is not None
    assert seen[0].energies.mask.causal_offset == 0


def test_what_was_seen_is_freed_with_it() -> None:
    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    kept = weakref.ref(seen)
    del seen
    assert kept() is None  # at once: not only when cycles are collected


def llama(**options: Any) -> Any:
    """A model that was watched before, so that its attention modules are known."""
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=None, pad_token_id=0, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), watch(model):
        model(IDS)
    return model


def eager_weights(model: Any, ids: Tensor = IDS, **inputs: Any) -> tuple[Tensor, ...]:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights: tuple[Tensor, ...] = model(ids, output_attentions=True, **inputs).attentions
    model.set_attn_implementation("sdpa")
    return weights


def is_exact(seen: Any, expected: tuple[Tensor, ...]) -> bool:
    assert len(seen) == len(expected)
    return all(float((call.weights.dense() - w).abs().max()) < 2e-6 for call, w in zip(seen, expected, strict=True))


def test_a_mask_that_is_refilled_between_layers_is_noticed() -> None:
    model, mask = llama(), torch.zeros(2, 1, 5, 5)

    def refill(*_: Any) -> None:
        mask.fill_(-1.0).tril_()

    hook = model.model.layers[0].register_forward_hook(refill)
    with torch.no_grad(), watch(model) as seen:
        model(IDS, attention_mask=mask)
    hook.remove()
    assert [call.fidelity().faithful for call in seen] == [False, True]


def test_a_question_in_the_middle_of_a_generation_of_a_model() -> None:
    model, cache = llama(), None
    with torch.no_grad(), watch(model) as seen:
        ids = IDS[:1]
        for step in range(5):
            out = model(ids if step == 0 else ids[:, -1:], past_key_values=cache, use_cache=True)
            cache, ids = out.past_key_values, torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)
            if step in (1, 3):
                assert [call.shape[-1] for call in seen] == [5 + step] * 2
    assert [call.steps for call in seen] == [[5, 1, 1, 1, 1]] * 2
    assert is_exact(seen, eager_weights(model, ids[:, :-1]))
    assert seen.faithful


def test_a_cache_that_is_cropped_begins_a_call_that_is_exact() -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(IDS[:1], past_key_values=cache)
        model(IDS[:1, :1], past_key_values=cache)
        cache.crop(-2)
        model(IDS[:1, 2:3], past_key_values=cache)
    assert seen.faithful
    assert sorted(tuple(call.steps) for call in seen if call.layer == 0) == [(1,), (5, 1)]


def test_a_buffer_that_is_filled_again_loses_what_was_there() -> None:
    model = llama()
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "disable_compile": True}
    with torch.no_grad(), watch(model) as seen:
        model.generate(IDS[:1], cache_implementation="static", **options)
    assert seen.faithful
    assert [call.steps for call in seen] == [[5, 1, 1]] * 2
    with torch.no_grad(), watch(model) as seen:
        model.generate(IDS[:1], cache_implementation="static", **options)
        model.generate(IDS[1:], cache_implementation="static", **options)
    assert all(call.fidelity().faithful in (True, False) for call in seen)
    assert [call.fidelity().faithful for call in seen][-1] is True
    wrong = [call for call in seen if call.fidelity().faithful is False]
    assert all(call.fidelity().error is None for call in wrong)  # lost, not wrong


def test_threads_share_a_watch() -> None:
    model, errors = llama(), []
    expected = eager_weights(model)

    def run() -> None:
        try:
            with torch.no_grad():
                for _ in range(5):
                    model(IDS)
        except Exception as error:
            errors.append(error)

    with watch(model) as seen:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            len(seen)  # asks while they run
        for thread in threads:
            thread.join()
    assert not errors
    assert len(seen) == 30
    by_layer = [[call for call in seen if call.layer == layer] for layer in (0, 1)]
    assert all(
        float((call.weights.dense() - w).abs().max()) < 2e-6
        for calls, w in zip(by_layer, expected, strict=True)
        for call in calls
    )
    assert seen.faithful


def test_an_error_before_the_kernel_leaves_nothing_open() -> None:
    model = llama()
    module = model.model.layers[0].self_attn
    with torch.no_grad(), watch(model) as seen:
        module.num_key_value_groups = "two"
        with pytest.raises(TypeError):
            model(IDS)
        module.num_key_value_groups = 2
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 1, 2, 4))  # nobody's
        model(IDS)
    assert [call.name for call in seen] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert seen.faithful
    assert not seen.missed


def test_a_copy_that_finds_no_memory_does_not_stop_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    with torch.inference_mode():
        expected = model(IDS).logits

        def no_memory(_: Tensor) -> None:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(call_module, "some_rows", no_memory)
        with watch(model) as seen:
            assert torch.equal(model(IDS).logits, expected)
    names = {message.partition(": ")[0] for message in seen.missed}
    assert names == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert seen.faithful is None  # nothing was seen


def test_several_watches_and_an_ablation() -> None:
    model = llama()
    expected = eager_weights(model)
    with torch.no_grad(), watch(model) as outer:
        model(IDS)
        with watch(model) as inner:
            model(IDS)
        with ablate(model, heads={1: [0]}):
            model(IDS)
        model(IDS)
    assert len(outer) == 8
    assert len(inner) == 2
    assert [bool(call.ablated) for call in outer] == [False] * 5 + [True] + [False] * 2
    assert all(
        float((call.weights.dense() - expected[n % 2]).abs().max()) < 2e-6 for n, call in enumerate(outer) if n != 5
    )
    assert inner.faithful


def test_another_implementation_is_seen_as_what_it_is() -> None:
    model = llama()
    expected = eager_weights(model)
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
        model.set_attn_implementation("eager")
        model(IDS)
        model.set_attn_implementation("sdpa")
        model(IDS)
    assert [call.origin for call in seen] == ["sdpa, flash"] * 2 + ["eager"] * 2 + ["sdpa, flash"] * 2
    assert is_exact(seen, expected * 3)
    assert seen.faithful


@pytest.mark.parametrize("change", ["the older keys", "the newer keys", "another cache"])
def test_changed_keys_of_a_cache_are_noticed(change: str) -> None:
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
        assert [call.steps for call in seen] == [[3], [3], [3, 1], [3, 1]]
        assert seen.faithful
    elif change == "the older keys":  # both have the changed rows, and what the first step computed is lost
        assert [call.fidelity().faithful for call in seen] == [False, True]
    else:
        assert sorted(call.steps for call in seen if call.layer == 1) == [[1], [3]]
        assert seen[-1].fidelity().faithful


def test_the_first_and_the_last_are_included() -> None:
    assert evenly_spaced(5, 64).tolist() == [0, 1, 2, 3, 4]
    sample = evenly_spaced(1000, 64).tolist()
    assert (len(sample), sample[0], sample[-1]) == (64, 0, 999)
    assert evenly_spaced(1, 64).tolist() == [0]


def test_the_default_device_does_not_matter() -> None:
    expected = evenly_spaced(100, 64).tolist()
    with torch.device("meta"):
        assert evenly_spaced(100, 64).tolist() == expected
