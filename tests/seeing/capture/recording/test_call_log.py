"""CallLog: calls of known modules are references in a list, and what is made of them is exact, or said to be lost."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import watch
from regard.seeing.analysis import ablate
from regard.seeing.capture import call_routing
from regard.seeing.capture.recording import call_log, captured_call
from regard.seeing.capture.recording.call_log import MASK, OUT, OUT_VERSION, K, Q, V

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, 4, 5]])


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


def entries(seen: Any) -> list[list[Any]]:
    log = seen._recorder.log
    assert log is not None
    return list(log.entries)


@pytest.mark.parametrize("way", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("padding", [False, True])
def test_calls_of_known_modules_are_logged_and_exact(way: str, padding: bool) -> None:
    model, mask = llama(), torch.ones_like(IDS)
    mask[0, :2] = 0
    inputs = {"attention_mask": mask} if padding else {}
    expected = eager_weights(model, **inputs)
    with getattr(torch, way)(), watch(model) as seen:
        model(IDS, **inputs)
    logged = entries(seen)
    assert len(logged) == 2
    assert not seen._recorder._pending
    assert [x[K].shape[1] for x in logged] == [2, 2]  # heads that were repeated for the kernel are kept once
    assert not call_routing.local.state.repeated
    if padding:  # rows of padding tokens see no key in one, all in the other
        expected = tuple(w[1:] for w in expected)
        weights = [call.weights.dense()[1:] for call in seen]
        assert all(float((a - b).abs().max()) < 2e-6 for a, b in zip(weights, expected, strict=True))
    else:
        assert is_exact(seen, expected)
    assert seen.faithful
    assert [call.name for call in seen] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert {call.kind for call in seen} == {"self"}
    assert not seen._recorder.log.entries


@pytest.mark.parametrize("changed", [Q, K, V, MASK])
def test_a_change_after_the_call_is_noticed(changed: int) -> None:
    model, mask = llama(), torch.ones_like(IDS)
    mask[0, 0] = 0
    with torch.no_grad(), watch(model) as seen:
        model(IDS, attention_mask=mask)
    x = entries(seen)[0][changed]
    x.logical_not_() if x.dtype == torch.bool else x.add_(1)
    both = changed == MASK  # all layers share it
    assert [call.fidelity().faithful for call in seen] == [False, not both]


def test_a_module_whose_output_is_changed_after_all_is_logged_no_more() -> None:
    model, verdicts, logged = llama(), [], []
    for _ in range(2):
        with torch.no_grad(), watch(model) as seen:
            model(IDS)
        logged.append([x[0] for x in entries(seen)])
        for entry in entries(seen)[:1]:
            entry[OUT].mul_(2)
        verdicts.append([call.fidelity().faithful for call in seen])
    assert verdicts == [[None, True], [True, None]]  # the second time the first layer is not logged
    modules = [id(layer.self_attn) for layer in model.model.layers]
    assert logged == [modules, modules[1:]]


def test_a_mask_that_is_refilled_between_layers_is_noticed() -> None:
    model, mask = llama(), torch.zeros(2, 1, 5, 5)

    def refill(*_: Any) -> None:
        mask.fill_(-1.0).tril_()

    hook = model.model.layers[0].register_forward_hook(refill)
    with torch.no_grad(), watch(model) as seen:
        model(IDS, attention_mask=mask)
    hook.remove()
    assert [x[MASK] is mask for x in entries(seen)] == [True, True]
    assert [call.fidelity().faithful for call in seen] == [False, True]


def test_keys_of_a_growing_cache_are_held_once() -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        written = model.generate(IDS[:1], max_new_tokens=6, min_new_tokens=6, do_sample=False)
    first = [x for x in entries(seen) if x[0] == id(model.model.layers[0].self_attn)]
    assert [type(x[K]) is int for x in first] == [True] * 5 + [False]
    assert [x[V] is None for x in first] == [True] * 5 + [False]
    assert [call.steps for call in seen] == [[5, 1, 1, 1, 1, 1]] * 2
    assert is_exact(seen, eager_weights(model, written[:, :-1]))
    assert seen.faithful


def test_a_question_in_the_middle_of_a_generation() -> None:
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


def test_older_keys_that_were_changed_are_lost() -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(IDS[:1], past_key_values=cache)
        cache.layers[0].keys.mul_(2)
        model(IDS[:1, :1], past_key_values=cache)
    assert [call.fidelity().faithful for call in seen if call.layer == 0] == [False]
    assert [call.fidelity().faithful for call in seen if call.layer == 1] == [True]


def test_newest_keys_that_are_changed_after_the_generation_are_lost() -> None:
    model = llama()
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(IDS[:1], past_key_values=cache)
        model(IDS[:1, :1], past_key_values=cache)
    cache.layers[1].values.zero_()
    assert [call.fidelity().faithful for call in seen] == [True, False]


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


def test_threads_share_a_log() -> None:
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
        state = call_routing.local.state
        assert state.log is None
        assert state.unheard is None
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 1, 2, 4))  # nobody's
        model(IDS)
    assert [call.name for call in seen] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert seen.faithful
    assert not seen.missed


def test_a_question_while_another_thread_leaves_out_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread has logged a step, is interrupted, and leaves out the keys before it once both were taken."""
    model, take = llama(), call_log.CallLog.take

    def take_and_leave_out(log: call_log.CallLog) -> Any:
        previous = [entry[call_log.PREVIOUS] for entry in log.entries]
        taken = take(log)
        for entry in previous:
            if entry is not None:
                call_log.leave_out_keys(entry)
        return taken

    monkeypatch.setattr(call_log.CallLog, "take", take_and_leave_out)
    with torch.no_grad(), watch(model) as seen:
        model.generate(IDS, max_new_tokens=4, do_sample=False)
    assert entries(seen)
    assert [call.steps for call in seen] == [[5, 1, 1, 1]] * 2
    assert not seen.missed
    assert seen.faithful


@pytest.mark.parametrize("known", [False, True])
def test_a_copy_that_finds_no_memory_does_not_stop_the_model(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    model = model if known else copy.deepcopy(model)
    with torch.inference_mode():
        expected = model(IDS).logits

        def no_memory(_: Tensor) -> None:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(call_log if known else captured_call, "some_rows", no_memory)
        with watch(model) as seen:
            assert torch.equal(model(IDS).logits, expected)
    names = {message.partition(": ")[0] for message in seen.missed}
    assert names == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert seen.faithful is False


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch has no rule for this kernel in vmap
def test_an_ensemble_in_vmap_is_named_as_such() -> None:
    model = llama()
    parameters = {name: torch.stack([x, x]) for name, x in model.named_parameters()}
    with torch.no_grad(), watch(model) as seen:
        torch.vmap(lambda p: torch.func.functional_call(model, p, (IDS,), {"use_cache": False}).logits)(parameters)
    assert len(seen.missed) == 2
    assert all("torch.vmap" in message for message in seen.missed)


def test_a_graph_for_gradients_is_not_held() -> None:
    model = llama()
    with watch(model) as seen:
        model(IDS).logits.sum().backward()
    assert not entries(seen)
    assert all(x.grad_fn is None for steps in seen._recorder._pending for x in steps.calls[0].tensors())
    assert seen.faithful


@pytest.mark.parametrize(
    "option", [{"keep": "cpu"}, {"keep": "qk"}, {"limit": "1GB"}, {"gradients": True}, {"layers": 1}]
)
def test_a_watch_that_needs_more_at_once_logs_nothing(option: dict[str, Any]) -> None:
    model = llama()
    expected = eager_weights(model)
    with torch.no_grad(), watch(model, **option) as seen:
        model(IDS)
    assert seen._recorder.log is None
    assert is_exact(seen, expected[1:] if "layers" in option else expected)


def test_several_watches_and_ablations_log_nothing() -> None:
    model = llama()
    expected = eager_weights(model)
    with torch.no_grad(), watch(model) as outer:
        model(IDS)
        with watch(model) as inner:
            model(IDS)
            assert len(entries(outer)) == 0  # read before what came after
            assert not entries(inner)
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


def test_a_known_module_that_attends_otherwise_is_named() -> None:
    model = llama()
    module = model.model.layers[1].self_attn
    own = type(module).forward

    def forward(self: Any, hidden_states: Tensor, *args: Any, **options: Any) -> Any:
        return own(self, hidden_states, *args, **options) if self is not module else (hidden_states, None)

    type(module).forward = forward
    try:
        with torch.no_grad(), watch(model) as seen:
            model(IDS)
    finally:
        type(module).forward = own
    assert [call.name for call in seen] == ["model.layers.0.self_attn"]
    assert [message.partition(": ")[0] for message in seen.missed] == ["model.layers.1.self_attn"]
    assert seen.faithful is False


def test_large_outputs_are_kept_by_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(1, 50, (1, 200))
    model = llama()
    size = 200 * 16 * 4
    monkeypatch.setattr(call_log, "WHOLE_OUTPUTS", 2 * size)
    with torch.no_grad(), watch(model) as seen:
        for _ in range(3):
            model(ids)
    assert [x[OUT].shape[-2] for x in entries(seen)] == [200, 200, 200, 200, 40, 40]
    assert [x[OUT_VERSION] for x in entries(seen)] == [0, 0, 0, 0, -1, -1]
    assert seen.faithful
    monkeypatch.setattr(call_log, "WHOLE_OUTPUTS", 2 * size - 2)
    with torch.no_grad(), watch(model) as seen:
        model(ids)
    assert [x[OUT].shape[-2] for x in entries(seen)] == [40, 40]
    assert seen.faithful


def test_a_kernel_is_named_only_if_it_is_known_which_were_allowed() -> None:
    model, mask = llama(), torch.ones_like(IDS)
    mask[0, 0] = 0
    before = torch.backends.cuda.flash_sdp_enabled()
    try:
        with torch.no_grad(), watch(model) as seen:
            model(IDS, attention_mask=mask)
            torch.backends.cuda.enable_flash_sdp(False)
            model(IDS, attention_mask=mask)
            torch.backends.cuda.enable_flash_sdp(before)
        origins = [call.origin for call in seen]
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
    assert origins[0] == origins[1] != "sdpa"
    assert origins[2:] == ["sdpa", "sdpa"]
