"""FlexAttention's `mask_mod` and `score_mod` functions as they are, against the formula in float64."""

import pytest
import torch

import regard as r
from regard import attend

B, H, T, D = 2, 3, 12, 4
CPU = torch.device("cpu")
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3], [0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]])
WIDE = 4  # the image of the neighbourhood mask is 3 × 4


def _neighbourhood(b, h, q, k):
    """Pixels within one row and one column of the query's, whose window is moved inside the image (NATTEN)."""
    row, col = (q // WIDE).clamp(1, T // WIDE - 2), (q % WIDE).clamp(1, WIDE - 2)
    return ((k // WIDE - row).abs() <= 1) & ((k % WIDE - col).abs() <= 1)


def _neighbours(q: int, k: int) -> bool:
    row, col = min(max(q // WIDE, 1), T // WIDE - 2), min(max(q % WIDE, 1), WIDE - 2)
    return abs(k // WIDE - row) <= 1 and abs(k % WIDE - col) <= 1


def _mask_mods() -> dict:
    """Each as a function of scalars, and as the same rule in Python."""
    lengths = torch.tensor([5, 2])
    permitted = torch.rand(B, H, T, T) > 0.5
    return {
        "causal": (lambda b, h, q, k: q >= k, lambda b, h, q, k: q >= k),
        "sliding window": (lambda b, h, q, k: (q >= k) & (q - k <= 3), lambda b, h, q, k: 0 <= q - k <= 3),
        "prefix": (lambda b, h, q, k: (k < lengths[b]) | (q >= k), lambda b, h, q, k: k < lengths[b] or q >= k),
        "documents": (
            lambda b, h, q, k: (DOCUMENTS[b, q] == DOCUMENTS[b, k]) & (q >= k),
            lambda b, h, q, k: bool(DOCUMENTS[b, q] == DOCUMENTS[b, k]) and q >= k,
        ),
        "dilated": (
            lambda b, h, q, k: ((q - k).abs() <= 4) & ((q - k) % 2 == 0),
            lambda b, h, q, k: abs(q - k) <= 4 and (q - k) % 2 == 0,
        ),
        "neighbourhood": (_neighbourhood, lambda b, h, q, k: _neighbours(q, k)),
        "global and local": (
            lambda b, h, q, k: (k < 2) | (q < 2) | ((q - k).abs() < 2),
            lambda b, h, q, k: k < 2 or q < 2 or abs(q - k) < 2,
        ),
        "a window per head": (lambda b, h, q, k: (q - k).abs() <= h, lambda b, h, q, k: abs(q - k) <= h),
        "a table": (lambda b, h, q, k: permitted[b, h, q, k], lambda b, h, q, k: bool(permitted[b, h, q, k])),
        "two positions at once": (
            lambda b, h, q, k: (torch.stack([q, k]) % 5).amax() < 4,
            lambda b, h, q, k: max(q % 5, k % 5) < 4,
        ),
        "all": (lambda b, h, q, k: True, lambda b, h, q, k: True),
    }


def _table(rule) -> torch.Tensor:
    places = [[[[bool(rule(b, h, q, k)) for k in range(T)] for q in range(T)] for h in range(H)] for b in range(B)]
    return torch.tensor(places)


def _inputs(grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, T, D, dtype=torch.float64, requires_grad=grad) for _ in range(3)]


def _formula(q, k, v, seen=None, e=None):
    e = q @ k.mT / D**0.5 if e is None else e
    if seen is None:
        return torch.softmax(e, -1) @ v
    empty = ~seen.any(-1, keepdim=True)
    return torch.softmax(e.masked_fill(~seen & ~empty, -torch.inf), -1).masked_fill(empty, 0) @ v


@pytest.mark.parametrize("name", _mask_mods())
def test_mask_mod_is_the_rule_at_every_index(name: str) -> None:
    function, rule = _mask_mods()[name]
    mask, expected = r.mask_mod(function), _table(rule) if name != "a table" else None
    seen = mask.dense((B, H), T, T, CPU).expand(B, H, T, T)
    if expected is None:
        expected = _table(lambda b, h, q, k: function(*(torch.tensor(x) for x in (b, h, q, k))))
    assert seen.equal(expected)
    assert (~mask).dense((B, H), T, T, CPU).expand(B, H, T, T).equal(~expected)
    q, k, v = _inputs()
    truth = _formula(q, k, v, expected)
    for backend in ("auto", "reference", "fused", "sdpa", "flex"):
        out = attend(q, k, v, mask=function, backend=backend)
        torch.testing.assert_close(out, truth, msg=lambda text, backend=backend: f"{backend}: {text}")


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa"])
def test_gradients_under_a_mask_mod(backend: str) -> None:
    function, rule = _mask_mods()["documents"]
    q, k, v = _inputs(grad=True)
    direction = torch.randn(B, H, T, D, dtype=torch.float64)
    ours = torch.autograd.grad(attend(q, k, v, mask=function, backend=backend), (q, k, v), direction)
    theirs = torch.autograd.grad(_formula(q, k, v, _table(rule)), (q, k, v), direction)
    torch.testing.assert_close(ours, theirs)


def test_mask_mod_combines_with_masks_and_draws() -> None:
    even = lambda b, h, q, k: k % 2 == 0  # noqa: E731
    for mask, rule in (
        (r.causal() & even, lambda b, h, q, k: q >= k and k % 2 == 0),
        (even | r.causal(), lambda b, h, q, k: q >= k or k % 2 == 0),
        (even & r.causal("bottom-right"), lambda b, h, q, k: q >= k and k % 2 == 0),
        (~r.mask_mod(even) & r.padding([3, 12]), lambda b, h, q, k: k % 2 == 1 and k < (3, 12)[b]),
    ):
        assert mask.dense((B, H), T, T, CPU).expand(B, H, T, T).equal(_table(rule))
    assert str(r.mask_mod(even)).splitlines()[:2] == ["mask_mod(<lambda>)", "█·█·█·█·"]
    ids = DOCUMENTS[0, :6]
    assert str(r.mask_mod(lambda b, h, q, k: ids[q] == ids[k])).splitlines()[1:3] == ["███···", "███···"]


@pytest.mark.parametrize(("shape", "names"), [((T, D), ""), ((B, T, D), "b")])
def test_fewer_leading_dimensions_than_b_and_h(shape: tuple[int, ...], names: str) -> None:
    lengths = torch.tensor([4, 9])
    q, k, v = (torch.randn(*shape, dtype=torch.float64) for _ in range(3))
    out = attend(q, k, v, mask=lambda b, h, i, j: (j < lengths[b]) & (h == 0))
    torch.testing.assert_close(out, attend(q, k, v, mask=r.padding(lengths if names else 4)))
    energy = r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + lengths[b] * (i - j))
    slope = lengths[:, None, None] if names else 4
    i, j = torch.arange(T)[:, None], torch.arange(T)
    truth = _formula(q, k, v, e=q @ k.mT / D**0.5 + slope * (i - j))
    torch.testing.assert_close(attend(q, k, v, energy=energy), truth)


def _score_mods() -> dict:
    """Each as a function of scalars, and as the same energies of whole tensors."""
    i, j = torch.arange(T)[:, None], torch.arange(T)
    slopes, near = torch.rand(H, dtype=torch.float64), torch.randn(2 * T, dtype=torch.float64)
    return {
        "distance": (lambda e, b, h, q, k: e + (q - k), lambda e: e + (i - j)),
        "slopes": (
            lambda e, b, h, q, k: e - slopes[h] * (q - k).abs(),
            lambda e: e - slopes[:, None, None] * abs(i - j),
        ),
        "relative table": (lambda e, b, h, q, k: e + near[q - k + T], lambda e: e + near[i - j + T]),
        "cap": (lambda e, b, h, q, k: 2 * torch.tanh(e / 2), lambda e: 2 * torch.tanh(e / 2)),
        "causal": (
            lambda e, b, h, q, k: torch.where(q >= k, e, -float("inf")),
            lambda e: e.masked_fill(i < j, -torch.inf),
        ),
        "no energy": (lambda e, b, h, q, k: near[q], lambda e: near[i].expand_as(e)),
        "a number": (lambda e, b, h, q, k: 1.0, torch.ones_like),
        "itself": (lambda e, b, h, q, k: e, lambda e: e),
    }


@pytest.mark.parametrize("name", _score_mods())
def test_score_mod_on_every_backend_that_takes_it(name: str) -> None:
    torch.manual_seed(1)
    function, whole = _score_mods()[name]
    q, k, v = _inputs()
    energy, seen = r.Modified(r.ScaledDot(), function), _table(_mask_mods()["documents"][1])
    for mask, table in ((None, None), (_mask_mods()["documents"][0], seen)):
        truth = _formula(q, k, v, table, whole(q @ k.mT / D**0.5))
        for backend in ("auto", "reference", "fused", "flex"):
            out, w = attend(q, k, v, energy=energy, mask=mask, backend=backend, weights=True)
            torch.testing.assert_close(out, truth, msg=lambda text, backend=backend: f"{backend}: {text}")
            torch.testing.assert_close(w.dense() @ v, truth)
            torch.testing.assert_close(w.tile(slice(2, 5), slice(None)) @ v, truth[..., 2:5, :])
    with pytest.raises(ValueError, match="not apply ScoreMod"):
        attend(q, k, v, energy=energy, backend="sdpa")


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_gradients_reach_what_a_score_mod_closes_over(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)  # several blocks
    q, k, v = _inputs(grad=True)
    slopes = torch.rand(H, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(B, H, T, D, dtype=torch.float64)
    energy = r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e - slopes[h] * (i - j).abs())
    out = attend(q, k, v, energy=energy, mask=r.causal(), backend=backend)
    i, j = torch.arange(T)[:, None], torch.arange(T)
    e = q @ k.mT / D**0.5 - slopes[:, None, None] * (i - j).abs()
    truth = _formula(q, k, v, (j <= i).expand(B, H, T, T), e)
    inputs = (q, k, v, slopes)
    torch.testing.assert_close(
        torch.autograd.grad(out, inputs, direction), torch.autograd.grad(truth, inputs, direction)
    )


def test_watch_records_functions_and_a_trace_has_the_mask(tmp_path) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, mask=_mask_mods()["global and local"][0])

    q, k, v = _inputs()
    with r.watch(model := Attention()) as seen:
        model(q, k, v)
    assert seen[0].fidelity().faithful
    seen.save(tmp_path / "trace")
    call = r.load_trace(tmp_path / "trace")[0]
    assert call.fidelity().faithful
    assert call.weights.energies.mask.seen is not None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mask": lambda i, j: i >= j}, TypeError, r"the function <lambda>.*or a function of \(b, h, q_idx, kv_idx\)"),
        ({"mask": lambda b, h, i, j: i - j}, TypeError, "returns one boolean.*returned torch.int64"),
        ({"mask": lambda b, h, i, j: torch.ones(3) > 0}, TypeError, r"returned torch.bool of shape \[3\]"),
    ],
)
def test_wrong_functions(arguments: dict, error, words: str) -> None:
    with pytest.raises(error, match=words):
        attend(*_inputs(), **arguments)


def test_wrong_modifiers_and_shapes() -> None:
    with pytest.raises(TypeError, match=r"functions of \(score, b, h, q_idx, kv_idx\).*takes neither"):
        r.Modified(r.Dot(), lambda e: 2 * e)
    with pytest.raises(TypeError, match=r"modifiers such as SoftCap\(50.0\)"):
        r.Modified(r.Dot(), r.SoftCap)
    with pytest.raises(TypeError, match=r"mask_mod takes a function of \(b, h, q_idx, kv_idx\)"):
        r.mask_mod(r.causal)
    with pytest.raises(TypeError, match=r"functions of \(b, h, q_idx, kv_idx\)"):
        r.causal() & (lambda i, j: i >= j)
    energy = r.Modified(r.Dot(), lambda e, b, h, i, j: e.expand(3))
    with pytest.raises(ValueError, match=r"returns one number; it returned \[3\]"):
        attend(*_inputs(), energy=energy)
    deep = [torch.randn(2, 2, 2, 3, 4) for _ in range(3)]
    with pytest.raises(ValueError, match=r"one head index.*the leading shape is \[2, 2, 2\]"):
        attend(*deep, mask=lambda b, h, i, j: i >= j)
    with pytest.raises(ValueError, match="score_mod takes one batch index"):
        attend(*deep, energy=r.Modified(r.Dot(), lambda e, b, h, i, j: e))
