"""Attention that a module writes out, in any order of axes: the weights it used, proved by the product with values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from regard import load_trace, note, watch
from regard.seeing import trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from regard import Seen

B, H, Q, K, D = 2, 3, 5, 7, 4


class Block(nn.Module):
    """A module whose name says nothing."""

    def __init__(self, function: Callable[..., Tensor], heads: int | None = None) -> None:
        super().__init__()
        self.function = function
        if heads is not None:
            self.num_heads = heads

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)


def seen_of(function: Callable[..., Tensor], *x: Tensor, heads: int | None = None, training: bool = False) -> Seen:
    model = Block(function, heads).train(training)
    with torch.no_grad(), watch(model) as seen:
        model(*(x or inputs()))
    return seen


def softmax(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(softmax(q, k).view(B * H, Q, K), v.reshape(B * H, K, D))


def merged_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


def transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mT @ softmax(q, k).mT


def over_first_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhkq,bhkd->bqhd", torch.softmax(k @ q.mT, dim=2), v)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bqkh", q, k).softmax(2)
    return torch.einsum("bqkh,bhkd->bqhd", weights, v)


def in_pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = softmax(q, k)
    return weights[..., :3] @ v[:, :, :3] + weights[..., 3:] @ v[:, :, 3:]


def copied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k).double().contiguous() @ v.double()


def ellipsis_(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("...qk,...kd->...qd", softmax(q, k), v)


WAYS: dict[str, Callable[..., Tensor]] = {
    "product": lambda q, k, v: softmax(q, k) @ v,
    "matmul": lambda q, k, v: torch.matmul(softmax(q, k), v),
    "method": lambda q, k, v: softmax(q, k).matmul(v),
    "dropout, not training": lambda q, k, v: nn.functional.dropout(softmax(q, k), 0.5, False) @ v,
    "heads merged": merged,
    "heads merged before": merged_before,
    "transposed": transposed,
    "over the third axis": over_first_axis,
    "heads last": heads_last,
    "in pieces": in_pieces,
    "copied": copied,
    "ellipsis": ellipsis_,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_softmax_followed_by_a_product_with_values_is_attention_and_proved(way: str) -> None:
    q, k, v = inputs()
    seen = seen_of(WAYS[way], q, k, v, heads=H)
    (call,) = seen
    assert call.shape == (B, H, Q, K)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)).float(), softmax(q, k))
    assert call.fidelity().error is not None
    assert seen.faithful is True, seen


def test_blocks_of_five_axes_are_shown_with_five_axes() -> None:
    q, k, v = torch.randn(B, H, 6, Q, D), torch.randn(B, H, 6, K, D), torch.randn(B, H, 6, K, D)
    seen = seen_of(lambda q, k, v: softmax(q, k) @ v, q, k, v, heads=H)
    assert seen[0].shape == (B, H, 6, Q, K)
    assert seen.faithful is True
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), softmax(q, k))


def test_a_sink_that_is_left_out_takes_its_share() -> None:
    def with_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = torch.cat([q @ k.mT, torch.ones(B, H, Q, 1)], dim=-1)
        return e.softmax(-1)[..., :-1] @ v

    q, k, v = inputs()
    seen = seen_of(with_sink, q, k, v)
    assert seen.faithful is True
    wanted = torch.cat([q @ k.mT, torch.ones(B, H, Q, 1)], dim=-1).softmax(-1)[..., :-1]
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), wanted)


def test_weights_are_those_before_dropout() -> None:
    q, k, v = inputs()
    seen = seen_of(lambda q, k, v: nn.functional.dropout(softmax(q, k), 0.25, True) @ v, q, k, v, training=True)
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), softmax(q, k))
    assert seen[0].dropout == pytest.approx(0.25)
    assert seen.faithful is None


def gate(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) * q


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, dim=-2) @ v


def entropy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = softmax(q, k)
    return -(w * (w + 1e-9).log()).sum(-1)


def without_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = softmax(q, k)
    return (w * (torch.arange(K) < K - 1)).sum(-1)


@pytest.mark.parametrize("function", [gate, over_queries, entropy, without_last])
def test_a_softmax_without_such_a_product_is_no_attention(function: Callable[..., Tensor]) -> None:
    assert not len(seen_of(function))


def test_an_attention_module_whose_softmax_has_no_product_is_named() -> None:
    class GatedAttention(Block):
        """The softmax is that of a gate."""

    model = GatedAttention(gate, heads=2)
    with watch(model) as seen:
        model(*inputs())
    assert "GatedAttention: its softmax over 4 entries" in seen.missed[0]


def test_a_growing_cache_is_one_generation(tmp_path: Path) -> None:
    model = Block(lambda q, k, v: softmax(q, k) @ v)
    q, k, v = inputs()
    with watch(model) as seen:
        model(q[..., :2, :], k[..., :5, :], v[..., :5, :])
        model(q[..., 2:3, :], k[..., :6, :], v[..., :6, :])
        model(q[..., 3:4, :], k, v)
    (call,) = seen
    assert call.steps == [2, 1, 1]
    assert seen.faithful is True
    wanted = torch.zeros(B, H, 4, K)
    for rows, keys in ((slice(0, 2), 5), (slice(2, 3), 6), (slice(3, 4), 7)):
        wanted[:, :, rows, :keys] = softmax(q[:, :, rows], k[:, :, :keys])
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), wanted)
    seen.save(tmp_path / "trace")
    (back,) = load_trace(tmp_path / "trace")
    assert back.steps == [2, 1, 1]
    torch.testing.assert_close(back.weights.dense(), call.weights.dense(), rtol=0, atol=0)


def test_a_note_replaces_the_softmax_it_describes() -> None:
    def noted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.softmax(q @ k.mT / D**0.5, -1) @ v
        note(q, k, v, out)
        return out

    q, k, v = inputs()
    model = Block(noted)
    with watch(model) as seen:
        model(q[..., :2, :], k[..., :6, :], v[..., :6, :])
        model(q[..., 2:3, :], k, v)
    (call,) = seen
    assert call.origin == "regard.attend"
    assert call.steps == [2, 1]


def test_a_trace_keeps_weights_that_do_not_sum_to_one(tmp_path: Path) -> None:
    seen = seen_of(lambda q, k, v: softmax(q, k)[..., :-1] @ v[..., :-1, :])
    seen.save(tmp_path / "trace")
    (back,) = load_trace(tmp_path / "trace")
    torch.testing.assert_close(
        back.weights.tile(slice(None), slice(None)), seen[0].weights.tile(slice(None), slice(None))
    )
    assert back.fidelity().faithful


def masked_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights of padding set to zero after the softmax (DeBERTa's XSoftmax)."""
    weights = softmax(q, k)
    weights.masked_fill_(torch.arange(K) > 4, 0)
    return weights @ v


def test_weights_set_to_zero_in_place_are_those_of_the_product() -> None:
    seen = seen_of(masked_in_place)
    assert seen.faithful
    w = seen[0].weights.tile(slice(None), slice(None))
    assert not w[..., 5:].any()
    torch.testing.assert_close(w[..., :5], softmax(*inputs()[:2])[..., :5])
    # In training it may be dropout, after which the weights are no longer known.
    (message,) = seen_of(masked_in_place, training=True).missed
    assert "changed in place between the softmax and the product" in message


def test_whole_matrices_are_named_with_their_size() -> None:
    (message,) = seen_of(WAYS["product"]).matrices
    assert "840 B" in message
    assert "in the module's own code" in message


@pytest.mark.parametrize("options", [{}, {"limit": "1GB"}, {"keep": "cpu"}], ids=["none", "limit", "cpu"])
def test_matrices_beyond_the_limit_are_named(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MATRICES", 2 * B * H * Q * K * 4)
    model, x = Block(WAYS["product"]), inputs()
    with torch.no_grad(), watch(model, **options) as seen:
        for _ in range(3):
            model(*x)
    assert len(seen) == (3 if options else 2)
    if not options:
        (message,) = seen.missed
        assert message.startswith("Block: its weights, 840 B, are not held")
        assert "limit=" in message


def test_a_default_device_and_a_thread_change_nothing() -> None:
    model, x = Block(WAYS["product"]), inputs()
    torch.set_default_device("cpu")
    try:
        with ThreadPoolExecutor(1) as pool, torch.no_grad(), watch(model) as seen:
            assert pool.submit(lambda: softmax(*x[:2]) @ x[2]).result() is not None
            model(*x)
    finally:
        torch.set_default_device(None)
    assert len(seen) == 1
    assert seen.faithful is True


# What multiplies the values is shown, and not what the softmax returned


OPEN = torch.arange(K) < 5


def masked_and_divided(q: Tensor, k: Tensor) -> Tensor:
    """AllenNLP's masked softmax: its divisor is a sum of weights times a mask."""
    w = softmax(q, k) * OPEN
    return w / (w.sum(-1, keepdim=True) + 1e-13)


def filled_and_divided(q: Tensor, k: Tensor) -> Tensor:
    w = softmax(q, k).masked_fill(~OPEN, 0)
    return w / w.sum(-1, keepdim=True)


def with_a_prior(q: Tensor, k: Tensor) -> Tensor:
    w = softmax(q, k) * torch.exp(-((torch.arange(K) - 3.0) ** 2) / 2)
    return w / w.sum(-1, keepdim=True)


def after_its_entropy(q: Tensor, k: Tensor) -> Tensor:
    w = softmax(q, k)
    (w * (w + 1e-9).log()).sum(-1)
    return w * OPEN


def after_its_mean_place(q: Tensor, k: Tensor) -> Tensor:
    w = softmax(q, k)
    w @ torch.arange(float(K))[:, None]
    return w.square() / w.square().sum(-1, keepdim=True)


def largest_only(q: Tensor, k: Tensor) -> Tensor:
    w = softmax(q, k)
    w @ torch.ones(K, 1)
    return torch.where(w >= w.topk(3).values[..., -1:], w, 0.0)


def talking_heads(q: Tensor, k: Tensor) -> Tensor:
    """Shazeer et al. 2020: heads are mixed after the softmax."""
    mix = torch.randn(H, H, generator=torch.Generator().manual_seed(3))
    return torch.einsum("bhqk,hg->bgqk", softmax(q, k), mix)


def of_two_softmaxes(q: Tensor, k: Tensor) -> Tensor:
    """A gate between content and place (d'Ascoli et al. 2021, ConViT); the difference of two (Ye et al. 2024)."""
    return softmax(q, k) - 0.4 * softmax(q.flip(-1), k)


CHANGED = [
    masked_and_divided,
    filled_and_divided,
    with_a_prior,
    after_its_entropy,
    after_its_mean_place,
    largest_only,
    talking_heads,
    of_two_softmaxes,
]


@pytest.mark.parametrize("make", CHANGED)
@pytest.mark.parametrize("training", [True, False])
def test_what_multiplies_the_values_is_shown(make: Callable[[Tensor, Tensor], Tensor], training: bool) -> None:
    q, k, v = inputs()
    seen = seen_of(lambda q, k, v: make(q, k) @ v, heads=H, training=training)
    (call,) = seen
    torch.testing.assert_close(call.weights.dense(), make(q, k))
    assert call.dropout == 0
    assert call.v.shape == v.shape
    assert seen.faithful is True
    assert "changed what its softmax returned" in call.matrix


def test_a_mask_over_one_row_is_no_dropout() -> None:
    q, k, v = inputs()
    seen = seen_of(lambda q, k, v: filled_and_divided(q, k) @ v, q[:1, :1, :1], k[:1, :1], v[:1, :1], training=True)
    torch.testing.assert_close(seen[0].weights.dense(), filled_and_divided(q, k)[:1, :1, :1])
    assert seen[0].dropout == 0


def by_heads(w: Tensor, v: Tensor) -> Tensor:
    return torch.cat([w[:, h] @ v[:, h] for h in range(H)], -1)


def by_entries(w: Tensor, v: Tensor) -> Tensor:
    return torch.stack([w[b] @ v[b] for b in range(B)])


def by_both(w: Tensor, v: Tensor) -> Tensor:
    return torch.stack([w[b, h] @ v[b, h] for b in range(B) for h in range(H)])


def by_queries(w: Tensor, v: Tensor) -> Tensor:
    return torch.cat([w[..., i : i + 1, :] @ v for i in range(Q)], -2)


def by_queries_and_keys(w: Tensor, v: Tensor) -> Tensor:
    rows = [w[..., i : i + 1, :4] @ v[..., :4, :] + w[..., i : i + 1, 4:] @ v[..., 4:, :] for i in range(Q)]
    return torch.cat(rows, -2)


@pytest.mark.parametrize("way", [by_heads, by_entries, by_both, by_queries, by_queries_and_keys])
def test_a_product_of_slices_is_seen_whole(way: Callable[[Tensor, Tensor], Tensor]) -> None:
    q, k, v = inputs()
    seen = seen_of(lambda q, k, v: way(softmax(q, k), v), heads=H)
    (call,) = seen
    torch.testing.assert_close(call.weights.dense(), softmax(q, k))
    torch.testing.assert_close(call.v, v)
    assert seen.faithful is True


def test_slices_that_were_not_multiplied_are_not_shown() -> None:
    q, k, _v = inputs()
    seen = seen_of(lambda q, k, v: softmax(q, k)[1] @ v[1])
    torch.testing.assert_close(seen[0].weights.dense(), softmax(q, k)[1])
    assert seen.faithful is True

    def own_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = softmax(q, k)
        return torch.cat([w[..., i : i + 1, :] @ (v + i) for i in range(Q)], -2)

    (message,) = seen_of(own_values).missed
    assert "its queries have values of their own" in message


# Heads and batch


def stacked_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[heads · batch, T, D], as (head, entry)."""
    q, k, v = (x.transpose(0, 1).contiguous().view(H * B, -1, D) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


def heads_before_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The MSA Transformer's (Rao et al. 2021)."""
    q, k, v = (x.permute(2, 0, 1, 3).contiguous() for x in (q, k, v))  # [T, B, H, D], as projections leave them
    weights = torch.einsum("inhd,jnhd->hnij", q, k).softmax(-1)
    return torch.einsum("hnij,jnhd->inhd", weights, v)


def merged_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """fairseq's: [T, B · heads, D] transposed."""
    q, k, v = (x.permute(2, 0, 1, 3).contiguous().view(-1, B * H, D).transpose(0, 1) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


@pytest.mark.parametrize("way", [stacked_heads, heads_before_batch, merged_features])
def test_heads_and_batch_are_not_exchanged(way: Callable[..., Tensor]) -> None:
    q, k, _v = inputs()
    seen = seen_of(way, heads=H)
    (call,) = seen
    assert call.shape == (B, H, Q, K)
    torch.testing.assert_close(call.head(2, 1).dense(), softmax(q, k)[1, 2])
    assert seen.faithful is True


def test_where_nothing_tells_heads_from_batch_they_stay_one_axis() -> None:
    def chunks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (torch.cat(x.unbind(1)) for x in (q, k, v))
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)

    q, k, _v = inputs()
    seen = seen_of(chunks, heads=H)
    assert seen[0].shape == (H * B, Q, K)
    torch.testing.assert_close(seen[0].weights.dense(), softmax(q, k).transpose(0, 1).flatten(0, 1))
    assert seen.faithful is True


@pytest.mark.parametrize("heads", [H, None])
def test_heads_that_share_keys_and_values(heads: int | None) -> None:
    def multi_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])

    q, k, _v = inputs()
    seen = seen_of(multi_query, heads=heads)
    (call,) = seen
    assert call.shape == ((B, H, Q, K) if heads else (B, H * Q, K))
    torch.testing.assert_close(call.weights.dense().reshape(B, H, Q, K), softmax(q, k[:, :1]))
    assert seen.faithful is True


class PooledAttention(nn.Module):
    """A module that calls a function, and may have other attention inside."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.function(scores, v)


def seen_of_scores(function: Callable[..., Tensor], batch: int = B) -> Any:
    torch.manual_seed(0)
    scores, v = torch.randn(batch, K), torch.randn(batch, K, D)
    model = PooledAttention(function)
    with torch.no_grad(), watch(model) as seen:
        out = model(scores, v)
    torch.testing.assert_close(out, model(scores, v), rtol=0, atol=0)
    return seen, scores.softmax(-1)


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "column of weights": lambda s, v: (s[..., None].softmax(1) * v).sum(1),
    "weights last": lambda s, v: (v.mT * s.softmax(-1)[:, None]).sum(dim=-1, keepdim=True),
    "torch.sum": lambda s, v: torch.sum(torch.mul(s.softmax(-1).unsqueeze(-1), v), dim=[1]),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", SUMS)
def test_weights_times_values_summed_are_attention_and_proved(way: str, batch: int) -> None:
    seen, weights = seen_of_scores(SUMS[way], batch)
    (call,) = seen
    assert call.shape == (batch, 1, K)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None))[:, 0], weights)
    assert seen.faithful is True
    assert seen.missed == []


def test_several_queries() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, 3, K, D) for _ in range(3))
    model = PooledAttention(lambda q, v: ((q @ k.mT).softmax(-1)[..., None] * v[..., None, :, :]).sum(-2))
    with torch.no_grad(), watch(model) as seen:
        model(q, v)
    assert seen[0].shape == (B, 3, K, K)
    assert seen.faithful is True
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), (q @ k.mT).softmax(-1))


NOT_ATTENTION: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a gate": lambda s, v: s.softmax(-1)[..., None] * v,
    "a sum over another axis": lambda s, v: (s.softmax(-1)[..., None] * v).sum(-1),
    "a softmax over one entry": lambda s, v: (s[..., None].softmax(-1) * v).sum(1),
}


@pytest.mark.parametrize("way", NOT_ATTENTION)
def test_a_gate_is_named_and_not_shown(way: str) -> None:
    seen, _ = seen_of_scores(NOT_ATTENTION[way])
    assert len(seen) == 0
    assert "is not followed by a product with values" in seen.missed[0]


def test_weights_are_masked_before_a_product_of_matrices() -> None:
    seen, weights = seen_of_scores(lambda s, v: (s.softmax(-1) * torch.ones(K))[:, None] @ v)
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None))[:, 0], weights)
    assert seen.faithful is True


def test_attention_of_torch_behind_a_softmax_is_seen() -> None:
    model = PooledAttention(lambda s, v: model.inner(v * s.softmax(-1)[..., None], v, v)[0])
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(B, K), torch.randn(B, K, D))
    assert [call.name for call in seen] == ["inner"]
    assert seen[0].fidelity().faithful is True
