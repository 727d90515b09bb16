"""Modifiers of energies: learned tensors follow the module they are registered in."""

import copy
import math

import pytest
import torch
from torch import nn

import regard as r
from regard import attend
from tests.support.attention_cases import inputs


def learned(bias: torch.Tensor) -> r.Modified:
    return r.Modified(r.ScaledDot(), r.SoftCap(5.0), r.Bias(bias))


def replaced_by_assignment(energy: r.Modified) -> None:
    energy.load_state_dict({name: torch.randn_like(x) for name, x in energy.state_dict().items()}, assign=True)


def replaced_by_parametrization(energy: r.Modified) -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    nn.utils.parametrize.register_parametrization(energy, "bias_1", Double())


def replaced_by_materialisation(energy: r.Modified) -> None:
    energy.to("meta").to_empty(device="cpu")
    nn.init.normal_(energy.bias_1)


@pytest.mark.parametrize("replace", [replaced_by_assignment, replaced_by_parametrization, replaced_by_materialisation])
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_a_learned_bias_follows_its_module(replace, backend: str) -> None:
    q, k, v = inputs((2,), 5, 7)
    energy = learned(nn.Parameter(torch.randn(5, 7, dtype=torch.float64)))
    replace(energy)
    expected = attend(q, k, v, energy=learned(energy.bias_1.detach().clone()), backend=backend)
    torch.testing.assert_close(attend(q, k, v, energy=energy, backend=backend), expected)


def test_functional_call_reaches_the_bias() -> None:
    q, k, _ = inputs((2,), 5, 7)
    energy = learned(nn.Parameter(torch.randn(5, 7, dtype=torch.float64)))
    other = {name: torch.randn_like(x) for name, x in energy.named_parameters()}
    assert list(other) == ["bias_1"]
    result = torch.func.functional_call(energy, other, (q, k))
    torch.testing.assert_close(result, learned(other["bias_1"])(q, k))


def test_gradients_reach_the_registered_parameter() -> None:
    q, k, v = inputs((2,), 5, 7)
    energy = copy.deepcopy(learned(nn.Parameter(torch.randn(5, 7, dtype=torch.float64))))
    replaced_by_assignment(energy)
    attend(q, k, v, energy=energy).square().sum().backward()
    assert energy.bias_1.grad is not None


def test_a_plain_bias_follows_to_and_is_not_saved() -> None:
    energy = r.Modified(r.ScaledDot(), r.Bias(torch.randn(5, 5)))
    energy.to(torch.float64)
    assert energy.modifiers[0].bias.dtype == torch.float64
    assert not energy.state_dict()
    assert not list(energy.parameters())


def test_reprs_name_the_offset() -> None:
    assert repr(r.Alibi(8, offset=7)) == "Alibi(8, offset=7)"
    assert repr(r.Alibi(8)) == "Alibi(8)"


def test_wrong_settings() -> None:
    with pytest.raises(TypeError, match="number of heads"):
        r.Alibi(2.0)
    with pytest.raises(ValueError, match="SoftCap"):
        r.SoftCap(math.inf)


def test_a_learned_bias_is_registered_once() -> None:
    bias = torch.nn.Parameter(torch.randn(5, 5))
    energy = r.Modified(r.Rotary(r.Modified(r.ScaledDot(), r.Bias(bias))), r.SoftCap(3.0), r.Bias(torch.ones(5, 5)))
    assert [name for name, _ in energy.named_parameters(remove_duplicate=False)] == ["energy.energy.bias_0"]
    x = torch.randn(5, 4)
    other = {"energy.energy.bias_0": torch.randn(5, 5)}
    plain = r.Modified(r.Rotary(), r.Bias(other["energy.energy.bias_0"]), r.SoftCap(3.0), r.Bias(torch.ones(5, 5)))
    energy.load_state_dict(other, assign=True)
    torch.testing.assert_close(r.attend(x, x, x, energy=energy), r.attend(x, x, x, energy=plain))


def test_a_module_that_modifies_energies_is_registered() -> None:
    class Slope(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, e, b, h, i, j):
            return e - self.slope * (i - j).abs()

    energy = r.Modified(r.ScaledDot(), r.SoftCap(9.0), Slope())
    assert [name for name, _ in energy.named_parameters()] == ["modifier_1.slope"]
    x = torch.randn(2, 5, 4)
    r.attend(x, x, x, energy=energy).square().sum().backward()
    assert energy.modifier_1.slope.grad.abs() > 0
