"""One rule: keys and values that no query sees count as zeros, so NaN and ∞ there reach nothing, on any backend."""

import math

import pytest
import torch

import regard as r
from regard import attend
from regard.attention import energy_matrix
from regard.attention.backends import fused
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs

BAD = [math.nan, math.inf, -math.inf]
SMOOTH = {name: x for name, x in NORMALIZERS.items() if name in ("softmax", "sparsemax", "entmax 1.5", "hard")}
EVERY = [
    *((e, n) for e in ("scaled", "additive", "own function") for n in SMOOTH),
    *((e, "softmax") for e in energies()),
]


def problem(energy: str, normalize: str) -> dict:
    return {
        "energy": (energies() | POSITIVE)[energy],
        "normalize": (SMOOTH | {"proportional": r.Proportional()})[normalize],
    }


def results(q, k, v, options) -> tuple[torch.Tensor, list[torch.Tensor]]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    leaves = list(options["energy"].parameters()) if isinstance(options.get("energy"), torch.nn.Module) else []
    z = attend(q, k, v, **options)
    return z, list(torch.autograd.grad(z.square().sum(), (q, k, v, *leaves), allow_unused=True))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused"])
@pytest.mark.parametrize("where", ["k", "v"])
def test_padding_as_it_was_found(where: str, backend: str, bad: float) -> None:
    q, k, v = inputs((2,), 5, 5, 4, 4, dtype=torch.float32)
    options = {"mask": r.padding([5, 3]), "backend": backend}
    expected, gradients = results(q, k, v, options)
    {"k": k, "v": v}[where][1, 3:] = bad
    z, ours = results(q, k, v, options)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(ours, gradients)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, **options), expected)


@pytest.mark.parametrize("block", [16, 1 << 18])
@pytest.mark.parametrize(("energy", "normalize"), [*dict.fromkeys(EVERY), ("inverse distance", "proportional")])
def test_keys_that_no_query_sees(energy: str, normalize: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of learned energies, too: the keys are cleared before they are projected."""
    monkeypatch.setattr(fused, "BLOCK", block)
    q, k, v = inputs((2, 3))
    options = problem(energy, normalize) | {"mask": r.causal(1) & r.padding([7, 4])}
    for backend in ("auto", "reference", "fused"):
        expected, gradients = results(q, k, v, options | {"backend": backend})
        bad_k, bad_v = k.clone(), v.clone()
        bad_k[1, :, 4:], bad_v[1, :, 5:] = math.nan, -math.inf
        z, ours = results(q, bad_k, bad_v, options | {"backend": backend})
        torch.testing.assert_close(z, expected)
        torch.testing.assert_close(ours, gradients)


def test_grouped_heads_and_broadcast_keys() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    mask = r.padding([6, 3])
    expected = attend(q, k, v, mask=mask)
    k[1, :, 3:], v[1, :, 3:] = math.nan, math.inf
    torch.testing.assert_close(attend(q, k, v, mask=mask), expected)
    # Keys that the entries of a batch share are hidden only where all of them hide them.
    shared, values = torch.randn(6, 8), torch.randn(6, 8)
    values[4] = math.nan
    assert attend(q, shared, values, mask=mask)[0].isnan().all()


@pytest.mark.parametrize("readable", [True, False])
def test_numbers_that_cannot_be_read_are_cleared_too(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where reading numbers would wait for it."""
    monkeypatch.setattr(energy_matrix, "readable", lambda x: readable)
    q, k, v = inputs((2,), 5, 5, 4, 4)
    expected = attend(q, k, v, mask=r.padding([5, 3]))
    k[1, 3:], v[1, 3:] = math.nan, math.inf
    torch.testing.assert_close(attend(q, k, v, mask=r.padding([5, 3])), expected)


def test_in_a_trace_padding_is_cleared() -> None:
    torch.compiler.reset()
    q, k, v = inputs((2,), 5, 5, 4, 4, dtype=torch.float32)
    mask = r.causal() & r.padding([5, 3])
    expected = attend(q, k, v, mask=mask)
    k[1, 3:], v[1, 3:] = math.nan, math.inf
    run = torch.compile(lambda q, k, v: attend(q, k, v, mask=mask), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(q, k, v), expected)


@pytest.mark.parametrize(
    "mask",
    [
        r.padding([7, 4]),
        r.padding([7, 4]) & r.causal(),
        r.padding([7, 4]) | r.prefix([2, 5]),
        r.causal(-4),
        r.causal([-4, 3]),
        r.window(2, offset=-5),
        r.window(2, offset=4),
        r.documents([0] * 9, torch.tensor([0, 0, 1, 0, 2, 0, 0])),
        r.dense(torch.rand(3, 9, 7) > 2),
        r.dense(torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)[None]),
    ],
    ids=repr,
)
def test_hidden_keys_that_a_mask_names(mask: r.Mask) -> None:
    seen = mask.dense((2, 3), 9, 7, torch.device("cpu")).expand(2, 3, 9, 7)
    hidden = mask.hidden((2, 3), 9, 7, torch.device("cpu")).expand(2, 3, 7)
    assert torch.equal(hidden, ~seen.any(-2))
    assert hidden.any()


def test_parameters_that_a_function_uses_get_finite_gradients() -> None:
    q, k, v = torch.randn(1, 5, 4), torch.randn(1, 6, 4), torch.randn(1, 6, 3)
    k[:, 4:] = torch.nan
    weight = torch.eye(4, requires_grad=True)
    z = r.attend(q, k, v, energy=lambda a, b: a @ weight @ b.mT, mask=r.padding([4]))
    assert torch.autograd.grad(z.sum(), weight)[0].isfinite().all()


@pytest.mark.parametrize("mask", [r.causal(), r.causal("bottom-right"), r.window(3), r.documents([0, 0, 1])], ids=repr)
def test_masks_that_hide_no_key_cost_nothing(mask: r.Mask) -> None:
    assert mask.resolve(3, 3).hidden((2,), 3, 3, torch.device("cpu")) is None
