"""attend(), Weights and Contributions on a GPU against the formula in float64 on the CPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.energy_matrix import EnergyMatrix
from regard.attention.weights import Weights
from tests.support.attention_cases import city_block

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")

MASKS = {
    "none": None,
    "causal": r.causal(),
    "padding": r.padding([90, 40]),  # made on the CPU; it follows the inputs
    "both": r.causal() & r.padding([90, 40]),
    "window": r.causal() & r.window(20),
    "empty": r.padding([0, 90]),
}


def _inputs(queries: int = 100, keys: int = 90, width: int = 64) -> list[torch.Tensor]:
    sizes = ((2, 4, queries, width), (2, 2, keys, width), (2, 2, keys, width))
    return [torch.randn(size, device=CUDA, requires_grad=True) for size in sizes]


def _agree(tensors: list[torch.Tensor], **how: object) -> None:
    z, w = attend(*tensors, weights=True, **how)
    assert z.device.type == "cuda"
    energy = how.get("energy", r.ScaledDot())
    if isinstance(energy, torch.nn.Module):
        energy = _twin(energy)
    exact = [x.detach().double().cpu().requires_grad_() for x in tensors]
    rest = {name: x for name, x in how.items() if name not in ("energy", "backend")}
    truth = attend(*exact, energy=energy, backend="reference", **rest)
    torch.testing.assert_close(z.double().cpu(), truth, rtol=2e-4, atol=2e-4)
    assert w.fidelity(tensors[2].detach(), z.detach()).max() < 1e-3
    direction = torch.randn_like(z)
    mine = torch.autograd.grad(z, tensors, direction)
    for a, b in zip(mine, torch.autograd.grad(truth, exact, direction.double().cpu()), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=2e-3, atol=2e-3)


def _twin(energy: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(energy).double().cpu()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("energy", ["additive", "gaussian", "function"])
def test_our_paths(energy: str, mask: str) -> None:
    torch.manual_seed(0)
    how = {"additive": r.Additive(64, 64, 64).to(CUDA), "gaussian": r.Gaussian(4.0), "function": city_block}[energy]
    _agree(_inputs(), energy=how, mask=MASKS[mask], backend="fused")


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_sdpa(mask: str) -> None:
    torch.manual_seed(0)
    _agree(_inputs(), mask=MASKS[mask], backend="sdpa")


def test_flex_is_chosen_for_structured_masks_and_agrees() -> None:
    torch.manual_seed(0)
    long = torch.randn(1, 1, 1024, 64, device=CUDA)
    assert r.explain(long, long, long, mask=MASKS["window"]).backend == "flex"
    short = _inputs()
    assert r.explain(*short, mask=MASKS["window"]).backend == "sdpa"  # finding blocks would take longer
    _agree(short, mask=MASKS["window"], backend="flex")


@pytest.mark.parametrize("backend", ["flex", "fused", "sdpa"])
def test_mask_mod_with_a_table_on_the_gpu(backend: str) -> None:
    torch.manual_seed(0)
    tables = {x: (torch.arange(100) // 30).to(x) for x in ("cuda", "cpu")}
    how = {x: (lambda b, h, i, j, ids=ids: (ids[i] == ids[j]) & (i >= j)) for x, ids in tables.items()}
    tensors = _inputs()
    z = attend(*tensors, mask=how["cuda"], backend=backend)
    exact = [x.detach().double().cpu().requires_grad_() for x in tensors]
    truth = attend(*exact, mask=how["cpu"], backend="reference")
    _close_with_gradients(z, truth, tensors, exact)


@pytest.mark.parametrize("backend", ["flex", "fused"])
def test_score_mod_with_a_learned_tensor(backend: str) -> None:
    torch.manual_seed(0)
    slopes = {x: torch.rand(4, dtype=torch.float64).float().to(x).requires_grad_() for x in ("cuda",)}
    slopes["cpu"] = slopes["cuda"].detach().double().cpu().requires_grad_()
    energies = {
        x: r.Modified(r.ScaledDot(), lambda e, b, h, i, j, slope=slope: e - slope[h] * (i - j).abs())
        for x, slope in slopes.items()
    }
    tensors = _inputs()
    z = attend(*tensors, energy=energies["cuda"], mask=r.causal(), backend=backend)
    exact = [x.detach().double().cpu().requires_grad_() for x in tensors]
    truth = attend(*exact, energy=energies["cpu"], mask=r.causal(), backend="reference")
    _close_with_gradients(z, truth, [*tensors, slopes["cuda"]], [*exact, slopes["cpu"]])


@pytest.mark.parametrize("backend", ["flex", "fused"])
@pytest.mark.parametrize("mask", ["none", "window", "empty"])
def test_sinks(mask: str, backend: str) -> None:
    torch.manual_seed(0)
    sink = torch.randn(4, device=CUDA, requires_grad=True)
    tensors = _inputs()
    z, w = attend(*tensors, normalize=r.Softmax(sink=sink), mask=MASKS[mask], backend=backend, weights=True)
    exact = [x.detach().double().cpu().requires_grad_() for x in (*tensors, sink)]
    truth, true_w = attend(
        *exact[:3], normalize=r.Softmax(sink=exact[3]), mask=MASKS[mask], backend="reference", weights=True
    )
    dense = true_w.dense()
    recomputed = Weights(w.energies, w.normalize)  # the state from the kernels instead of from the backend
    for weights in (w, recomputed):
        torch.testing.assert_close(weights.tile(slice(None), slice(None)).double().cpu(), dense, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(weights.received().double().cpu(), dense.sum(-2), rtol=2e-3, atol=2e-4)
    assert recomputed.fidelity(tensors[2].detach(), z.detach()).nan_to_num(0).max() < 1e-3
    _close_with_gradients(z, truth, [*tensors, sink], exact)


@pytest.mark.parametrize("mask", ["padding", "centers", "documents"])
def test_what_was_made_on_the_cpu_follows_to_flex(mask: str) -> None:
    torch.manual_seed(0)
    tensors = _inputs()
    masks = {
        "padding": r.padding([90, 40], queries=[100, 60]),
        "centers": r.window(9, center=torch.rand(2, 1, 100) * 90),
        "documents": r.causal([0, 5]) & r.documents(torch.arange(100) // 40, torch.arange(90) // 30),
    }
    energy = r.Modified(r.ScaledDot(), r.Alibi(4))
    _agree(tensors, energy=energy, mask=masks[mask], backend="flex")


def test_flex_is_chosen_for_a_sink_and_for_score_mod() -> None:
    x = torch.randn(1, 2, 256, 64, device=CUDA)
    assert r.explain(x, x, x, normalize=r.Softmax(sink=0.0)).backend == "flex"
    energy = r.Modified(r.ScaledDot(), lambda e, b, h, i, j: 2 * e)
    assert r.explain(x, x, x, energy=energy).backend == "flex"


@pytest.mark.parametrize(
    "normalize", [r.Unnormalized(), lambda e: torch.softmax(e, -1)], ids=["unnormalized", "function"]
)
def test_normalizers_without_a_kernel(normalize) -> None:
    torch.manual_seed(0)
    _agree(_inputs(), normalize=normalize, mask=r.causal())


def _close_with_gradients(z: torch.Tensor, truth: torch.Tensor, ours: list, theirs: list) -> None:
    torch.testing.assert_close(z.double().cpu(), truth, rtol=2e-4, atol=2e-4)
    direction = torch.randn_like(z)
    mine = torch.autograd.grad(z, ours, direction)
    for a, b in zip(mine, torch.autograd.grad(truth, theirs, direction.double().cpu()), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=2e-3, atol=2e-3)


UNCOVERED = {
    "additive": (lambda: r.Additive(64, 64, 48).to(CUDA), r.Softmax(), r.causal()),
    "additive, entmax": (lambda: r.Additive(64, 64, 16).to(CUDA), r.Entmax(1.5), None),
    "bias": (lambda: r.Modified(r.ScaledDot(), r.Bias(torch.randn(1, KEYS, device=CUDA))), r.Softmax(), None),
    "gaussian": (lambda: r.Gaussian(8.0), r.Softmax(), r.window(500)),
    "inverse distance": (r.InverseDistance, r.Proportional(), None),
    "mask of holes": (r.ScaledDot, r.Softmax(), ~r.window(100)),
}
"""What the statistics kernels leave to blocks of the formula."""

QUERIES, KEYS = 7777, 8191


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_has_no_kernel_is_answered_in_linear_memory(name: str) -> None:
    """Two matrices of 243 MiB each, asked in far less; single rows against float64."""
    torch.manual_seed(0)
    make, normalize, mask = UNCOVERED[name]
    energy = make()
    q, k = (torch.randn(2, t, 64, device=CUDA) for t in (QUERIES, KEYS))
    rows = [0, 1, 4000, QUERIES - 1]
    with torch.no_grad():
        _, w = attend(q, k, k, energy=energy, normalize=normalize, mask=mask, backend="fused", weights=True)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = w.stats(entropy=True, top=4, received=True)
        assert torch.cuda.max_memory_allocated() - before < 320 << 20
        wide = _twin(energy) if isinstance(energy, torch.nn.Module) else energy
        if isinstance(wide, r.Modified):
            wide = r.Modified(r.ScaledDot(), r.Bias(energy.modifiers[0].bias.double().cpu()))
        scores = replace(EnergyMatrix.of(q.double().cpu(), k.double().cpu(), wide), mask=mask)
        truth = Weights(scores, normalize).rows(rows).dense()
    torch.testing.assert_close(
        result.entropy[:, rows].double().cpu(), -torch.xlogy(truth, truth).sum(-1), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(result.top.values[:, rows].double().cpu(), truth.topk(4).values, rtol=1e-4, atol=1e-6)
    seen = (result.received.double().sum(-1) - QUERIES).abs().max()
    assert seen < 1e-3 * QUERIES, "every row's weights sum to one"


def test_a_mask_on_the_wrong_device_is_refused() -> None:
    x = torch.randn(5, 8, device=CUDA)
    with pytest.raises(ValueError, match="is on cpu, the inputs are on cuda"):
        attend(x, x, x, mask=torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("backend", ["auto", "sdpa", "flex"])
@pytest.mark.parametrize("mask", [r.padding([300, 170]), r.causal() & r.padding([300, 170])], ids=repr)
def test_what_padding_hides_does_not_leak(mask, backend: str, bad: float) -> None:
    q, k, v = (torch.randn(2, 4, 300, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def results() -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        z = r.attend(*leaves, mask=mask, backend=backend)
        return [z, *torch.autograd.grad(z.square().sum(), leaves)]

    expected = results()
    k[1, :, 170:], v[1, :, 170:] = bad, bad
    torch.testing.assert_close(results(), expected)


HEADS = 4


def _learned(name: str) -> tuple[torch.nn.Module, list[torch.nn.Parameter]]:
    if name == "rotary":
        return r.Rotary(), []
    table = torch.randn(32, HEADS, device="cuda")
    part = r.Alibi(torch.nn.Parameter(table[0].abs())) if name == "alibi" else r.RelativeBias(torch.nn.Parameter(table))
    energy = r.Modified(r.ScaledDot(), part)
    return energy, list(energy.parameters())


@pytest.mark.parametrize("backend", ["auto", "flex", "fused", "sdpa"])
@pytest.mark.parametrize("name", ["rotary", "alibi", "t5"])
def test_positions_on_every_backend(name: str, backend: str) -> None:
    torch.manual_seed(0)
    energy, learned = _learned(name)
    inputs = [torch.randn(2, HEADS, 1200, 64, device="cuda", requires_grad=True) for _ in "qkv"]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    truth = attend(*wide, energy=energy, mask=r.causal(), backend="reference")
    z, w = attend(*inputs, energy=energy, mask=r.causal(), backend=backend, weights=True)
    torch.testing.assert_close(z.double(), truth, rtol=0, atol=5e-3)  # PyTorch's kernels multiply in TF32
    assert float(w.fidelity(inputs[2], z).max()) < 5e-3
    got = torch.autograd.grad(z.square().sum(), [*inputs, *learned])
    want = torch.autograd.grad(truth.square().sum(), [*wide, *learned])
    for ours, exact in zip(got, want, strict=True):
        assert float((ours - exact).abs().max()) <= 0.02 * float(exact.abs().max())


def test_attention_times_gradient_of_the_flash_kernel() -> None:
    """∂L/∂o of a bfloat16 model on its fast kernel, against float64 on the CPU."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = torch.nn.Linear(64, 3 * 64), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            return self.out(
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )

    torch.manual_seed(0)
    model, x = Layer(), torch.randn(2, 300, 64)
    results = []
    for device, dtype in (("cuda", torch.bfloat16), ("cpu", torch.float64)):
        own = model.to(device, dtype)
        with r.watch(own, gradients=True) as seen:
            loss = own(x.to(device, dtype)).double().square().sum()
        loss.backward()
        results.append(seen[0].contributions().received().double().cpu())
    fast, exact = results
    assert float((fast - exact).norm() / exact.norm()) < 5e-2


def test_memory_of_contributions_is_linear_in_the_length() -> None:
    """At 65,536 tokens one matrix of one head in float32 is 16 GiB."""
    q, k, v, g = torch.randn(4, 1, 65536, 32, device="cuda", dtype=torch.bfloat16)
    _, w = attend(q, k, v, mask=r.causal(), weights=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    r.Contributions(w, v, g).stats(total=True, top=4, received=True, received_size=True, spread=True, map=(64, 64))
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
