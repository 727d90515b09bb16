"""T5's relative bias against transformers' T5."""

import pytest
import torch

import regard as r
from regard import RelativeBias, attend
from tests.support.attention_cases import inputs


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


def test_what_it_cannot_take() -> None:
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
