"""Rotary positions against transformers' own functions, complex numbers, and on every backend."""

import pytest
import torch
from torch import Tensor

import regard as r
from regard import Rotary, attend
from tests.support.attention_cases import inputs, within_budget


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
