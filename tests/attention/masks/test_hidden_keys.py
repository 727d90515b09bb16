"""NaN and ∞ behind a mask reach no query that does not see them, forward and backward, on any backend."""

import math

import pytest
import torch

import regard as r
from regard import attend
from regard.attention import blocked_attention, request
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs, masks

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


@pytest.mark.parametrize("block", [16, 1 << 18])
@pytest.mark.parametrize(("energy", "normalize"), [*dict.fromkeys(EVERY), ("inverse distance", "proportional")])
def test_keys_that_no_query_sees(energy: str, normalize: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of learned energies, too: the keys are cleared before they are projected."""
    monkeypatch.setattr(blocked_attention, "BLOCK", block)
    q, k, v = inputs((2, 3))
    options = problem(energy, normalize) | {"mask": r.causal(1) & r.padding([7, 4])}
    for backend in ("auto", "reference", "fused"):
        expected, gradients = results(q, k, v, options | {"backend": backend})
        bad_k, bad_v = k.clone(), v.clone()
        bad_k[1, :, 4:], bad_v[1, :, 5:] = math.nan, -math.inf
        z, ours = results(q, bad_k, bad_v, options | {"backend": backend})
        torch.testing.assert_close(z, expected)
        torch.testing.assert_close(ours, gradients)


@pytest.mark.parametrize(("where", "bad"), [("k", math.nan), ("v", math.inf), ("q", -math.inf)])
@pytest.mark.parametrize(("energy", "normalize"), [*dict.fromkeys(EVERY), ("inverse distance", "proportional")])
def test_a_key_that_some_queries_see(
    energy: str, normalize: str, where: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that do not see it, and keys that a bad query does not see, are as if it were not there."""
    monkeypatch.setattr(blocked_attention, "BLOCK", 64)
    q, k, v = inputs((2, 3))
    options = problem(energy, normalize) | {"mask": r.causal(1)}
    for backend in ("auto", "reference", "fused"):
        options["backend"] = backend
        expected, _ = results(q, k, v, options)
        changed = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        changed[where][..., 3, :] = bad
        z, (dq, dk, dv, *_) = results(**changed, options=options)
        rows = torch.arange(5)
        blind = rows != 3 if where == "q" else rows + 1 < 3
        torch.testing.assert_close(z[..., blind, :], expected[..., blind, :])
        # With the loss of those queries alone, gradients are those of a call that never had the others.
        assert dq is None or dq[..., blind, :].isfinite().all()
        unseen = torch.arange(7) > 5  # by the last query, and so by all
        for gradient in (dk, dv):
            assert gradient is None or gradient[..., unseen, :].isfinite().all()


@pytest.mark.parametrize("name", masks())
def test_every_mask(name: str) -> None:
    """A value that is NaN makes NaN of exactly the queries that see it."""
    mask = masks()[name]
    q, k, v = inputs((2, 3))
    seen = torch.ones(5, 7, dtype=torch.bool) if mask is None else mask.dense((2, 3), 5, 7, q.device)
    v[..., 2, 0] = math.nan
    for backend in ("auto", "reference", "fused"):
        z = attend(q, k, v, mask=mask, backend=backend)
        assert torch.equal(z[..., 0].isnan(), seen.expand(2, 3, 5, 7)[..., 2])
        assert not z[..., 1:].isnan().any()
        z, weights = attend(q, k, v.requires_grad_(), mask=mask, backend=backend, weights=True)
        assert torch.equal(z[..., 0].isnan(), seen.expand(2, 3, 5, 7)[..., 2])
        assert weights.dense().isfinite().all()


def test_grouped_heads_and_broadcast_keys() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    mask = r.padding([6, 3])
    expected = attend(q, k, v, mask=mask)
    k[1, :, 3:], v[1, :, 3:] = math.nan, math.inf
    torch.testing.assert_close(attend(q, k, v, mask=mask), expected)
    # Keys that the entries of a batch share are hidden only where all of them hide them.
    shared, values = torch.randn(6, 8), torch.randn(6, 8)
    expected = attend(q, shared, values, mask=mask)
    values[4] = math.nan
    z = attend(q, shared, values, mask=mask)
    assert z[0].isnan().all()
    torch.testing.assert_close(z[1], expected[1])


def test_weights_of_queries_beside_a_bad_key() -> None:
    q, k, v = inputs((2,))
    _, expected = attend(q, k, v, mask=r.causal(), weights=True)
    bad = k.clone()
    bad[:, 3] = math.nan
    _, weights = attend(q, bad, v, mask=r.causal(), weights=True)
    torch.testing.assert_close(weights.rows(slice(0, 3)).dense(), expected.rows(slice(0, 3)).dense())
    torch.testing.assert_close(weights.tile(slice(0, 3), slice(0, 5)), expected.tile(slice(0, 3), slice(0, 5)))
    torch.testing.assert_close(weights.entropy()[:, :3], expected.entropy()[:, :3])


def test_a_sum_that_overflows_is_no_reason() -> None:
    x = torch.full((4, 4), 3e38, requires_grad=True)
    assert r.explain(x, x, x, mask=r.causal()).backend == "sdpa"
    with torch.no_grad():
        x[2, 1] = math.inf
    plan = r.explain(x, x, x, mask=r.causal())
    assert plan.backend == "fused"
    assert "behind the mask" in plan.others["sdpa"]
    assert r.explain(x, x, x).backend == "sdpa"  # without a mask nothing is hidden


def test_in_a_trace_padding_is_cleared() -> None:
    """Numbers cannot be read there; what the mask hides from all queries is cleared without."""
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


# Where numbers cannot be read: on a GPU, in torch.compile and in torch.vmap


def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where reading numbers would wait for it."""
    monkeypatch.setattr(request, "readable", lambda x: False)


UNREAD = {
    "unread": lambda function: function,
    "vmap": torch.vmap,
    "compile": lambda function: torch.compile(function, backend="aot_eager", fullgraph=True),
}
OURS = {
    "sparsemax": {"normalize": r.Sparsemax()},
    "sink": {"normalize": r.Softmax(sink=0.3)},
    "own normalizer": {"normalize": lambda e: torch.softmax(e, -1)},
    "gaussian": {"energy": r.Gaussian()},
    "additive": {"energy": r.Additive(4, 4, 3).double()},
    "function": {"energy": lambda q, k: (q[..., :, None, :] * k[..., None, :, :]).sum(-1)},
    "soft cap": {"energy": r.Modified(r.ScaledDot(), r.SoftCap(2.0)), "normalize": r.Entmax(1.5)},
}
BEHIND = {
    "padding": (r.padding([3]), slice(3, 5)),
    "cache": (r.causal(-2), slice(3, 5)),
    "dense": (r.dense(torch.tensor([1, 1, 0, 1, 0], dtype=torch.bool).expand(5, 5)), [2, 4]),
    "causal": (r.causal(), slice(3, 5)),
    "documents": (r.documents([0, 0, 0, 1, 1]), slice(3, 5)),
}


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("where", ["k", "v", "kv"])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", OURS)
def test_numbers_that_are_not_read_leak_nowhere(
    name: str, behind: str, where: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that see no bad key have the outputs and gradients of a call without one."""
    _unread(monkeypatch)
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    _compare(OURS[name] | {"backend": backend}, behind, where, UNREAD["unread"])


@pytest.mark.parametrize(
    ("transform", "name", "behind", "backend"),
    [
        ("vmap", "sparsemax", "causal", "reference"),
        ("vmap", "sink", "documents", "fused"),
        ("vmap", "gaussian", "padding", "fused"),
        ("compile", "sink", "documents", "reference"),
        ("compile", "gaussian", "causal", "fused"),
    ],
)
def test_traces_leak_nowhere(transform: str, name: str, behind: str, backend: str) -> None:
    torch.compiler.reset()
    _compare(OURS[name] | {"backend": backend}, behind, "kv", UNREAD[transform])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's kernel has no rule for vmap
@pytest.mark.parametrize(
    ("transform", "behind"), [("unread", "padding"), ("unread", "cache"), ("unread", "dense"), ("vmap", "dense")]
)
def test_pytorch_gets_keys_that_no_query_sees_as_zeros(
    transform: str, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    if transform == "unread":
        _unread(monkeypatch)
    _compare({"backend": "sdpa"}, behind, "kv", UNREAD[transform])


def _compare(options: dict, behind: str, where: str, transform) -> None:
    mask, bad = BEHIND[behind]
    blind = ~mask.dense((1,), 5, 5, torch.device("cpu")).expand(1, 5, 5)[0][:, bad].any(-1)
    tensors = [torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3)]

    def function(q, k, v):
        return attend(q[None], k[None], v[None], mask=mask, **options)[0]

    def results(q, k, v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        if transform is UNREAD["vmap"]:
            z = transform(function)(*leaves)
        else:
            z = torch.stack([transform(function)(*(x[at] for x in leaves)) for at in range(2)])
        z = z[:, blind]
        return [z, *torch.autograd.grad(z.square().sum(), leaves, allow_unused=True)]

    expected = results(*tensors)
    for at, letter in enumerate("qkv"):
        if letter in where:
            tensors[at][:, bad] = torch.tensor([math.nan, math.inf, -math.inf, math.nan], dtype=torch.float64)
    z, dq, dk, dv = results(*tensors)
    torch.testing.assert_close(z, expected[0])
    torch.testing.assert_close(dq[:, blind], expected[1][:, blind])
    if blind.all():  # no other query has a NaN of its own
        torch.testing.assert_close([dk, dv], expected[2:])


def test_values_that_are_seen_keep_their_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    _unread(monkeypatch)
    q, k, v = inputs((), 4, 4, 3, 4)
    v[1] = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64)
    v[3, 0] = -math.inf
    for backend in ("reference", "fused"):
        z = attend(q, k, v, mask=r.causal(), backend=backend)
        assert z[0].isfinite().all()
        for row in (1, 2):
            assert z[row, :2].tolist() == [math.inf, -math.inf]
            assert z[row, 2].isnan()
        assert z[3, 0].isnan()
        assert z[:, 3].isfinite().all()
