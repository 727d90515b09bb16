"""Every answer of Contributions equals the same question asked of the dense matrix w ⊙ (g vᵀ)."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard as r
from regard import Contributions, attend
from regard.attention.parts import ChangedInPlaceError
from tests.support.attention_cases import NORMALIZERS, energies, inputs, masks, pooled_cells


def _answers_match(c: Contributions, dense: Tensor, g: Tensor, out: Tensor) -> None:
    queries, keys = dense.shape[-2:]
    assert c.shape == tuple(dense.shape)
    torch.testing.assert_close(c.dense(), dense)
    torch.testing.assert_close(c.tile(slice(1, 4), [0, 5, 2]), dense[..., 1:4, :][..., [0, 5, 2]])
    torch.testing.assert_close(c.tile(-1, slice(None)), dense[..., -1:, :])
    torch.testing.assert_close(c.total(), (g * out).sum(-1))  # the proof
    torch.testing.assert_close(c.size(), dense.abs().sum(-1))
    share = (dense.abs() / dense.abs().sum(-1, keepdim=True)).nan_to_num(0)
    torch.testing.assert_close(c.spread(), -torch.xlogy(share, share).sum(-1))
    values, indices = c.top(3)
    torch.testing.assert_close(values.abs(), dense.abs().topk(3, dim=-1).values)
    torch.testing.assert_close(dense.gather(-1, indices), values)
    torch.testing.assert_close(c.received(), dense.sum(-2))
    torch.testing.assert_close(c.received(absolute=True), dense.abs().sum(-2))
    torch.testing.assert_close(c.on([1, 4, 1]), dense[..., [1, 4]].sum(-1))
    for rows, cols in ((1, 1), (2, 3), (queries, keys), (50, 50)):
        for pool in ("max", "mean"):
            expected = pooled_cells(dense, rows, cols, pool, by_size=True)
            torch.testing.assert_close(c.map((rows, cols), pool=pool), expected)
    assert float(c.fidelity(out).max()) < 1e-12


@pytest.mark.parametrize("energy", energies())
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_every_energy_and_normalizer(energy: str, normalize: str) -> None:
    q, k, v = inputs()
    arguments = {"energy": energies()[energy], "normalize": NORMALIZERS[normalize], "mask": r.causal(1)}
    with torch.no_grad():
        out, w = attend(q, k, v, **arguments, weights=True)
        g = torch.randn_like(out)
        _answers_match(Contributions(w, v, g), w.dense() * (g @ v.mT), g, out)


@pytest.mark.parametrize("mask", masks())
def test_every_mask(mask: str) -> None:
    q, k, v = inputs()
    out, w = attend(q, k, v, mask=masks()[mask], weights=True)
    g = torch.randn_like(out)
    _answers_match(Contributions(w, v, g), w.dense() * (g @ v.mT), g, out)


def test_shared_heads_sinks_and_soft_caps() -> None:
    q = torch.randn(2, 6, 9, 4, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 11, 4, dtype=torch.float64) for _ in range(2))
    energy = r.Modified(r.ScaledDot(), r.SoftCap(2.0))
    sink = torch.randn(6, dtype=torch.float64)
    out, w = attend(q, k, v, energy=energy, normalize=r.Softmax(sink=sink), mask=r.causal(2), weights=True)
    g = torch.randn_like(out)
    dense = w.dense() * (g @ v.repeat_interleave(3, dim=1).mT)
    c = Contributions(w, v, g)
    _answers_match(c, dense, g, out)
    _answers_match(c[1], dense[1], g[1], out[1])
    torch.testing.assert_close(c[1, 2:4].rows([5, 0]).dense(), dense[1, 2:4][:, [5, 0]])
    torch.testing.assert_close(c[:, 4].rows(slice(2, 7)).received(), dense[:, 4, 2:7].sum(-2))


def test_one_direction_for_all_queries_and_a_query_that_is_a_vector() -> None:
    q, k, v = (torch.randn(3, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    out, w = attend(q, k, v, weights=True)
    u = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(Contributions(w, v, u[None]).total(), out @ u)
    out, w = attend(q[0, 0], k[0], v[0], weights=True)
    c = Contributions(w, v[0], u)
    assert c.shape == (7,)
    torch.testing.assert_close(c.dense(), w.dense() * (v[0] @ u))
    torch.testing.assert_close(c.total(), out @ u)
    assert c.top(2).values.shape == (2,)


def test_norms_of_values_give_value_weighted_attention() -> None:
    """Kobayashi et al. 2020: |w_ij| · ‖v_j W_O‖, with W_O of the head."""
    q, k, v = (torch.randn(2, 6, 4, dtype=torch.float64) for _ in range(3))
    w_o = torch.randn(2, 4, 9, dtype=torch.float64)
    _, w = attend(q, k, v, weights=True)
    norms = (v @ w_o).norm(dim=-1)
    c = Contributions(w, norms[..., None], torch.ones(2, 1, 1, dtype=torch.float64))
    torch.testing.assert_close(c.dense(), w.dense() * norms[:, None])


def test_blocks_of_many_sizes() -> None:
    """Several blocks of rows, whose keys end before the last one."""
    q, k, v = (torch.randn(2, 1500, 8, dtype=torch.float64) for _ in range(3))
    out, w = attend(q, k, v, mask=r.causal(), weights=True)
    g = torch.randn_like(out)
    dense = w.dense() * (g @ v.mT)
    c = Contributions(w, v, g)
    stats = c.stats(total=True, top=4, received=True, received_size=True, spread=True)
    torch.testing.assert_close(stats.total, (g * out).sum(-1))
    torch.testing.assert_close(stats.received, dense.sum(-2))
    torch.testing.assert_close(stats.received_size, dense.abs().sum(-2))
    torch.testing.assert_close(stats.top.values.abs(), dense.abs().topk(4).values)
    torch.testing.assert_close(c.map((7, 5), "mean"), pooled_cells(dense, 7, 5, "mean", by_size=True))


def test_a_masked_value_that_is_not_a_number_contributes_nothing() -> None:
    q, k, v = (torch.randn(1, 5, 4) for _ in range(3))
    v[:, 3] = torch.nan
    seen = torch.tensor([True, True, True, False, True])
    _, w = attend(q, k, v.nan_to_num(0), mask=seen.expand(1, 5, 5), weights=True)
    c = Contributions(w, v, torch.randn(1, 5, 4))
    assert bool(torch.isfinite(c.dense()).all())
    assert float(c.received()[0, 3]) == 0


def test_what_cannot_be_is_refused() -> None:
    q, k, v = (torch.randn(2, 5, 4) for _ in range(3))
    _, w = attend(q, k, v, weights=True)
    with pytest.raises(ValueError, match="one number per dimension of the values"):
        Contributions(w, v, torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match=r"contributions needs v \[2, 5, D_v\] and g \[2, 5, D_v\]"):
        Contributions(w, v, torch.randn(2, 4, 4))
    c = Contributions(w, v, torch.randn(2, 5, 4))
    with pytest.raises(ValueError, match="top needs"):
        c.top(6)
    with pytest.raises(ValueError, match="at least one row"):
        c.map((0, 3))
    with pytest.raises(ValueError, match='expected "max" or "mean"'):
        c.map((2, 2), "median")
    v += 1
    for read in (c.total, c.dense):
        with pytest.raises(ChangedInPlaceError):
            read()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_grows_with_length_not_its_square() -> None:
    """At T = 8,192 one T×T matrix is 256 MiB."""
    code = """
import torch, regard
torch.set_num_threads(1)
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
def work(length):
    q, k, v, g = torch.randn(4, 1, length, 8)
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    regard.Contributions(w, v, g).stats(total=True, top=8, received=True, received_size=True, spread=True, map=(64, 64))
work(600)
before = peak()
work(8192)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert float(done.stdout) < 150, f"{done.stdout.strip()} MiB"
