"""watch: what is not proven is not called faithful, and a proof is one that wrong weights do not pass."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import regard
from regard import Additive, attend, dense, note, padding, watch
from regard.seeing import taps
from regard.seeing.call import Call, dot_energies
from regard.seeing.trace import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


def seen_of(function: Callable[..., Any], *given: Tensor, keep: str | None = None) -> Seen:
    model = Attention(function)
    with torch.no_grad(), watch(model, keep=keep) as seen:
        model(*given)
    return seen


def heads(*, queries: int = 6, keys: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 2, queries, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)


# Nothing is faithful that was not measured


def test_what_was_not_measured_is_unproven_and_not_faithful() -> None:
    q, k, v = heads()
    assert Seen().faithful is None
    dropped = seen_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), q, k, v)
    unseen = seen_of(lambda q, k, v: torch.ops.aten.matmul(torch.softmax(q @ k.mT, -1), v), q, k, v)
    for seen in (dropped, unseen):
        assert seen.faithful is None
        assert seen.unproven == seen.calls
        assert "?" in repr(seen)


@pytest.mark.parametrize("what", ["q", "k", "v", "mask", "bias"])
def test_whatever_is_changed_in_place_is_noticed(what: str) -> None:
    q, k, v = heads()
    given = {"q": q, "k": k, "v": v, "mask": torch.ones(6, 6).tril().bool(), "bias": torch.randn(6, 6)}
    mask = given["mask"] if what == "mask" else given["bias"]
    seen = seen_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v)
    given[what].copy_(given[what].flip(-1))
    assert seen.faithful is False
    assert "changed in place" in repr(seen)
    with pytest.raises(RuntimeError, match="in place"):
        seen[0].weights  # noqa: B018
    kept = seen_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v, keep="cpu")
    given[what].copy_(given[what].flip(-1))
    assert kept.faithful


@pytest.mark.parametrize("keep", [None, "cpu"])
def test_lengths_changed_since_are_not_those_the_weights_are_of(keep: str | None) -> None:
    lengths, (q, k, v) = torch.tensor([3, 4]), heads()
    seen = seen_of(lambda q, k, v: attend(q, k, v, mask=padding(lengths)), q, k, v, keep=keep)
    before = seen[0].weights.dense()
    assert seen.faithful
    lengths.add_(2)
    seen[0].forget()
    assert seen.faithful
    assert seen[0].weights.dense().equal(before)


def test_a_matrix_inside_a_mask_is_sealed_and_copied() -> None:
    closed, (q, k, v) = torch.ones(6, 6).tril().bool(), heads()
    by_reference, copied = (
        seen_of(lambda q, k, v: attend(q, k, v, mask=padding(5) & ~dense(closed)), q, k, v, keep=keep)
        for keep in (None, "cpu")
    )
    before = copied[0].weights.dense()
    assert by_reference.faithful
    closed.logical_not_()
    assert by_reference.faithful is False
    with pytest.raises(RuntimeError, match="in place"):
        by_reference[0].weights  # noqa: B018
    copied[0].forget()
    assert copied.faithful
    assert copied[0].weights.dense().equal(before)


def rows_in_another_order(x: Tensor) -> None:
    x.copy_(x.flip(-2).clone())


@pytest.mark.parametrize("what", ["q", "k and v", "mask", "one row of q", "heads of k and v"])
@pytest.mark.parametrize("asked", [True, False])
def test_in_inference_mode_a_change_is_noticed_by_a_fingerprint(what: str, asked: bool) -> None:
    with torch.inference_mode():
        q, k, v = heads(queries=70, keys=70)
        mask = torch.rand(70, 70) > 0.5
        seen = seen_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v)
        assert not asked or seen.faithful
        match what:
            case "q":
                q.mul_(3)
            case "k and v":  # W·v is the same
                rows_in_another_order(k)
                rows_in_another_order(v)
            case "mask":
                mask[2] = ~mask[2]
            case "one row of q":  # which is not among those compared
                q[..., 2, :] *= -1
            case "heads of k and v":
                k.copy_(k.flip(1).clone())
        assert seen.faithful is False
        assert "changed in place" in repr(seen)
        with pytest.raises(RuntimeError, match="in place"):
            seen[0].weights  # noqa: B018


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_numpy_changes_after_the_proof_is_noticed(mode: Callable[[], Any]) -> None:
    with mode():
        q, k, v = heads()
        seen = seen_of(lambda *given: F.scaled_dot_product_attention(*given), q, k, v)
        assert seen.faithful
        q.numpy()[:] *= 3
        assert seen.faithful is False


def test_weights_of_attend_notice_a_change_in_inference_mode() -> None:
    with torch.inference_mode():
        q, k, v = heads()
        _, w = attend(q, k, v, weights=True)
        w.dense()
        q.mul_(3)
        with pytest.raises(RuntimeError, match="in place"):
            w.dense()


class Buffer(nn.Module):
    """A preallocated cache that every step fills further."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.k, self.v, self.filled = torch.zeros(1, 2, size, 8), torch.zeros(1, 2, size, 8), 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new = slice(self.filled, self.filled + q.shape[-2])
        self.k[..., new, :], self.v[..., new, :], self.filled = k, v, new.stop
        mask = (torch.arange(self.k.shape[-2]) < new.stop).expand(1, 1, q.shape[-2], -1)
        return F.scaled_dot_product_attention(q, self.k, self.v, mask)

    def compact(self) -> None:
        order = torch.tensor([0, 3, 1, 4, 2, 5])
        for x in (self.k, self.v):
            x[..., :6, :] = x[..., order, :].clone()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("when", [1, 2, 3, 4, "after the watch", "never"])
def test_rows_of_a_cache_in_another_order_are_noticed(mode: Callable[[], Any], when: object) -> None:
    with mode():
        model = Buffer(16)
        with watch(model) as seen:
            model(*torch.randn(3, 1, 2, 6, 8))
            for step in range(1, 5):
                model(*torch.randn(3, 1, 2, 1, 8))
                if when == step:
                    model.compact()
        if when == "after the watch":
            model.compact()
        if when == "never":
            assert seen[0].steps == [6, 1, 1, 1, 1]
        assert seen.faithful is (when == "never")


@pytest.mark.parametrize("length", [6, 64, 65])
def test_an_output_the_model_changes_in_place_is_known_as_it_was(length: int) -> None:
    seen = seen_of(lambda q, k, v: attend(q, k, v).mul_(2), *heads(queries=length))
    assert seen.faithful
    multihead = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, length, 8)
    for function in (
        lambda x: multihead(x, x, x)[0].mul_(2),
        lambda x: multihead(x, x, x, need_weights=False)[0].mul_(2),
    ):
        model = Attention(function)
        model.inner = multihead
        for training in (True, False):
            with torch.no_grad(), watch(model.train(training)) as seen:
                model(x)
            assert len(seen) == 1
            assert seen.faithful, seen


# Nothing of this process outlives the call it belongs to


@contextmanager
def _default_dtype(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("strange", ["bfloat16", "meta", "fake"])
def test_the_outputs_kept_are_the_same_whatever_else_is_on(strange: str) -> None:
    around = {"bfloat16": _default_dtype(torch.bfloat16), "meta": torch.device("meta"), "fake": FakeTensorMode()}
    length = {"bfloat16": 1024, "meta": 1002, "fake": 1003}[strange]  # of its own: nothing is known of it yet
    model = Attention(lambda *given: F.scaled_dot_product_attention(*given))
    with torch.no_grad(), around[strange], watch(model) as seen:
        q = torch.randn(1, 2, length, 8, dtype=torch.float32, device="cpu")
        model(q, q, q)
    assert len(seen) == 1
    if strange != "fake":
        assert seen.faithful
    q = torch.randn(1, 2, length, 8)
    assert seen_of(lambda *given: F.scaled_dot_product_attention(*given), q, q, q).faithful


def test_a_call_on_meta_tensors_is_one_call() -> None:
    q = torch.randn(1, 2, 5, 8, device="meta")
    assert [call.origin for call in seen_of(lambda *given: F.scaled_dot_product_attention(*given), q, q, q)] == [
        "sdpa, math"
    ]


@pytest.mark.parametrize("keep", [None, "cpu"])
@pytest.mark.parametrize("way", ["attend", "sdpa"])
def test_two_texts_that_begin_and_end_alike_are_not_one_generation(way: str, keep: str | None) -> None:
    """One query each over as many keys, as a generation's steps have when they look at another sequence."""
    torch.manual_seed(0)
    embed, query = nn.Embedding(20, 8), torch.randn(1, 1, 1, 8)

    def pool(ids: Tensor) -> Tensor:
        x = embed(ids)[:, None]
        return attend(query, x, x) if way == "attend" else F.scaled_dot_product_attention(query, x, x)

    model = Attention(pool)
    first, second = torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[1, 9, 10, 11, 2]])
    with torch.no_grad(), watch(model, keep=keep) as seen:
        for ids in (first, second, second):
            model(ids)
    assert [call.steps for call in seen] == [[1], [1, 1]]
    assert seen.faithful
    for call, ids in zip(seen, (first, second), strict=True):
        with torch.no_grad(), watch(model) as alone:
            model(ids)
        assert torch.allclose(call.weights.dense()[..., -1:, :], alone[0].weights.dense(), atol=1e-6)


def test_a_learned_part_of_the_energy_changed_since_is_noticed() -> None:
    energy = Additive(8, 8, 4)
    q, k, v = heads()
    seen = seen_of(lambda q, k, v: attend(q, k, v, energy=energy), q, k, v)
    with torch.no_grad():
        for x in energy.parameters():
            x.mul_(2)
    assert seen.faithful is False


def test_written_out_weights_are_those_that_were_used_though_the_energies_are_overwritten() -> None:
    q, k, v = heads()
    kept: list[Tensor] = []

    def careless(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = q @ k.mT
        w = e.softmax(-1)
        kept.append(w)
        e.zero_()
        return w @ v

    seen = seen_of(careless, q, k, v)
    torch.testing.assert_close(seen[0].weights.dense(), kept[0])
    again = seen_of(lambda q, k, v: torch.softmax(q @ k.mT, -1).zero_() @ v, q, k, v)
    assert again.faithful is not True
    assert "changed in place between the softmax and the product" in repr(again)  # the weights themselves


# Wrong weights do not pass


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [6, 128])
def test_a_missing_mask_is_detected_where_all_values_are_alike(kind: torch.dtype, length: int) -> None:
    q, k, v = (torch.randn(2, 4, length, 16, generator=torch.Generator().manual_seed(at)) for at in range(3))
    q, k, v = q.to(kind), k.to(kind), (v + 6).to(kind)

    def forgets(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        note(q, k, v, out)
        return out

    right, wrong = seen_of(forgets, q, k, v)
    assert right.fidelity().faithful, right.fidelity()
    assert wrong.fidelity().faithful is False, wrong.fidelity()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_behind_a_residual_it_is_measured_on_what_attention_adds(kind: torch.dtype) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True).eval().to(kind)
    with torch.no_grad():
        layer.self_attn.out_proj.weight.mul_(0.05)  # beside the residual attention hardly shows
    x = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(0)).to(kind) * 4
    with torch.no_grad(), watch(layer) as seen:
        layer(x)
    assert "fast path" in seen[0].origin
    fidelity = seen[0].fidelity()
    assert fidelity.faithful, fidelity
    assert fidelity.budget < 0.5 * {torch.float32: 1e-4, torch.bfloat16: 5e-2}[kind]


# Calls that are worked out later


def test_a_deferred_call_is_measured_on_few_rows() -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(1, 300, 16)
    with watch(model) as seen:
        model(x, x, x)
    assert seen[0].outputs()[1].shape == (1, 60, 16)  # every fifth of 300: at most 64
    assert seen.faithful


@pytest.mark.parametrize("fast", [True, False])
def test_a_deferred_call_is_copied_in_time(fast: bool, tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval() if fast else nn.MultiheadAttention(16, 4)
    x = torch.randn(2, 80, 16)
    inputs = (x,) if fast else (x, x, x)
    with torch.set_grad_enabled(not fast), watch(model) as plain:
        model(*inputs)
    expected = plain[0].weights.tile(slice(None), slice(None))
    with torch.set_grad_enabled(not fast), watch(model) as late, watch(model, keep="cpu") as seen:
        model(*inputs)
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1.5)
    assert torch.equal(seen[0].weights.tile(slice(None), slice(None)), expected)
    assert seen.faithful
    assert late.faithful is False
    assert "changed in place" in repr(late)
    pytest.importorskip("safetensors", reason="needs safetensors")
    late.save(tmp_path / "late")
    assert "changed in place" in regard.load_trace(tmp_path / "late").missed[0]
    seen.save(tmp_path / "seen")
    back = regard.load_trace(tmp_path / "seen")
    assert back[0].fidelity()[:2] == seen[0].fidelity()[:2]
    assert back.faithful is None, "it was measured before, and cannot be measured again"


# Comparisons that cannot tell


def of_other_queries(v: Tensor, *, causal: bool = False, rows: list[int] | None = None, wrong: bool = True) -> Call:
    """A call whose queries are not those that its output is of, if it is wrong."""
    q, k = torch.randn(2, 1, 2, 50, 16, generator=torch.Generator().manual_seed(0), dtype=v.dtype)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    other = 4 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1), dtype=v.dtype) if wrong else q
    masks = (regard.causal() if causal else None,)
    chosen = None if rows is None else torch.tensor(rows)
    out = out if rows is None else out[..., rows, :]
    return Call(out, energies=dot_energies(other, k, masks=masks), v=v, rows=chosen, name="attention")


VALUES = torch.randn(1, 2, 50, 16, generator=torch.Generator().manual_seed(2))
FIRST = VALUES[..., :1, :].expand_as(VALUES)


@pytest.mark.parametrize(
    ("v", "options"),
    [
        (VALUES * 0, {}),
        (FIRST, {}),
        (100 + 1e-4 * VALUES, {}),
        ((1 + 1e-3 * VALUES).bfloat16(), {}),
        ((VALUES * 1e-9).half(), {}),
        (torch.cat([VALUES[:, :1], FIRST[:, 1:]], 1), {"wrong": False}),  # one head of two
        (VALUES, {"causal": True, "rows": [0]}),
        (VALUES, {"causal": True, "rows": [0] * 50}),
    ],
)
def test_what_cannot_tell_is_no_proof(v: Tensor, options: dict[str, Any]) -> None:
    fidelity = of_other_queries(v, **options).fidelity()
    assert fidelity.error is not None
    assert fidelity.error < 1
    assert fidelity.faithful is None
    assert "alike" in fidelity.remark or "sees one key" in fidelity.remark


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e-3, 1, 1e18, 1e25, 1e37])
def test_the_size_of_values_decides_nothing(scale: float) -> None:
    assert of_other_queries(VALUES * scale).fidelity().faithful is False
    right = of_other_queries(VALUES * scale, wrong=False).fidelity()
    assert right.faithful is True
    assert right.error < 1e-5


def test_a_head_of_zeros_beside_others_is_not_proved_by_them() -> None:
    v = VALUES.clone()
    v[:, 1] = 0
    assert of_other_queries(v, wrong=False).fidelity().faithful is None
    assert of_other_queries(v).fidelity().faithful is False


def test_an_entry_of_one_token_beside_longer_ones_needs_no_proof() -> None:
    q, k, v = heads()
    seen = seen_of(lambda q, k, v: attend(q, k, v, mask=padding(torch.tensor([1, 6]))), q, k, v)
    assert seen.faithful
    alone = seen_of(lambda q, k, v: attend(q, k, v, mask=padding(1)), q, k, v)
    assert alone.faithful is None
    assert "sees one key" in repr(alone)


def test_how_many_rows_were_compared_is_said() -> None:
    q, k, v = heads(queries=300, keys=300)
    seen = seen_of(lambda *given: F.scaled_dot_product_attention(*given), q, k, v)
    assert "60 of 300" in repr(seen)
    assert of_other_queries(VALUES, rows=[3], wrong=False).fidelity().rows == 1


def test_the_error_of_an_output_rounded_to_zero_is_finite() -> None:
    q, k, v = (x.half() for x in heads())
    v = torch.full_like(v, 6e-8)
    z, w = attend(q, k, v, weights=True)
    assert w.fidelity(v, torch.zeros_like(z)).tolist() == [[1.0] * 2] * 2


# Hugging Face's eager attention


def eager(change: float, heads: int, shared: int, length: int, dropout: float = 0.0) -> tuple[Call, Tensor]:
    """An eager function as theirs are, whose energies are ours times `change`."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, length, 8, generator=g) for n in (heads, shared, shared))
    module = nn.Module().train(bool(dropout))
    kept: list[Tensor] = []

    def function(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
        k, v = (x.repeat_interleave(heads // shared, dim=1) for x in (k, v))
        w = F.softmax(q @ k.mT * options["scaling"] * change, dim=-1)
        kept.append(w)
        w = F.dropout(w, dropout, bool(dropout))
        return (w @ v).transpose(1, 2), w

    model = nn.ModuleList([module])
    with torch.no_grad(), watch(model) as seen:
        taps._attention(function, "eager", module, q, k, v, None, scaling=0.3, dropout=dropout)
    assert not seen.missed
    return seen[0], kept[0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("change", [1.0, 1.3])
def test_eager_attention_is_shown_as_it_is_in_groups_at_length_and_with_dropout(change: float, dropout: float) -> None:
    call, theirs = eager(change, heads=4, shared=2, length=400, dropout=dropout)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), theirs, rtol=1e-4, atol=1e-7)
    assert call.origin == ("eager" if change == 1.0 else "eager, its own way")
    assert call.fidelity().faithful is (None if dropout else True)


def test_what_was_understood_in_one_watch_is_not_taken_for_granted_in_the_next() -> None:
    for change, origin in ((1.0, "eager"), (1.3, "eager, its own way")):
        assert eager(change, 2, 2, 6)[0].origin == origin


# Which softmax is attention


def test_a_softmax_over_words_is_not_attention() -> None:
    class AttentiveLM(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax = nn.Softmax(dim=-1)

        def forward(self, x: Tensor) -> Tensor:
            return self.softmax(x)

    x = torch.randn(2, 5, 9)
    for model, calls in ((AttentiveLM(), 0), (nn.ModuleDict({"self_attn": Inner(), "readout": Inner()}), 1)):
        with watch(model) as seen:
            for part in model.values() if isinstance(model, nn.ModuleDict) else [model]:
                part(x)
        assert len(seen) == calls, seen


class MaskedAttention(nn.Module):
    """Attention whose mask is a buffer that its owner may fill anew."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


@pytest.mark.parametrize("period", [2, 4, 8])
@pytest.mark.parametrize("length", [66, 100, 128, 256, 512])
def test_rows_that_are_wrong_at_regular_distances_are_noticed(length: int, period: int) -> None:
    with torch.inference_mode():  # where no version counter tells that the mask was changed
        x, mask = torch.randn(1, 2, length, 8), torch.ones(length, length, dtype=torch.bool)
        model = MaskedAttention(mask)
        with watch(model) as seen:
            model(x)
        mask[::period, length // 2 :] = False
        assert seen.faithful is False
