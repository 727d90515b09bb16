"""ALiBi: the published slopes, slopes of one's own, offsets."""

import pytest
import torch

import regard as r
from regard import Alibi, Modified, ScaledDot, attend
from tests.support.attention_cases import inputs


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bias = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # slope · j
    torch.testing.assert_close(Alibi(heads).slopes, bias[:, 0, 1])


def test_the_powers_of_the_paper() -> None:
    assert Alibi(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa", "flex"])
def test_slopes_of_ones_own(backend: str) -> None:
    q, k, v = inputs((2, 3), 5, 7, 4, 6)
    slopes = torch.tensor([0.5, 0.0, -0.2], dtype=torch.float64)
    apart = (torch.arange(5)[:, None] + 2 - torch.arange(7)).abs()
    want = attend(q, k, v, energy=Modified(ScaledDot(), r.Bias(-slopes[:, None, None] * apart)), backend="reference")
    got, w = attend(q, k, v, energy=Modified(ScaledDot(), Alibi(slopes, offset=2)), backend=backend, weights=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(w.dense() @ v, want)


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa"])
def test_slopes_learn(backend: str) -> None:
    q, k, v = inputs((2, 3), 3, 4, 4, 2, grad=True)
    slopes = torch.nn.Parameter(torch.rand(3, dtype=torch.float64))
    energy = Modified(ScaledDot(), Alibi(slopes))
    assert [x is slopes for x in energy.parameters()] == [True]
    assert torch.autograd.gradcheck(
        lambda q, k, v, _: attend(q, k, v, energy=energy, backend=backend), (q, k, v, slopes)
    )


def test_a_step_of_the_optimizer_is_followed() -> None:
    q, k, v = inputs((2, 3), 3, 4, 4, 2)
    slopes = torch.nn.Parameter(torch.rand(3, dtype=torch.float64))
    energy = Modified(ScaledDot(), Alibi(slopes))
    attend(q, k, v, energy=energy)
    with torch.no_grad():
        slopes.mul_(3)
    want = attend(q, k, v, energy=Modified(ScaledDot(), Alibi(slopes.detach().clone())))
    torch.testing.assert_close(attend(q, k, v, energy=energy), want)


def test_parameters_that_are_replaced_are_followed() -> None:
    q, k, v = inputs((2, 3), 3, 4, 4, 2)
    energy = Modified(ScaledDot(), Alibi(torch.nn.Parameter(torch.rand(3, dtype=torch.float64)), offset=1))
    new = torch.rand(3, dtype=torch.float64)
    energy.load_state_dict({"bias_0": new}, assign=True)
    want = attend(q, k, v, energy=Modified(ScaledDot(), Alibi(new, offset=1)))
    torch.testing.assert_close(attend(q, k, v, energy=energy), want)


def test_what_it_cannot_take() -> None:
    with pytest.raises(TypeError, match="number of heads or a tensor of slopes"):
        Alibi(2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one slope per head"):
        Alibi(torch.ones(2, 2))


def test_it_prints_its_offset_and_a_curve_per_head() -> None:
    assert repr(Alibi(8, offset=7)) == "Alibi(8, offset=7)"
    picture = str(Alibi(4)).splitlines()
    assert picture[0] == "Alibi(4)"
    assert len(picture) == 2 + 4
    assert (picture[2][0], picture[2][32]) == ("▁", "█")
    assert set(picture[5]) == {"█"}
