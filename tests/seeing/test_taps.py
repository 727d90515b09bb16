"""The taps of PyTorch's functions: row states, functions that other code replaced, nn.MultiheadAttention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.parametrize import register_parametrization
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from regard import watch
from regard.seeing.taps import saved_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _inputs(device: str = "cpu", dtype: torch.dtype = torch.float32, keys: int = 3) -> list[torch.Tensor]:
    return [torch.randn(2, n, 50, 16, device=device, dtype=dtype, requires_grad=True) for n in (3, keys, keys)]


def _expected(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    e = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / 4
    return e.masked_fill(torch.ones(50, 50, dtype=torch.bool, device=q.device).triu(1), -torch.inf).logsumexp(-1)


def test_it_is_the_logarithm_of_the_denominators() -> None:
    q, k, v = _inputs()
    state = saved_state(scaled_dot_product_attention(q, k, v, is_causal=True))
    assert state is not None
    assert not state.requires_grad
    torch.testing.assert_close(state.double(), _expected(q, k), rtol=1e-6, atol=1e-6)


def test_none_without_a_fused_kernel_or_a_graph() -> None:
    q, k, v = _inputs()
    assert saved_state(q * 2) is None
    assert saved_state(scaled_dot_product_attention(q.detach(), k.detach(), v.detach())) is None


def test_tensors_that_hooks_keep_elsewhere_are_left_alone() -> None:
    q, k, v = _inputs()
    with torch.autograd.graph.save_on_cpu():
        assert saved_state(scaled_dot_product_attention(q, k, v)) is None

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(x, x, x, dropout_p=0.0)

    layer = Layer()
    with watch(layer) as seen:
        checkpoint(layer, q, use_reentrant=False).sum().backward()
    assert len(seen)


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [3, 1])
def test_kernels_of_a_gpu(keys: int) -> None:
    q, k, v = _inputs("cuda", torch.bfloat16, keys)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=keys == 1)
    state = saved_state(out)
    if state is not None:
        torch.testing.assert_close(state.double(), _expected(q, k), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_model_that_was_never_watched_can_be_captured_as_a_cuda_graph() -> None:
    class Kernel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    layers, x = nn.ModuleList([Kernel(), Kernel()]), torch.randn(1, 2, 64, 16, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        want = layers[1](layers[0](x))
        graph = torch.cuda.CUDAGraph()
        with watch(layers), torch.cuda.graph(graph):
            out = layers[1](layers[0](x))
        graph.replay()
    torch.testing.assert_close(out, want)


def _doubled(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any] | None) -> Any:
    out = function(*args, **(options or {}))
    return out * 2 if getattr(function, "__name__", "") == "scaled_dot_product_attention" else out


class DoublingMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _doubled(func, args, kwargs)


class DoublingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = _doubled(func, args, kwargs)
        return out.as_subclass(cls) if isinstance(out, torch.Tensor) else out


def _llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model: nn.Module = transformers.LlamaModel(config).eval()
    return model


@pytest.mark.parametrize("way", ["function", "mode", "subclass"])
def test_attention_that_other_code_replaced_is_called_as_it_is(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _llama(), torch.randn(1, 5, 16)
    if way == "function":
        own = F.scaled_dot_product_attention
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **options: _doubled(own, args, options))
    context: AbstractContextManager[Any] = DoublingMode() if way == "mode" else nullcontext()
    x = x.as_subclass(DoublingTensor) if way == "subclass" else x
    with torch.no_grad():
        with context:
            expected = model(inputs_embeds=x, use_cache=False)[0]
        with watch(model) as seen, context:
            assert torch.equal(model(inputs_embeds=x, use_cache=False)[0], expected)
    assert seen.faithful is False


INNER = "0.out_proj.parametrizations.weight.0"


class WrittenOut(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return (w @ w.mT).softmax(-1) @ w


class ByFunction(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(w[None], w[None], w[None])[0]


@pytest.mark.parametrize("weights", [True, False], ids=["with weights", "without weights"])
@pytest.mark.parametrize("inner", [WrittenOut, ByFunction])
def test_attention_that_computes_a_parameter_has_its_own_name(inner: type[nn.Module], weights: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    register_parametrization(attention.out_proj, "weight", inner(), unsafe=True)
    model, x = nn.Sequential(attention), torch.randn(1, 5, 8)
    with torch.no_grad(), watch(model) as seen:
        model[0](x, x, x, need_weights=weights)
    assert seen.faithful is True
    assert [call.name for call in seen if call.shape[-1] == 5] == ["0"]
    others = [call.name for call in seen if call.shape[-1] == 8]
    assert others
    assert set(others) == {INNER}
