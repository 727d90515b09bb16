"""prove: every way between tokens that was not seen is located by the experiment, and no other place is named."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as stored

import regard

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

HEADS, WIDTH, TOKENS = 4, 32, 11


class Block(nn.Module):
    """A layer that attends by `attend(q, k, v)` of [B, heads, T, D], with or without a residual."""

    def __init__(self, attend: Attend, residual: bool = True) -> None:
        super().__init__()
        self.attend, self.residual = attend, residual
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        z = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + z if self.residual else z


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scores(q, k)).softmax(-1) @ v


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def proof(layer: nn.Module, *around: nn.Module, tokens: int = TOKENS) -> regard.Coverage:
    """The coverage of a model of three layers, the middle one of which is in question; or of `around` it."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(causal), layer, *(around or (Block(causal),))).eval()
    x = torch.randn(2, tokens, WIDTH)
    with torch.no_grad():
        before = model(x)
        coverage = regard.prove(model, x)
        assert torch.equal(model(x), before)
    return coverage


def places(coverage: regard.Coverage) -> list[str]:
    return [place.module for place in coverage.unseen]


def verdicts(coverage: regard.Coverage, module: str) -> set[str]:
    return {verdict for name, verdict, _ in coverage.verdicts if name == module}


@torch.jit.script
def scripted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


@torch.jit.script
def scripted_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def exp_and_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = scores(q, k).exp()
    return (w / w.sum(-1, keepdim=True)) @ v


def sparsemax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = scores(q, k)
    z = e.sort(-1, descending=True).values
    tau = ((z.cumsum(-1) - 1) / torch.arange(1, e.shape[-1] + 1)).amax(-1, keepdim=True)
    return (e - tau).clamp_min(0) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def differential(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    return (scores(q1, k1).softmax(-1) - 0.5 * scores(q2, k2).softmax(-1)) @ v


def half_of_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = F.scaled_dot_product_attention(q[:, :2], k[:, :2], v[:, :2])
    return torch.cat([seen, torch.ops.aten.scaled_dot_product_attention(q[:, 2:], k[:, 2:], v[:, 2:])], 1)


def decoy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    F.scaled_dot_product_attention(q, k, v)
    return torch.ops.aten.scaled_dot_product_attention(5 * q, k, v)


def one_head(compute: Attend) -> Attend:
    """`compute` of [T, D], for the first entry and head; the others are as they are given."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([compute(q[0, 0], k[0, 0], v[0, 0])[None, None].expand(1, 1, -1, -1), v[:1, 1:]], 1).expand(
            2, -1, -1, -1
        )

    return attend


def in_a_default(q: Tensor, k: Tensor, v: Tensor, function: Attend = stored) -> Tensor:
    return function(q, k, v)


UNSEEN: dict[str, Attend] = {
    "sigmoid": lambda q, k, v: scores(q, k).sigmoid() @ v,
    "relu squared": lambda q, k, v: scores(q, k).relu().square() @ v,
    "differential": differential,
    "linear": linear,
    "sparsemax": sparsemax,
    "exp / sum": exp_and_sum,
    "log_softmax.exp": lambda q, k, v: scores(q, k).log_softmax(-1).exp() @ v,
    "special.softmax": lambda q, k, v: torch.special.softmax(scores(q, k), -1) @ v,
    "aten": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v),
    "aten flash": lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
    "torch._C": lambda q, k, v: torch._C._nn.scaled_dot_product_attention(q, k, v),
    "jit.script": scripted,
    "jit.script of the kernel": scripted_kernel,
    "closure": (lambda f: lambda q, k, v: f(q, k, v))(stored),
    "default argument": in_a_default,
    "partial": functools.partial(stored),
    "A A v": lambda q, k, v: torch.linalg.matrix_power(scores(q, k).softmax(-1), 2) @ v,
    "half of the heads": half_of_the_heads,
    "decoy": decoy,
    "einsum of three": lambda q, k, v: torch.einsum(
        "bhqk,bhkd,de->bhqe", scores(q, k).sigmoid(), v, torch.eye(v.shape[-1])
    ),
    "baddbmm": lambda q, k, v: torch.baddbmm(
        q.flatten(0, 1), scores(q, k).sigmoid().flatten(0, 1), v.flatten(0, 1)
    ).view_as(q),
    "mm": one_head(lambda q, k, v: torch.mm(scores(q, k).sigmoid(), v)),
    "linear of weights": one_head(lambda q, k, v: F.linear(scores(q, k).sigmoid(), v.mT)),
    "tensordot": one_head(lambda q, k, v: torch.tensordot(scores(q, k).sigmoid(), v, 1)),
    "a vector of weights": one_head(lambda q, k, v: q + scores(q[0], k).sigmoid() @ v),
    "a mean": lambda q, k, v: v + v.mean(-2, keepdim=True),
    "a shift": lambda q, k, v: v + v.roll(1, -2),
    "keys from neighbours": lambda q, k, v: F.scaled_dot_product_attention(q, k + k.roll(1, -2), v),
    "values of neighbours": lambda q, k, v: F.scaled_dot_product_attention(q, k, v.roll(1, -2)),
    "numpy": lambda q, k, v: torch.from_numpy(scores(q, k).sigmoid().numpy() @ v.numpy()),
}


SEEN_SINCE = ("differential", "A A v")
"""Seen and proved by the taps of today, which form products and sums of matrices."""


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("way", UNSEEN)
def test_what_mixes_tokens_unseen_is_located(way: str, residual: bool) -> None:
    coverage = proof(Block(UNSEEN[way], residual))
    if way in SEEN_SINCE and verdicts(coverage, "1") == {"proved"}:
        assert coverage.complete is True
        return
    assert coverage.complete is False
    assert coverage.trace.complete is False
    assert places(coverage) == ["1"]
    assert "proved" not in verdicts(coverage, "1")
    assert verdicts(coverage, "0") == verdicts(coverage, "2") == {"proved"}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("attend", [plain, causal, written])
def test_attention_that_was_seen_is_all_there_is(attend: Attend, residual: bool) -> None:
    coverage = proof(Block(attend, residual))
    assert coverage.complete is True
    assert coverage.unseen == []
    assert verdicts(coverage, "1") == {"proved"}
    assert coverage.trace.faithful


class Layer(nn.Module):
    """x + f(x), of a layer over [B, D, T] or [B, T, D]."""

    def __init__(self, layer: nn.Module, channels_first: bool = False) -> None:
        super().__init__()
        self.layer, self.channels_first = layer, channels_first

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.mT) if self.channels_first else self.layer(x)
        y = y[0] if isinstance(y, tuple) else y
        return x + (y.mT if self.channels_first else y)


LAYERS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "recurrence (GRU)": (lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), False),
    "recurrence (LSTM)": (lambda: nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True), False),
    "convolution (Conv1d)": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1), True),
    "pooling (AvgPool1d)": (lambda: nn.AvgPool1d(3, 1, 1), True),
    "normalization over tokens (GroupNorm)": (lambda: nn.GroupNorm(4, WIDTH), True),
    "projection over tokens (Linear)": (lambda: nn.Linear(TOKENS, TOKENS), True),
}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_pytorch_is_named_with_its_kind(kind: str, residual: bool) -> None:
    make, channels_first = LAYERS[kind]
    coverage = proof(Block(causal, residual), Layer(make(), channels_first), Block(causal))
    assert coverage.complete is False
    assert [(place.module, place.kind) for place in coverage.unseen] == [("2.layer", kind)]
    assert verdicts(coverage, "1") == verdicts(coverage, "3") == {"proved"}


def test_as_many_tokens_as_channels() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.mean(1, keepdim=True).relu()

    for layer in (Mean(), Block(UNSEEN["sigmoid"])):
        assert places(proof(layer, tokens=WIDTH)) == ["1"]
    assert proof(Block(written), tokens=WIDTH).complete is True


def test_the_reach_of_a_place_is_measured() -> None:
    coverage = proof(Layer(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), channels_first=True))
    assert coverage.unseen[0].reach == f"reaches 4 of {TOKENS} tokens, -2 … +2"
    coverage = proof(Layer(nn.GRU(WIDTH, WIDTH, batch_first=True)))
    assert coverage.unseen[0].reach == f"reaches 5 of {TOKENS} tokens, +1 … +5"


def test_pooling_at_the_end_is_a_place() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    class First(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 1]

    assert places(proof(Mean(), nn.Linear(WIDTH, 3))) == ["1"]
    assert proof(First(), nn.Linear(WIDTH, 3)).complete is True


def test_what_mixes_the_batch_is_found() -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    coverage = proof(Norm())
    assert places(coverage) == ["1"]
    assert "batch" in coverage.unseen[0].reach


def test_a_call_whose_result_is_thrown_away_is_not_proved() -> None:
    def discarded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        F.scaled_dot_product_attention(q, k, v)
        return v

    def second(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        F.scaled_dot_product_attention(q, k, v)
        return F.scaled_dot_product_attention(k, q, v)

    coverage = proof(Block(discarded))
    assert coverage.complete is True  # nothing else mixes tokens
    assert [x for x in coverage.verdicts if x[0] == "1"] == [
        ("1", "seen, unproven", "nothing behind it depends on its output")
    ]
    assert [x[1] for x in proof(Block(second)).verdicts if x[0] == "1"] == ["seen, unproven", "proved"]


def test_a_path_that_no_token_takes_is_none() -> None:
    class Saturated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layer((x - 1e4).relu().mT).mT

    coverage = proof(Saturated())
    assert coverage.complete is None
    assert "no changed token reached 1.layer" in coverage.reasons[0]


def test_a_model_of_random_numbers_is_none() -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn(x.shape, generator=self.numbers)

    coverage = proof_of(nn.Sequential(Block(causal), Noise(), nn.Linear(WIDTH, WIDTH)), torch.randn(1, 5, WIDTH))
    assert coverage.complete is None
    assert "each time it runs" in coverage.reasons[0]


def proof_of(model: nn.Module, *inputs: object, **options: object) -> regard.Coverage:
    return regard.prove(model, *inputs, **options)


def test_dropout_and_running_statistics_are_as_before() -> None:
    model = nn.Sequential(Block(plain), nn.Dropout(0.5), Layer(nn.BatchNorm1d(WIDTH), channels_first=True))
    before = model[2].layer.running_mean.clone()
    x, state = torch.randn(3, 6, WIDTH), torch.get_rng_state()
    coverage = proof_of(model, x)
    assert places(coverage) == ["2.layer"]
    assert torch.equal(model[2].layer.running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_heads_and_entries_that_are_interchanged_are_not_proved() -> None:
    class HeadsFirst(nn.Module):
        """[heads · B, T, D], as in several ports of the Transformer."""

        num_heads = HEADS

        def forward(self, x: Tensor) -> Tensor:
            y = torch.cat(x.chunk(HEADS, -1), 0)
            w = torch.bmm(y, y.mT).softmax(-1)
            return x + torch.cat(torch.bmm(w, y).chunk(HEADS, 0), -1)

    coverage = proof(HeadsFirst())
    shapes = [tuple(call.shape) for call in coverage.trace if call.name == "1"]
    if shapes == [(2, HEADS, TOKENS, TOKENS)]:  # read as [B, heads]
        assert verdicts(coverage, "1") == {"seen, unproven"}
    assert coverage.complete is True


@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention_is_proved(weights: bool) -> None:
    class Multihead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=weights)[0]

    assert proof(Multihead()).complete is True
    coverage = proof(Multihead(), Layer(nn.GRU(WIDTH, WIDTH, batch_first=True)))
    assert places(coverage) == ["2.layer"]


def test_a_transformer_with_source_and_target() -> None:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 48, batch_first=True).eval()
    coverage = proof_of(model, torch.randn(2, 7, WIDTH), torch.randn(2, 5, WIDTH))
    assert coverage.complete is True
    assert {row[1] for row in coverage.verdicts} == {"proved"}
    assert len(coverage.tried) == 5  # two runs for each side, and an entry of the batch


def test_other_arguments_and_errors() -> None:
    with pytest.raises(TypeError, match="prove takes a model"):
        proof_of(torch.nn.functional.relu, torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit="):
        proof_of(Block(plain), torch.randn(1, 9, WIDTH), limit="2KB")
    model = Block(plain)
    coverage = proof_of(model, torch.randn(1, 1, WIDTH))
    assert coverage.complete is None
    assert "at least two tokens" in repr(coverage)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_names_of_classes_decide_nothing() -> None:
    for name in ("SelfAttention", "Mask", "MambaMixer"):
        kind = type(name, (Block,), {})
        assert places(proof(kind(UNSEEN["sigmoid"]))) == ["1"]
        assert proof(kind(plain)).complete is True


def test_a_watch_proves_the_first_and_the_last_call() -> None:
    model = nn.Sequential(Block(causal), Layer(nn.GRU(WIDTH, WIDTH, batch_first=True))).eval()
    x = torch.randn(1, 9, WIDTH)
    with torch.no_grad(), regard.watch(model, prove=True) as seen:
        model(x)
    assert seen.complete is False
    assert seen.coverage is not None
    assert seen.coverage.trace is seen
    assert places(seen.coverage) == ["1.layer"]
    with torch.no_grad(), regard.watch(model[0], prove=True) as seen:
        for count in (3, 5, 9):
            model[0](x[:, :count])
    assert seen.complete is True
    assert seen.coverage is not None
    assert "token 4 of the input in call n" in seen.coverage.tried
    assert not model._forward_pre_hooks


def test_a_softmax_that_is_a_module_of_its_own() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.drop = nn.Softmax(dim=-1), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(self.attend(x @ x.mT)) @ x

    coverage = proof(Written())
    assert coverage.complete is True
    assert {row[1] for row in coverage.verdicts} == {"proved"}


class Switch(nn.Module):
    """Turns the sign, or the order, of every channel by a number made of all tokens."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        turn = int(x.sum() * 1e3) % 2 == 0
        if self.way == "sign":
            return -x if turn else x
        return x.roll(int(x.sum() * 1e3) % x.shape[-1], -1)


@pytest.mark.parametrize("way", ["sign", "order"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_change_of_signs_or_of_order_is_seen(way: str, kind: torch.dtype) -> None:
    found = 0
    for seed in range(6):
        torch.manual_seed(seed)
        found += (
            regard.prove(nn.Sequential(Switch(way)).to(kind), torch.randn(1, 9, 16, dtype=kind)).complete is not True
        )
    assert found > 3  # in a few runs none of the changed tokens turns it


class Kept(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, x.norm(dim=-1)[0] > x.norm(dim=-1).mean()].cumsum(1)


def test_an_output_of_another_shape_or_without_tensors_shows_nothing() -> None:
    torch.manual_seed(0)
    assert regard.prove(nn.Sequential(Kept()), torch.randn(1, 9, 16)).complete is not True
    model = nn.Identity()
    model.forward = lambda x: x.cumsum(1).tolist()  # type: ignore[method-assign]
    assert regard.prove(model, torch.randn(1, 9, 16)).complete is not True


def test_a_bias_that_goes_through_the_layers_is_not_taken_for_tokens() -> None:
    """T5, eager, one text: a layer is given the positions' bias, of the shape of the weights that it returns."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=20, num_layers=2, num_heads=2, decoder_start_token_id=4
    )
    model = transformers.T5Model(config).eval()
    model.set_attn_implementation("eager")
    source, target = torch.arange(5, 14)[None] * 3, torch.arange(5, 11)[None] * 7 % 43
    assert regard.prove(model, input_ids=source, decoder_input_ids=target).complete


class Counting(nn.Module):
    """Counts its calls in a buffer that it assigns anew, and disturbs nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


class Latents(nn.Module):
    """Gives a part of it its own parameter, and that part refuses any other."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 8))
        self.part = Picky(self.latents.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(self.latents).sum()


class Picky(nn.Module):
    def __init__(self, expected: Tensor) -> None:
        super().__init__()
        self.expected = expected

    def forward(self, x: Tensor) -> Tensor:
        if not torch.equal(x, self.expected):
            raise ValueError("not what was expected")
        return x.cumsum(0)


def test_the_model_is_left_as_it_was() -> None:
    counting = Counting()
    regard.prove(counting, torch.randn(1, 9, 8))
    assert float(counting.calls) == 0
    model = Latents()
    before = model.latents.detach().clone()
    with contextlib.suppress(ValueError):
        regard.prove(model, torch.randn(1, 9, 8))
    assert torch.equal(model.latents, before)
