"""Masks that hide blocks: what is computed in parts is what the formula gives, at lengths around edges of blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as r
from regard import attend
from tests.support.attention_cases import city_block
from tests.support.random_examples import EXAMPLES

settings.load_profile(EXAMPLES)

EDGES = [*range(1, 4), *range(63, 66), *range(127, 131), *range(255, 258), 300]
ENERGIES = {
    "scaled": lambda d: r.ScaledDot(),
    "cosine": lambda d: r.Cosine(),
    "gaussian": lambda d: r.Gaussian(2.0),
    "inverse distance": lambda d: r.InverseDistance(),
    "additive": lambda d: r.Additive(d, d, 5).double(),
    "softcap": lambda d: r.Modified(r.ScaledDot(), r.SoftCap(3.0), r.Alibi(2)),
    "own": lambda d: city_block,
}
NORMALIZERS = {
    "softmax": r.Softmax(0.5),
    "sink": r.Softmax(sink=0.3),
    "sparsemax": r.Sparsemax(),
    "entmax": r.Entmax(1.5),
    "hard": r.Hard(),
    "unnormalized": r.Unnormalized(),
    "own": lambda e: torch.softmax(e, -1),
}


def _mask(kind: str, batch: int, queries: int, keys: int) -> r.Mask:
    lengths = torch.randint(0, keys + 1, (batch,))
    width = int(torch.randint(1, 90, ()))
    ids = torch.randint(0, 5, (batch, max(queries, keys))).sort().values
    table = torch.rand(-(-queries // 64), -(-keys // 64)) < 0.5
    made = {
        "window": lambda: r.causal(keys - queries) & r.window(width, offset=keys - queries),
        "two-sided window": lambda: r.window(width),
        "documents": lambda: r.documents(ids[:, :queries], ids[:, :keys]),
        "unordered documents": lambda: r.documents(ids[:, :queries].flip(-1) % 3, ids[:, :keys]),
        "padding": lambda: r.padding(lengths),
        "causal and padding": lambda: r.causal() & r.padding(lengths),
        "padded queries": lambda: r.padding(lengths, queries=torch.randint(0, queries + 1, (batch,))),
        "prefix": lambda: r.causal() | r.prefix(lengths),
        "blocks": lambda: r.mask_mod(lambda b, h, i, j: table[i // 64, j // 64]),
        "not": lambda: ~r.window(width) & r.causal(),
        "dense": lambda: r.dense(table.repeat_interleave(64, 0).repeat_interleave(64, 1)[:queries, :keys]),
        "offsets": lambda: r.causal(torch.randint(-queries, keys + 1, (batch,))),
        "centers": lambda: r.window(width, center=torch.rand(batch, 1, queries) * keys),
    }
    return made[kind]()


MASKS = (
    *("window", "two-sided window", "documents", "unordered documents", "padding", "causal and padding"),
    *("padded queries", "prefix", "blocks", "not", "dense", "offsets", "centers"),
)


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@settings(max_examples=max(1, settings().max_examples // 20))
@given(st.sampled_from(MASKS), st.sampled_from(EDGES), st.sampled_from(EDGES), st.integers(0, 2**31))
def test_forward_backward_and_statistics_are_those_of_the_formula(
    energy: str, normalizer: str, kind: str, queries: int, keys: int, seed: int
) -> None:
    torch.manual_seed(seed)
    mask = _mask(kind, 2, queries, keys)
    arguments = {"energy": ENERGIES[energy](4), "normalize": NORMALIZERS[normalizer], "mask": mask}
    q, k, v = (torch.randn(2, 2, t, 4, dtype=torch.float64, requires_grad=True) for t in (queries, keys, keys))
    truth, w = attend(q, k, v, backend="reference", weights=True, **arguments)
    z, own = attend(q, k, v, weights=True, **arguments)
    torch.testing.assert_close(z, truth)
    torch.testing.assert_close(attend(q, k, v, **arguments), truth)
    slope = torch.randn_like(z)
    gradients = [
        torch.autograd.grad(x, (q, k, v), slope, allow_unused=True, materialize_grads=True) for x in (z, truth)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    dense = w.dense().detach()
    torch.testing.assert_close(own.tile(slice(None), slice(None)), dense)
    stats = own.stats(received=True, top=1, offsets=[-2, 0, 1], on=[0], map=(7, 5), fidelity=(v, truth))
    torch.testing.assert_close(stats.received, dense.sum(-2))
    torch.testing.assert_close(stats.top.values[..., 0], dense.amax(-1))
    torch.testing.assert_close(stats.on, dense[..., 0])
    torch.testing.assert_close(
        stats.offsets[..., 1],
        dense.diagonal(dim1=-2, dim2=-1)
        if queries <= keys
        else torch.nn.functional.pad(dense.diagonal(dim1=-2, dim2=-1), (0, queries - keys)),
    )
    torch.testing.assert_close(stats.map, r.Weights.of_matrix(dense).map((7, 5)))
    assert stats.fidelity.max() < 1e-9
    rows = sorted({0, queries // 2, queries - 1})
    torch.testing.assert_close(own.rows(rows).received(), dense[:, :, rows].sum(-2))


@pytest.mark.parametrize("heads", [1, 4])
def test_grouped_heads_and_low_precision(heads: int) -> None:
    torch.manual_seed(0)
    mask = r.causal() & r.window(40)
    q, k, v = torch.randn(2, 4, 300, 8), *(torch.randn(2, heads, 300, 8) for _ in range(2))
    truth = attend(*(x.double() for x in (q, k, v)), mask=mask, backend="reference")
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)):
        z = attend(*(x.to(dtype) for x in (q, k, v)), mask=mask)
        assert z.dtype == dtype
        torch.testing.assert_close(z.double(), truth, rtol=error, atol=error)


def test_a_mask_that_is_changed_is_asked_again() -> None:
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    seen = torch.zeros(300, 300, dtype=torch.bool)
    seen[:, :20] = True
    mask = r.dense(seen)
    attend(q, k, v, mask=mask)
    seen[:, 280:] = True
    torch.testing.assert_close(attend(q, k, v, mask=mask), attend(q, k, v, mask=mask, backend="reference"))


def test_the_block_mask_of_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    table = torch.rand(3, 3, generator=torch.Generator().manual_seed(1)) < 0.6
    table.fill_diagonal_(True)

    def seen(b, h, i, j):
        return table[i // 128, j // 128] & (i >= j)

    given = create_block_mask(seen, 1, 1, 300, 300, device="cpu")
    q, k, v = (torch.randn(2, 2, 300, 8) for _ in range(3))
    truth = attend(q, k, v, mask=seen, backend="reference")
    torch.testing.assert_close(attend(q, k, v, mask=given), truth)
    torch.testing.assert_close(attend(q, k, v, mask=given, backend="reference"), truth)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, mask=given, backend="flex"), truth)
    with pytest.raises(ValueError, match="300 × 300"):
        attend(q[..., :200, :], k, v, mask=given)


LONG = """
import torch, regard
torch.set_num_threads(1)
def step(length):
    x = [torch.randn(1, 2, length, 64, requires_grad=True) for _ in range(3)]
    before = peak()
    torch.autograd.grad(regard.attend(*x, mask=regard.causal() & regard.window(256)).sum(), x)
    return peak() - before
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
step(1024)
print(step(32_768))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_window_over_32768_tokens() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True, env={**os.environ})
    results = 4 * 16  # MiB of the output and three gradients; a dense mask alone would take 1,024
    assert float(done.stdout) < results + 80


def test_a_mask_that_changes_before_the_backward_pass_is_an_error() -> None:
    mask = torch.ones(512, 512).tril().bool()
    x = torch.randn(1, 2, 512, 16)
    q = x.clone().requires_grad_()
    z = r.attend(q, x, x, mask=mask)
    mask.fill_(True).tril_(-200)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.sum().backward()


class Reach:
    size = 8


def test_a_rule_that_reads_an_object_is_asked_again() -> None:
    """Of a number or a tensor it is known whether it is as it was; of an object it is not."""
    mask, x = r.mask_mod(lambda b, h, i, j: (i - j).abs() < Reach.size), torch.randn(1, 2, 512, 16)
    for size in (8, 400):
        Reach.size = size
        close = torch.testing.assert_close
        close(r.attend(x, x, x, mask=mask), r.attend(x, x, x, mask=mask, backend="reference"))


def test_threads_share_a_mask() -> None:
    mask, wrong = r.window(3), []

    def ask(length: int) -> None:
        q = torch.randn(1, 1, length, 8)
        for _ in range(500):
            try:
                r.attend(q, q, q, mask=mask)
            except RuntimeError as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=(n,)) for n in (16, 17, 24, 32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.parametrize("temperature", [0.01, 1e-4])
def test_near_keys_stay_apart_at_a_low_temperature(temperature: float) -> None:
    torch.manual_seed(0)
    place = torch.nn.functional.normalize(torch.randn(1, 8), dim=-1) * 14 * torch.randn(200, 1).sign()
    q, k = ((place + torch.randn(200, 8) * temperature**0.5)[None] for _ in range(2))
    v = torch.randn(1, 200, 8)
    how = {"energy": r.Gaussian(), "normalize": r.Softmax(temperature=temperature)}
    exact = r.attend(q.double(), k.double(), v.double(), **how, backend="reference")
    torch.testing.assert_close(r.attend(q, k, v, **how).double(), exact, rtol=0, atol=1e-5)
