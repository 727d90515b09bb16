"""Properties that must hold for any shape, dtype, stride, mask and backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import regard as r
from regard import attend
from tests.support.attention_cases import city_block
from tests.support.random_examples import EXAMPLES

settings.load_profile(EXAMPLES)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
ENERGIES = {
    "scaled": lambda d, t: r.ScaledDot(),
    "cosine": lambda d, t: r.Cosine(),
    "gaussian": lambda d, t: r.Gaussian(2.0),
    "additive": lambda d, t: r.Additive(d, d, 5).to(t),
    "own": lambda d, t: city_block,
}
NORMALIZERS = [r.Softmax(), r.Softmax(0.5), r.Sparsemax(), r.Entmax(1.5), r.Hard()]


@st.composite
def problems(draw, backends=("auto", "reference", "sdpa", "flex", "fused")):
    """Inputs of any shape, dtype and stride, with arguments of attend that their backend can do."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    queries, keys, width, values = (draw(st.integers(1, 9)) for _ in range(4))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    tensors = []
    for length, size in ((queries, width), (keys, width), (keys, values)):
        x = torch.randn(*batch, length, size).to(dtype)
        if draw(st.booleans()):  # another stride, the same numbers
            x = x.mT.contiguous().mT if draw(st.booleans()) else torch.stack([x, x], -1)[..., 0]
        tensors.append(x)
    backend = draw(st.sampled_from(backends))
    dots = backend in ("sdpa", "flex")
    energy = draw(st.sampled_from(["scaled", "cosine"] if dots else list(ENERGIES)))
    arguments = {
        "energy": ENERGIES[energy](width, dtype),
        "normalize": draw(st.sampled_from(NORMALIZERS[: 2 if dots else None])),
        "backend": backend,
    }
    return tensors, arguments


@st.composite
def some_mask(draw, batch: tuple[int, ...], queries: int, keys: int) -> r.Mask:
    lengths = torch.randint(0, keys + 1, batch[:1])
    leaf = st.sampled_from(
        [
            r.causal(),
            r.causal(keys - queries),
            r.window(2),
            r.padding(lengths),
            r.prefix(min(2, keys)),
            r.documents(torch.arange(queries) // 2, torch.arange(keys) // 2),
            r.dense(torch.rand(queries, keys) > 0.5),
        ]
    )
    masks = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=3,
    )
    return draw(masks)


def _shape(tensors) -> tuple[tuple[int, ...], int, int]:
    q, k, _ = tensors
    return tuple(q.shape[:-2]), q.shape[-2], k.shape[-2]


@given(problems(), st.data())
def test_rows_sum_to_one_or_zero_where_nothing_is_seen(problem, data) -> None:
    tensors, arguments = problem
    mask = data.draw(some_mask(*_shape(tensors)))
    with torch.no_grad():
        z, w = attend(*tensors, mask=mask, weights=True, **arguments)
    seen = mask.dense(*_shape(tensors), torch.device("cpu")).expand(w.shape).any(-1)
    total = w.tile(slice(None), slice(None)).sum(-1)
    torch.testing.assert_close(total, seen.to(total.dtype), rtol=0, atol=1e-4)
    assert (z[~seen] == 0).all()
    assert torch.isfinite(z).all()


@given(problems(), st.data())
def test_backends_agree_with_the_reference_in_float64(problem, data) -> None:
    tensors, arguments = problem
    mask = data.draw(some_mask(*_shape(tensors)))
    dtype = tensors[0].dtype
    energy = arguments["energy"]
    exact = energy.double() if isinstance(energy, torch.nn.Module) else energy
    with torch.no_grad():
        truth = attend(
            *(x.double() for x in tensors),
            energy=exact,
            normalize=arguments["normalize"],
            mask=mask,
            backend="reference",
        )
        # In low precision a near tie may fall either way, and Hard follows.
        assume(dtype == torch.float64 or not isinstance(arguments["normalize"], r.Hard))
        energy = exact.to(dtype) if isinstance(exact, torch.nn.Module) else exact
        z = attend(*tensors, mask=mask, **{**arguments, "energy": energy})
    torch.testing.assert_close(z.double(), truth, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@given(problems(), st.integers(0, 2**31))
def test_permuting_keys_with_values_changes_nothing(problem, seed: int) -> None:
    (q, k, v), arguments = problem
    assume(not isinstance(arguments["normalize"], r.Hard))  # of two keys that tie it takes the first
    order = torch.randperm(k.shape[-2], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        one, two = (attend(q, *kv, **arguments) for kv in ((k, v), (k[..., order, :], v[..., order, :])))
    torch.testing.assert_close(one, two, rtol=TOLERANCE[q.dtype], atol=2 * TOLERANCE[q.dtype])


@given(problems(), st.data())
def test_the_future_cannot_reach_the_past(problem, data) -> None:
    (q, k, v), arguments = problem
    cut = data.draw(st.integers(0, k.shape[-2] - 1))
    later_k, later_v = k.clone(), v.clone()
    later_k[..., cut:, :] += 3
    later_v[..., cut:, :] -= 7
    with torch.no_grad():
        one, two = (attend(q, *kv, mask=r.causal(), **arguments) for kv in ((k, v), (later_k, later_v)))
    # Not to the bit: the clones have other strides, and matrix products of other strides round otherwise.
    rounding = 16 * torch.finfo(q.dtype).eps
    torch.testing.assert_close(one[..., :cut, :], two[..., :cut, :], rtol=rounding, atol=rounding)


@given(problems(), st.integers(1, 5))
def test_padding_cannot_change_the_result(problem, more: int) -> None:
    (q, k, v), arguments = problem
    longer = [torch.cat([x, 100 * torch.randn(*x.shape[:-2], more, x.shape[-1]).to(x.dtype)], -2) for x in (k, v)]
    lengths = torch.full(q.shape[:-2][:1], k.shape[-2])
    with torch.no_grad():
        plain, padded = attend(q, k, v, **arguments), attend(q, *longer, mask=r.padding(lengths), **arguments)
    torch.testing.assert_close(padded, plain, rtol=TOLERANCE[q.dtype], atol=2 * TOLERANCE[q.dtype])


@pytest.mark.parametrize("backend", ["reference", "fused"])
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_look_up_gives_a_value_between_its_values(backend: str, queries: int, keys: int, seed: int) -> None:
    torch.manual_seed(seed)
    q, k, v = torch.randn(queries, 2), torch.randn(keys, 2), torch.randn(keys, 1)
    z = attend(q, k, v, energy=r.InverseDistance(), normalize=r.Proportional(), backend=backend)
    assert (z >= v.min() - 1e-5).all()
    assert (z <= v.max() + 1e-5).all()
    exact = attend(k, k, v, energy=r.InverseDistance(), normalize=r.Proportional(), backend=backend)
    torch.testing.assert_close(exact, v)
