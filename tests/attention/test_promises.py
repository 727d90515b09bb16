"""What a caller may rely on: inputs left alone, the same gradients at any length, weights of their own call."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

import regard as r
from regard import attend
from regard.attention.backends import fused as blocked
from tests.support.attention_cases import city_block, inputs, within_budget


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK", 1)


# Inputs are left alone


@pytest.mark.parametrize("mask", [None, r.padding([3, 6])])
@pytest.mark.parametrize("grad", [False, True])
def test_an_energy_that_returns_a_view_of_its_input(mask, grad: bool) -> None:
    q, k = torch.randn(2, 1, 4), torch.randn(2, 6, 4)
    before = k.clone()
    with torch.set_grad_enabled(grad):
        z, w = attend(q, k, k, energy=lambda q, k: k[..., 0][..., None, :], mask=mask, weights=True)
        w.stats(entropy=True, received=True)
    assert torch.equal(k, before)
    expected = torch.softmax(k[..., 0].masked_fill(torch.arange(6) >= torch.tensor([[3], [6]]), -torch.inf), -1)
    if mask is not None:
        torch.testing.assert_close(z.squeeze(1), torch.einsum("nk,nkd->nd", expected, k))


# Gradients are the same in one block and in many


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("which", ["closure", "additive"])
def test_hooks_on_parameters_run_once(which: str) -> None:
    q, k, v = inputs((2,))
    if which == "closure":
        weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
        energy = lambda q, k: q @ weight @ k.mT  # noqa: E731
    else:
        energy = r.Additive(4, 4, 6).double()
        weight = energy.weight
    grads, calls = [], []
    for backend in ("reference", "fused"):
        handle = weight.register_hook(lambda g: calls.append(1) or 2 * g)
        z = attend(q, k, v, energy=energy, normalize=r.Entmax(1.5), backend=backend)
        grads.append(torch.autograd.grad(z.square().sum(), weight)[0])
        handle.remove()
    torch.testing.assert_close(*grads)
    assert len(calls) == 2


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("closes_over", [False, True])
def test_randomness_inside_an_energy_is_the_same_in_the_backward(closes_over: bool) -> None:
    q, k, v = inputs((2,), grad=True)
    one = torch.ones((), dtype=torch.float64, requires_grad=closes_over)

    def energy(q, k):
        return nn.functional.dropout(q @ k.mT, 0.5) * one

    z = attend(q, k, v, energy=energy, backend="fused")
    (gradient,) = torch.autograd.grad((z * z.detach()).sum(), v)
    # z is linear in v, so ⟨dz/dv, v⟩ gives it back, if the weights are the same.
    torch.testing.assert_close((gradient * v).sum(), z.square().sum())


@pytest.mark.usefixtures("small_blocks")
def test_sampled_keys_are_the_same_in_the_backward() -> None:
    q, k, v = inputs((2,), grad=True)
    z, w = attend(q, k, v, energy=r.Gaussian(), normalize=r.Hard("straight-through"), weights=True, backend="fused")
    (gradient,) = torch.autograd.grad(z.sum(), v)
    torch.testing.assert_close(gradient, w.received()[..., None].expand_as(v))


@pytest.mark.usefixtures("small_blocks")
def test_a_changed_parameter_is_noticed_before_the_backward() -> None:
    q, k, v = inputs((2,), grad=True)
    energy = r.Additive(4, 4, 6).double()
    z = attend(q, k, v, energy=energy, normalize=r.Sparsemax())
    with torch.no_grad():
        energy.weight.mul_(3)
    with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_keep_their_budget_over_many_blocks(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs((1,), 1500, 1500, 8, 8))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    direction = torch.randn(1, 1500, 8)

    def gradients(tensors, backend):
        z = attend(*tensors, energy=r.Gaussian(), backend=backend)
        return torch.autograd.grad(z, tensors, direction.to(z.dtype))

    for mine, plain, truth in zip(
        gradients((q, k, v), "fused"), gradients((q, k, v), "reference"), gradients(exact, "reference"), strict=True
    ):
        within_budget(mine, plain, truth, dtype)


def test_threads_do_not_share_their_dropout() -> None:
    errors = []

    def work() -> None:
        q, k, v = (torch.randn(2, 700, 8, requires_grad=True) for _ in range(3))
        for _ in range(3):
            z = attend(q, k, v, energy=r.Gaussian(), dropout=0.5)
            (gradient,) = torch.autograd.grad(z.sum(), v)
            errors.append(float(((gradient * v).sum() - z.sum()).abs().detach()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 9
    assert max(errors) < 0.05


def test_without_dropout_the_generator_is_left_alone() -> None:
    q, k, v = inputs((2,), 300, 300, grad=True)
    before = torch.get_rng_state()
    attend(q, k, v, energy=city_block, weights=True)[0].sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


# Precision


@pytest.mark.parametrize("normalize", [r.Softmax(), r.Entmax(1.5), r.Sparsemax()])
@pytest.mark.parametrize("energy", ["dot", "additive", "gaussian"])
def test_autocast_does_not_lower_the_energies(energy: str, normalize: r.Normalizer) -> None:
    how = {"dot": r.Dot(), "additive": r.Additive(16, 16, 16), "gaussian": r.Gaussian()}[energy]
    q, k, v = inputs((2,), 30, 30, 16, 16, dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        z, w = attend(3 * q, k, v, energy=how, normalize=normalize, weights=True)
        assert w.fidelity(v.bfloat16(), z).max() < 4 * torch.finfo(torch.bfloat16).eps
        torch.testing.assert_close(w.tile(slice(None), slice(None)).sum(-1), torch.ones(2, 30), rtol=0, atol=1e-3)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "fused"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cosine_of_nothing_and_of_huge_vectors(dtype: torch.dtype, backend: str) -> None:
    x = torch.tensor([[0.0, 0.0], [6e4, 0.0], [0.0, 6e4]]).to(dtype).requires_grad_()
    w = attend(x, x, torch.eye(3).to(dtype), energy=r.Cosine(), backend=backend)
    expected = torch.softmax(torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 1]]), -1)
    torch.testing.assert_close(w.float(), expected, rtol=0, atol=0.005)
    (gradient,) = torch.autograd.grad(w[0, 0], x)
    assert torch.isfinite(gradient).all()


def test_a_narrow_gaussian_in_half_precision() -> None:
    q, k, v = (100 + torch.randn(5, 4)).half(), (100 + torch.randn(6, 4)).half(), torch.randn(6, 2).half()
    assert torch.isfinite(attend(q, k, v, energy=r.Gaussian(0.001))).all()


def test_nan_in_one_query_does_not_move_its_neighbours() -> None:
    from regard.attention.kernels.additive_cpu import energies

    a, b, w = torch.tensor([[[float("nan")], [50.0]]]), torch.tensor([[[-43.0], [0.0]]]), torch.tensor([5.0])
    torch.testing.assert_close(energies(a, b, w)[0, 1], 5 * torch.tanh(torch.tensor([7.0, 50.0])))


def test_steep_energies_have_the_gradient_of_the_formula() -> None:
    """e^{e − lse} of a rounded log-sum-exp did not sum to one, and gradients erred 20 times more."""
    torch.manual_seed(0)
    energy = r.Additive(4, 4, 6)
    with torch.no_grad():
        energy.weight.mul_(1e3)
    q, k, v = torch.randn(2, 50, 4), torch.randn(2, 70, 4), torch.randn(2, 70, 3)
    gradients = []
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "reference"), (torch.float32, "fused")):
        leaf = q.to(dtype).requires_grad_()
        z = r.attend(leaf, k.to(dtype), v.to(dtype), energy=energy.to(dtype), backend=backend)
        gradients += torch.autograd.grad(z.sum(), leaf)
    truth, formula, ours = gradients
    assert float((ours - truth).norm()) <= 4 * float((formula - truth).norm())


# Weights belong to their call


def test_looking_does_not_cut_the_graph() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 5, 8)
    _, w = attend(layer(x), x, x, normalize=r.Hard("reinforce"), weights=True)
    w.entropy(), w.top(2), w.tile(0, 0)
    w.log_prob().sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    energy = r.Additive(8, 8, 4)
    _, w = attend(x, x, x, energy=energy, weights=True)
    w.received()
    w.dense().square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in energy.parameters())


def test_weights_are_those_of_the_call_also_after_a_step() -> None:
    energy, x = r.Additive(8, 8, 16), torch.randn(4, 50, 8)
    optimizer = torch.optim.SGD(energy.parameters(), 1.0)
    z, w = attend(x, x, x, energy=energy, weights=True)
    z.square().sum().backward()
    optimizer.step()
    assert w.fidelity(x, z.detach()).max() < 1e-5
    with pytest.raises(RuntimeError, match="changed in place since attend"):
        w.dense()


def test_inference_mode() -> None:
    with torch.inference_mode():
        q, k, v = inputs()
        z, w = attend(q, k, v, weights=True)
        assert w.fidelity(v, z).max() < 1e-12


# Modules and masks


def test_modified_is_a_module_like_any_other() -> None:
    bias = nn.Parameter(torch.randn(3, 5, 7))
    inner = r.Modified(r.Additive(4, 4, 6), r.SoftCap(2.0))
    energy = r.Modified(inner, r.Bias(bias), r.Alibi(3))
    assert {name for name, _ in energy.named_parameters()} == {
        "bias_1", "energy.query.weight", "energy.key.weight", "energy.weight"
    }  # fmt: skip
    assert r.Modified(r.Modified(r.ScaledDot(), r.SoftCap(2)), r.Alibi(3)).extra_repr().startswith("ScaledDot")
    twin = copy.deepcopy(energy)
    with torch.no_grad():
        twin.get_parameter("bias_1").zero_()
    q, k, v = inputs(dtype=torch.float32)
    assert not torch.allclose(attend(q, k, v, energy=energy), attend(q, k, v, energy=twin))
    twin.load_state_dict(energy.state_dict())
    torch.testing.assert_close(attend(q, k, v, energy=energy), attend(q, k, v, energy=twin))
    assert energy(q, k).shape == (2, 3, 5, 7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    x = torch.randn(4, 4)
    energy = r.Additive(4, 4, 3)
    for make in (
        lambda t: r.documents(torch.tensor([1, 0, 1, 0], dtype=t)),
        lambda t: r.window(2, center=torch.tensor([0, 1, 2, 3], dtype=t)),
        lambda t: r.padding(torch.tensor(3, dtype=t)),
    ):
        expected = attend(x, x, x, energy=energy, mask=make(torch.long), backend="reference")
        torch.testing.assert_close(attend(x, x, x, energy=energy, mask=make(dtype)), expected)


def test_masks_are_not_truth_values() -> None:
    with pytest.raises(TypeError, match="not with and, or and not"):
        r.causal() and r.padding([3])
    # Dynamo asks everything it holds whether it is true, and must get an answer.
    assert eval("bool(mask)", {"__name__": "torch._dynamo.guards", "mask": r.causal()})
    for lengths in ([-1, 3], [3, 8]):
        with pytest.raises(ValueError, match="there are 7 keys"):
            attend(*inputs(), mask=r.padding(lengths))


def test_an_energy_that_looks_at_positions_is_refused() -> None:
    def positional(q, k):
        return q @ k.mT - (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs() * 0.1

    slope = torch.ones((), requires_grad=True)
    for length in (10, 600):  # one block and many
        x = torch.randn(1, length, 8)
        for energy in (positional, lambda q, k: slope * positional(q, k)):
            with pytest.raises(ValueError, match=r"depend on q_i and k_j alone\. For positions use"):
                attend(x, x, x, energy=energy)
            attend(
                x.bfloat16(), x.bfloat16(), x.bfloat16(), energy=lambda q, k: 1e4 * (q @ k.mT)
            )  # rounding is no position


def test_modifiers_and_settings_in_the_wrong_place() -> None:
    x = torch.randn(3, 4)
    for wrong in (r.SoftCap(3.0), r.Alibi(8)):
        with pytest.raises(TypeError, match=r"wrap one: Modified\(ScaledDot\(\)"):
            attend(x, x, x, energy=wrong)
    with pytest.raises(TypeError, match="takes an energy first"):
        r.Modified(r.Dot, r.SoftCap(3.0))
    for make in (lambda: r.Softmax(nn.Parameter(torch.ones(()))), lambda: r.ScaledDot(torch.ones(()))):
        with pytest.raises(TypeError, match="is a number, got"):
            make()
    with pytest.raises(TypeError, match="floats"):
        r.Bias([1, 2])


@pytest.mark.parametrize("make", [lambda: torch.ones(3, 3, dtype=torch.bool, device="meta")])
def test_masks_and_energies_on_another_device(make) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match="is on meta, the inputs are on cpu"):
        attend(x, x, x, mask=make())
    with pytest.raises(ValueError, match="Additive's parameters is on meta"):
        attend(x, x, x, energy=r.Additive(4, 4, 3).to("meta"))


# Compiled and transformed, also without gradients


def test_vmap_with_weights_and_documents() -> None:
    q, k, v = inputs((3,), 5, 5)
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2], [0, 0, 0, 0, 0]])

    def one(q, k, v, ids):
        z, w = attend(q, k, v, mask=r.documents(ids), weights=True)
        return z, w.dense()

    z, w = torch.func.vmap(one)(q, k, v, ids)
    expected, truth = attend(q, k, v, mask=r.documents(ids), weights=True)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(w, truth.dense())


def test_lengths_do_not_recompile_forever() -> None:
    torch._dynamo.reset()
    graphs = []

    def count(graph, example):
        graphs.append(graph)
        return graph

    def function(x):
        return attend(x, x, x, energy=r.Gaussian(), normalize=r.Sparsemax())

    compiled = torch.compile(function, fullgraph=True, backend=count)
    for length in range(20, 32):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(graphs) <= 3
