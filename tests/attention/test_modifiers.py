"""Modifiers of energies: learned tensors follow the module they are registered in."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import regard as r
from regard import Alibi, Modified, RelativeBias, Rotary, ScaledDot, attend
from regard.attention.modifiers import Position
from regard.layers import LearnedPositions, RotaryPositions, SinusoidalPositions
from tests.support.attention_cases import inputs, within_budget


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


def test_what_it_cannot_take() -> None:
    with pytest.raises(TypeError, match="number of heads or a tensor of slopes"):
        Alibi(2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one slope per head"):
        Alibi(torch.ones(2, 2))
    with pytest.raises(ValueError, match="SoftCap"):
        r.SoftCap(math.inf)


def test_it_prints_its_offset_and_a_curve_per_head() -> None:
    assert repr(Alibi(8, offset=7)) == "Alibi(8, offset=7)"
    picture = str(Alibi(4)).splitlines()
    assert picture[0] == "Alibi(4)"
    assert len(picture) == 2 + 4
    assert (picture[2][0], picture[2][32]) == ("▁", "█")
    assert set(picture[5]) == {"█"}


def test_curves_are_cosines_between_vectors() -> None:
    """Those of sinusoidal and rotary positions in closed form, against products of the vectors themselves."""
    distances = torch.arange(-5, 6)
    table = SinusoidalPositions(8).matrix(30)
    unit = table / table.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(SinusoidalPositions(8).by_distance(distances)[0], unit[12] @ unit[12 + distances].mT)
    ones = torch.ones(30, 8, dtype=torch.float64)
    rotated = RotaryPositions(8)(ones) / 8**0.5
    want = rotated[12] @ rotated[12 + distances].mT
    torch.testing.assert_close(RotaryPositions(8).by_distance(distances)[0], want)
    torch.testing.assert_close(Rotary(width=8).by_distance(distances)[0], want)


def test_learned_curve_is_the_mean_over_pairs() -> None:
    positions = LearnedPositions(4, 6)
    unit = torch.nn.functional.normalize(positions.table.detach(), dim=-1)
    got = positions.by_distance(torch.tensor([0, 2, -2, 6, 100]))[0]
    apart = torch.stack([unit[i] @ unit[i + 2] for i in range(4)]).mean()
    torch.testing.assert_close(got, torch.stack([torch.tensor(1.0), apart, apart, *torch.zeros(2)]))


def test_pictures_go_from_the_smallest_number_to_the_largest() -> None:
    for position in (SinusoidalPositions(16), LearnedPositions(16, 8), RotaryPositions(16)):
        lines = str(position).splitlines()
        rows = lines[2 : lines.index("keys 32 before the query to 32 after it")]
        numbers = position.matrix(16)
        assert len(rows) == numbers.shape[0]
        assert {len(row) for row in rows} == {numbers.shape[1]}
        cells = "".join(rows)
        assert cells[int(numbers.argmax())] == "█"
        assert cells[int(numbers.argmin())] == "·"
    assert isinstance(Alibi(2), Position)
    assert Alibi(2).matrix(3) is None


def _biases(table: torch.Tensor, bidirectional: bool, longest: int, queries: int, keys: int) -> torch.Tensor:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    bucket = t5.T5Attention._relative_position_bucket(distance, bidirectional, table.shape[0], longest)
    return table[bucket].movedim(-1, 0)  # [heads, queries, keys]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_t5(bidirectional: bool, buckets: int, longest: int) -> None:
    table = torch.arange(buckets, dtype=torch.float64)[:, None]
    bias = RelativeBias(table, bidirectional=bidirectional, longest=longest)
    want = _biases(table, bidirectional, longest, 200, 200)[0]
    distance = torch.arange(200) - torch.arange(200)[:, None]
    assert torch.equal(bias.bucket(distance), want.long())


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa", "flex"])
def test_on_every_backend(backend: str) -> None:
    q, k, v = inputs((2, 3), 5, 9, 4, 6)
    table = torch.randn(8, 3, dtype=torch.float64)
    energy = r.Modified(r.Dot(), RelativeBias(table, longest=6))
    got, w = attend(q, k, v, energy=energy, backend=backend, weights=True)
    bias = r.Bias(_biases(table, True, 6, 5, 9))
    torch.testing.assert_close(got, attend(q, k, v, energy=r.Modified(r.Dot(), bias), backend="reference"))
    torch.testing.assert_close(w.dense() @ v, got)


def test_an_offset_is_a_step_of_a_cache() -> None:
    q, k, v = inputs((1, 3), 6, 6, 4, 6)
    table = torch.randn(8, 3, dtype=torch.float64)
    energies = [r.Modified(r.Dot(), RelativeBias(table, longest=6, offset=n)) for n in (0, 5)]
    whole = attend(q, k, v, energy=energies[0])
    torch.testing.assert_close(attend(q[..., 5:, :], k, v, energy=energies[1]), whole[..., 5:, :])
    assert energies[1].modifiers[0].continues(energies[0].modifiers[0], 5)


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_the_table_learns(backend: str) -> None:
    q, k, v = inputs((2, 3), 3, 4, 4, 2, grad=True)
    table = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    energy = r.Modified(r.ScaledDot(), RelativeBias(table, bidirectional=False))
    assert torch.autograd.gradcheck(
        lambda q, k, v, _: attend(q, k, v, energy=energy, backend=backend), (q, k, v, table)
    )


def test_what_it_cannot_take_of_relative_bias() -> None:
    with pytest.raises(TypeError, match="buckets, heads"):
        RelativeBias(torch.ones(3))
    with pytest.raises(ValueError, match="at least one"):
        RelativeBias(torch.ones(3, 2))
    x = torch.randn(1, 2, 4, 4)
    with pytest.raises(ValueError, match="of 3 heads"):
        attend(x, x, x, energy=r.Modified(r.Dot(), RelativeBias(torch.ones(8, 3))))


def test_it_prints_a_curve_per_head() -> None:
    picture = str(RelativeBias(torch.randn(8, 3))).splitlines()
    assert picture[0] == "RelativeBias([8, 3], longest=128)"
    assert len(picture) == 2 + 3


def _by_complex_numbers(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Su et al. 2021, eq. 12: components 2n and 2n + 1 are one complex number, multiplied by e^{i p θ_n}."""
    planes = x.shape[-1] // 2
    rates = base ** (-torch.arange(planes, dtype=torch.float64) / planes)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), positions[..., None].double() * rates)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (planes, 2)).contiguous()) * turns).flatten(-2)


def _halves(x: Tensor) -> Tensor:
    """From planes (2n, 2n + 1) to planes (n, n + d/2)."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa", "flex"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_published_rotation_on_every_backend(layout, backend: str) -> None:
    q, k, v = inputs((2, 3), 5, 9, 8, 6)
    rotated = _by_complex_numbers(q, torch.arange(5) + 4), _by_complex_numbers(k, torch.arange(9))
    want = attend(*rotated, v, mask=r.causal(4), backend="reference")
    if layout == "half":
        q, k = _halves(q), _halves(k)
    got, w = attend(q, k, v, energy=Rotary(layout=layout, offset=4), mask=r.causal(4), backend=backend, weights=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(w.dense() @ v, want)


def test_half_is_transformers_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k, v = inputs((2, 3), 6, 6, 8, 6)
    config = llama.LlamaConfig(hidden_size=24, num_attention_heads=3, rope_theta=5000.0)
    cos, sin = llama.LlamaRotaryEmbedding(config)(v, torch.arange(6)[None])
    want = attend(*llama.apply_rotary_pos_emb(q, k, cos, sin), v)
    # Their angles are computed in float32.
    torch.testing.assert_close(attend(q, k, v, energy=Rotary(base=5000.0)), want, rtol=0, atol=1e-6)


def test_interleaved_and_partial_are_transformers_gptj() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = torch.randn(2, 6, 3, 8, dtype=torch.float64)  # [batch, time, heads, width]
    table = gptj.create_sinusoidal_positions(6, 4)[None].expand(2, -1, -1)  # the first four components
    sin, cos = table.chunk(2, dim=-1)
    want = torch.cat([gptj.apply_rotary_pos_emb(x[..., :4], sin, cos), x[..., 4:]], dim=-1).transpose(1, 2)
    got, _, _ = Rotary(r.Dot(), width=4, layout="interleaved").split(x.transpose(1, 2), x.transpose(1, 2))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_is_that_of_transformers(kind: str) -> None:
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    scaling = {"rope_type": kind, "factor": 4.0, "rope_theta": 10_000.0}
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=2, rope_parameters=scaling)
    rates, _ = utilities.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    rotary = Rotary(scaling="linear", factor=4.0) if kind == "linear" else Rotary(rates=rates)
    torch.testing.assert_close(rotary.angle_rates(32).float(), rates)


def test_ntk_keeps_the_fastest_plane_and_stretches_the_slowest_by_the_factor() -> None:
    usual, stretched = Rotary().angle_rates(64), Rotary(scaling="ntk", factor=8.0).angle_rates(64)
    torch.testing.assert_close(stretched[0], usual[0])
    torch.testing.assert_close(stretched[-1], usual[-1] / 8)


def test_energies_depend_on_the_distance_alone() -> None:
    q, k, v = inputs((2,), 5, 5, 8, 3)
    places = torch.tensor([0, 7, 8, 30, 31])
    near, far = (attend(q, k, v, energy=Rotary(positions=places + shift)) for shift in (0, 100_000))
    torch.testing.assert_close(near, far)
    assert (near - attend(q, k, v, energy=Rotary())).abs().max() > 1e-3


def test_positions_per_batch_entry() -> None:
    q, k, v = inputs((2, 3), 4, 5, 8, 3)
    mine, theirs = torch.tensor([[0, 1, 2, 3], [9, 8, 7, 6]]), torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    got = attend(q, k, v, energy=Rotary(positions=mine, key_positions=theirs))
    for entry in range(2):
        energy = Rotary(positions=mine[entry], key_positions=theirs[entry])
        torch.testing.assert_close(got[entry], attend(q[entry], k[entry], v[entry], energy=energy))


def test_grouped_heads_and_modifiers_of_the_inner_energy() -> None:
    q, k, v = inputs((2, 4), 5, 5, 8, 3)
    k, v = k[:, :2], v[:, :2]
    outside = r.Modified(Rotary(), r.SoftCap(2.0), r.Alibi(4))
    inside = Rotary(r.Modified(r.ScaledDot(), r.SoftCap(2.0), r.Alibi(4)))
    want = attend(q, k, v, energy=outside, backend="reference")
    torch.testing.assert_close(attend(q, k, v, energy=inside), want)
    torch.testing.assert_close(inside(q, k.repeat_interleave(2, 1)), outside(q, k.repeat_interleave(2, 1)))


def test_a_cache_gives_what_the_whole_sequence_gives() -> None:
    q, k, v = inputs((1, 2), 6, 6, 8, 3)
    whole = attend(q, k, v, energy=Rotary(), mask=r.causal())
    for at in range(6):
        step = attend(q[..., at : at + 1, :], k[..., : at + 1, :], v[..., : at + 1, :], energy=Rotary(offset=at))
        torch.testing.assert_close(step, whole[..., at : at + 1, :])


def test_gradients_reach_inputs_and_learned_rates() -> None:
    q, k, v = inputs((2,), 3, 4, 6, 2, grad=True)
    rates = torch.nn.Parameter(torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64))
    energy = Rotary(rates=rates)
    assert dict(energy.named_parameters()).keys() == {"rates"}
    assert torch.autograd.gradcheck(lambda q, k, v, _: attend(q, k, v, energy=energy), (q, k, v, rates))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_long_contexts_in_low_precision(dtype: torch.dtype) -> None:
    """The angles are right at position 100,000; the error is that of rotated inputs rounded to the precision."""
    q, k, v = inputs((2,), 8, 8, 16, 4, dtype=dtype)
    places = torch.arange(8) * 13 + 100_000
    truth = attend(q.double(), k.double(), v.double(), energy=Rotary(positions=places), backend="reference")
    rotated = (_halves(_by_complex_numbers(_pairs(x).double(), places)).to(dtype) for x in (q, k))
    within_budget(attend(q, k, v, energy=Rotary(positions=places)), attend(*rotated, v), truth, dtype)


def _pairs(x: Tensor) -> Tensor:
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


def test_compiles() -> None:
    q, k, v = inputs((2, 3), 5, 5, 8, 6)
    energy = Rotary()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, energy=energy), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v, energy=energy))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rotary(layout="halves"), "half"),  # type: ignore[arg-type]
        (lambda: Rotary(width=3), "even"),
        (lambda: Rotary(scaling="yarn"), "expected"),  # type: ignore[arg-type]
        (lambda: Rotary(factor=0.0), "> 0"),
        (lambda: Rotary(offset=2, positions=torch.arange(5)), "add the offset"),
        (lambda: Rotary(rates=torch.ones(2), width=4), "rates decide"),
        (lambda: Rotary(width=6), "even number of components"),
        (lambda: Rotary(positions=torch.arange(3)), "positions of shape \\[3\\]"),
        (lambda: Rotary(positions=torch.zeros(3, 5, dtype=torch.long)), "positions of shape \\[3, 5\\]"),
    ],
)
def test_what_cannot_be_rotated(make, words: str) -> None:
    x = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=words):
        attend(x, x, x, energy=make())


def test_it_is_watched_and_drawn() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x, x, x, energy=Rotary(base=500.0))

    x, model = torch.randn(1, 2, 5, 8), Model()
    with r.watch(model) as seen:
        z = model(x)
    assert seen.faithful
    torch.testing.assert_close(seen[0].weights.dense() @ x, z)
    picture = str(Rotary(base=500.0)).splitlines()
    assert picture[0] == "Rotary(ScaledDot(scale=None), base=500.0)"
    assert len(picture[2]) == 32  # one column per plane of a head 64 wide
    assert picture[-1][32] == "█" == max(picture[-1])  # the key at the query's own position


def test_positions_are_buffers_and_rates_keep_their_digits() -> None:
    rates = torch.rand(2, dtype=torch.float32)
    energy = r.Rotary(rates=rates, positions=torch.arange(5), key_positions=torch.arange(1, 6))
    assert [name for name, _ in energy.named_buffers()] == ["positions", "key_positions"]
    assert not energy.state_dict()
    assert energy.to("meta").positions.device.type == "meta"
    assert energy.to(torch.bfloat16).rates.dtype == torch.float32
