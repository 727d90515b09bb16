"""CapturedCall: what is kept while the model runs is enough for exact weights later, and no more than that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import load_trace, note, watch
from regard.attention.tensor_versions import ChangedInPlaceError
from regard.seeing.capture.call_inputs_and_output import Record
from regard.seeing.capture.recording import module_outputs
from regard.seeing.capture.recording.captured_call import CapturedCall, CapturedSteps

if TYPE_CHECKING:
    from pathlib import Path


class Kernel(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, length, 4, generator=torch.Generator().manual_seed(0)).unbind()
    return q, k, v


def test_no_record_is_made_while_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    before = Record.__init__

    def count(self: Record, *args: object, **options: object) -> None:
        made.append("record")
        before(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Record, "__init__", count)
    model = Kernel()
    with torch.no_grad(), watch(model) as seen:
        for _ in range(3):
            model(*inputs(5))
    assert not made
    assert len(seen) == 3
    assert made
    assert seen.faithful


@pytest.mark.parametrize("changed", ["queries", "keys", "values", "mask"])
def test_a_change_between_the_call_and_the_question_is_noticed(changed: str) -> None:
    (q, k, v), mask, model = inputs(5), torch.zeros(5, 5), Kernel()
    with torch.no_grad(), watch(model) as seen:
        model(q, k, v, mask)
    {"queries": q, "keys": k, "values": v, "mask": mask}[changed].add_(1)
    assert seen.faithful is False
    with pytest.raises(ChangedInPlaceError):
        _ = seen[0].weights


def test_gradients_keep_no_graph() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(5))
    model, doubled = Kernel(), q * 2
    with watch(model) as seen:
        model(doubled, k * 1, v * 1, torch.zeros(5, 5, requires_grad=True) + 1)
    (steps,) = seen._recorder._pending
    assert isinstance(steps, CapturedSteps)
    assert all(x.grad_fn is None for x in (*steps.calls[0].tensors(), steps.calls[0].out))
    assert seen.faithful


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
    (steps,) = seen._recorder._pending
    assert isinstance(steps, CapturedSteps)
    assert [x.k is None for x in steps.calls] == [True] * 6 + [False]  # the newest contains the others
    assert len(seen) == 1
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


def test_a_reordered_cache_begins_a_new_call() -> None:
    q, k, v = torch.randn(3, 2, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    model = Kernel()
    with torch.no_grad(), watch(model) as seen:
        model(q[..., :4, :], k[..., :4, :].clone(), v[..., :4, :].clone())
        model(q[..., 4:5, :], k[..., :5, :].clone(), v[..., :5, :].clone())
        model(q[..., 5:6, :], k.flip(0), v.flip(0))
    assert [call.steps for call in seen] == [[4, 1], [1]]
    assert seen.faithful


def test_a_question_in_the_middle_of_a_generation_does_not_end_it() -> None:
    (q, k, v), model = inputs(7), Kernel()
    with torch.no_grad(), watch(model) as seen:
        for stop in (4, 5, 6, 7):
            model(q[..., 0 if stop == 4 else stop - 1 : stop, :], k[..., :stop, :].clone(), v[..., :stop, :].clone())
            assert len(seen) == 1
            assert seen[0].shape[-2:] == (stop, stop)
    assert seen[0].steps == [4, 1, 1, 1]
    assert seen.faithful


def test_calls_of_other_settings_are_no_steps() -> None:
    q, k, v = inputs(5)

    def make(call: CapturedCall) -> Record:
        raise NotImplementedError

    first = CapturedCall(make, q[..., :4, :], k[..., :4, :], v[..., :4, :], q[..., :4, :], settings=(1.0,))
    steps = CapturedSteps("layer", first, "")
    other = CapturedCall(make, q[..., 4:, :], k, v, q[..., 4:, :], settings=(2.0,))
    assert steps.may_continue(other)
    assert steps.append(other, trusted=False) is None
    same = CapturedCall(make, q[..., 4:, :], k, v, q[..., 4:, :], settings=(1.0,))
    assert steps.append(same, trusted=False) is True
    assert steps.total == 5


class Scaled(nn.Module):
    """Attention whose output is changed in place: by a function that counts it, or in its memory."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v)
        other = F.scaled_dot_product_attention(q, v, k)
        if self.way != "unchanged":
            (out if self.way == "counted" else out.data).sub_(other, alpha=0.5)
        return out


@pytest.mark.parametrize("way", ["unchanged", "counted", "in memory"])
def test_an_output_that_the_module_changes_later_is_kept_as_it_was(way: str) -> None:
    model = nn.ModuleList([Scaled(way), Kernel()])
    for _ in range(2):  # the second watch knows what the first saw
        with torch.no_grad(), watch(model) as seen:
            for _ in range(3):
                for layer in model:
                    layer(*inputs(5))
        whole = [isinstance(x, CapturedSteps) and x.calls[0].out_version == 0 for x in seen._recorder._pending]
        assert len(seen) == 9
        assert seen.faithful
    assert whole == [way == "unchanged", way == "unchanged", True] * 3


def test_an_output_that_is_changed_after_all_proves_nothing_and_is_copied_from_then_on(tmp_path: Path) -> None:
    model, verdicts = nn.ModuleList([Kernel(), Kernel()]), []
    for scale in (1, 2, 2):
        with torch.no_grad(), watch(model) as seen:
            outputs = [layer(*inputs(5)) for layer in model]
            if scale > 1:
                outputs[0].mul_(scale)
        verdicts.append([call.fidelity().faithful for call in seen])
        q, k, _ = inputs(5)  # the weights depend on no output
        torch.testing.assert_close(seen[0].weights.dense(), (q @ k.mT / 2).softmax(-1))
        if verdicts[-1][0] is None:
            assert "output changed in place" in repr(seen)
            seen.save(tmp_path / "trace")
            assert load_trace(tmp_path / "trace")[0].fidelity().faithful is None
    assert verdicts == [[True, True], [None, True], [True, True]]


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


@pytest.mark.parametrize("way", ["unchanged", "counted", "in memory"])
def test_a_module_that_runs_alone_is_examined_after_some_calls(way: str) -> None:
    model = Scaled(way)
    with torch.no_grad(), watch(model) as seen:
        for _ in range(6):  # of two calls each
            model(*inputs(5))
    whole = [isinstance(x, CapturedSteps) and x.calls[0].out_version == 0 for x in seen._recorder._pending]
    count = module_outputs.NEW_OUTPUTS + 1
    assert whole == [False] * count + [way == "unchanged"] * (12 - count)
    assert seen.faithful


def test_outputs_beyond_the_limit_are_not_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ModuleList([Kernel() for _ in range(3)])
    (q, k, v), size = inputs(200), 200 * 2 * 4 * 4
    monkeypatch.setattr(module_outputs, "WHOLE_OUTPUTS", 2 * size)
    for _ in range(2):
        with torch.no_grad(), watch(model) as seen:
            for layer in model:
                layer(q, k, v)
    rows = [x.calls[0].out.shape[-2] for x in seen._recorder._pending if isinstance(x, CapturedSteps)]
    assert rows == [200, 200, 40]
    assert seen.faithful
