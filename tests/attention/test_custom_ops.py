"""The custom ops as PyTorch sees them: opcheck, torch.compile, and the log-sum-exp's own gradient."""

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.kernels.additive import additive, additive_backward
from tests.support.attention_cases import NORMALIZERS, city_block, inputs


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()  # it gives up on a function it has compiled many times, as these tests do


def _arguments(dtype: torch.dtype = torch.float32, masked: bool = True, dropout: float = 0.0, grad: bool = True):
    n, q, k, d, dv = 3, 5, 7, 4, 6
    a, b, v = (torch.randn(n, t, w, dtype=dtype, requires_grad=grad) for t, w in ((q, d), (k, d), (k, dv)))
    w = torch.randn(d, dtype=dtype, requires_grad=grad)
    start = torch.zeros(1, q, dtype=torch.long) if masked else None
    stop = torch.arange(1, q + 1)[None] if masked else None
    seed = torch.tensor(5) if dropout else None
    return a, b, w, v, start, stop, seed, 1.0, dropout


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_opcheck(dtype: torch.dtype, masked: bool, dropout: float) -> None:
    arguments = _arguments(dtype, masked, dropout)
    # opcheck compares eager and AOT gradients; bfloat16's own rounding decides how closely they can agree.
    loose = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {}
    torch.library.opcheck(additive, arguments, **loose)
    a, b, w, v, *rest = (x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
    out, lse = additive(a, b, w, v, *rest)
    grads = torch.randn_like(out), torch.randn_like(lse)
    torch.library.opcheck(additive_backward, (*grads, a, b, w, v, out, lse, *rest), **loose)


def test_log_sum_exp_has_a_gradient_too() -> None:
    a, b, w, v, *rest = _arguments(torch.float64)
    assert torch.autograd.gradcheck(lambda a, b, w, v: additive(a, b, w, v, *rest), (a, b, w, v))


class Bahdanau(torch.nn.Module):
    def __init__(self, normalize: r.Normalizer, mask: r.Mask | None) -> None:
        super().__init__()
        self.energy, self.normalize, self.mask = r.Additive(4, 4, 8), normalize, mask

    def forward(self, q, k, v):
        return attend(q, k, v, energy=self.energy, normalize=self.normalize, mask=self.mask, backend="fused")


@pytest.mark.parametrize("mask", [None, r.causal(), r.causal() & r.padding([3, 6]), ~r.causal()])
@pytest.mark.parametrize("normalize", ["softmax", "entmax 1.5"])
def test_compiles_whole_with_gradients(normalize: str, mask: r.Mask | None) -> None:
    module = Bahdanau(NORMALIZERS[normalize], mask)
    q, k, v = inputs((2, 3), dtype=torch.float32, grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    direction = torch.randn(2, 3, 5, 6)
    leaves = [q, k, v, *module.parameters()]
    mine, plain = (torch.autograd.grad(f(q, k, v), leaves, direction) for f in (compiled, module))
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_graph_keeps_the_fused_op() -> None:
    seen: list[str] = []

    def look(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    module = Bahdanau(r.Softmax(), r.causal())
    torch.compile(module, fullgraph=True, backend=look)(*inputs((2, 3), dtype=torch.float32))
    assert any("regard.additive" in target for target in seen)


@pytest.mark.parametrize("energy", [r.ScaledDot(), r.Gaussian(), r.Modified(r.Dot(), r.SoftCap(3)), city_block])
def test_other_requests_compile_whole(energy) -> None:
    q, k, v = inputs((2, 3), dtype=torch.float32)

    def function(q, k, v):
        return r.attend(q, k, v, energy=energy, mask=r.causal() & r.window(3))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


def test_same_inputs_same_bits() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        q, k, v = inputs((2, 2), 40, 50, 8, 8, dtype=torch.float32, grad=True)
        energy = r.Additive(8, 8, 16)
        z = attend(q, k, v, energy=energy, dropout=0.2, backend="fused")
        runs.append([z, *torch.autograd.grad(z.square().sum(), (q, k, v, *energy.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(
    "mask", [r.causal() & r.window(20), r.causal() & r.padding([64, 40]), ~r.documents(torch.arange(64) // 30)]
)
def test_masks_and_modifiers_can_be_traced_for_flex(mask: r.Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU compiles: our rules as FlexAttention's mask_mod and score_mod, traced, then run unfused."""
    from regard.attention.backends import flex

    traced = torch.compile(flex.flex_attention, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(flex, "_kernel", lambda device: traced)
    q, k, v = torch.randn(2, 4, 64, 16), torch.randn(2, 2, 64, 16), torch.randn(2, 2, 64, 16)
    energy = r.Modified(r.ScaledDot(), r.SoftCap(5.0), r.Alibi(4), r.Bias(torch.randn(64, 64)))
    for how in (r.ScaledDot(), energy):
        z = attend(q, k, v, energy=how, mask=mask, backend="flex")
        torch.testing.assert_close(z, attend(q, k, v, energy=how, mask=mask, backend="reference"))
