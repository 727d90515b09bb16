"""Layers against what PyTorch ships, against their equations, and against themselves computed the plain way."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from regard import Additive, Alibi, Concat, Dot, General, Modified, ScaledDot, attend, causal, padding
from regard.layers import (
    Dropout,
    EncoderMemory,
    LocalAttention,
    MultiHead,
    RecurrentCell,
    RecurrentLayer,
    RotaryPositions,
    SinusoidalPositions,
)
from regard.layers.recurrent import rnn_gates
from regard.layers.recurrent.deferred_gradient import DeferredLinear
from regard.layers.recurrent.loop_additive import LoopAdditive
from tests.support.triton_interpreter import interpreted, skip_without_triton

F64 = torch.float64


def grads(loss: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


# ---------------------------------------------------------------------------------------------- attention and positions


@pytest.mark.parametrize("cross", [False, True])
def test_multihead_is_pytorchs(cross: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, kdim=8 if cross else 12, vdim=8 if cross else 12).double()
    ours = MultiHead(12, 3, memory=8 if cross else None).double()
    with torch.no_grad():
        if cross:
            q, k, v = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
        else:
            q, k, v = theirs.in_proj_weight.chunk(3)
        for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
            bias.normal_()
        ours.query.weight.copy_(q)
        ours.key_value.weight.copy_(torch.cat([k, v]))
        ours.query.bias.copy_(theirs.in_proj_bias[:12])
        ours.key_value.bias.copy_(theirs.in_proj_bias[12:])
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    x, memory, lengths = leaf(2, 5, 12), leaf(2, 7, 8), torch.tensor([7, 4] if cross else [5, 3])
    other = memory if cross else x
    closed = torch.arange(other.shape[1]) >= lengths[:, None]
    want, w = theirs(x, other, other, key_padding_mask=closed, average_attn_weights=False)
    got, seen = ours(x, memory if cross else None, mask=padding(lengths), weights=True)
    torch.testing.assert_close(got, want)
    assert seen is not None
    torch.testing.assert_close(seen.dense(), w)


def test_multihead_takes_any_energy_and_fewer_key_heads() -> None:
    layer = MultiHead(12, 4, key_heads=2, energy=Additive(3, 3, 5)).double()
    x = leaf(2, 6, 12)
    got, _ = layer(x, mask=causal())
    q = layer.query(x).unflatten(-1, (4, 3)).transpose(1, 2)
    k, v = layer.keys(x)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    e = (
        torch.tanh((q @ layer.energy.query.weight.mT)[:, :, :, None] + (k @ layer.energy.key.weight.mT)[:, :, None])
        @ layer.energy.weight
    )
    e = e.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(got, layer.output((e.softmax(-1) @ v).transpose(1, 2).flatten(-2)))
    assert {n for n, _ in layer.named_parameters()} >= {"energy.weight", "energy.query.weight"}


def test_multihead_drops_weights_while_training_and_only_then() -> None:
    torch.manual_seed(0)
    layer = MultiHead(12, 4, dropout=0.25).double()
    layer.output = nn.Identity()
    x = torch.randn(1, 6, 12, dtype=F64)
    k, v = layer.keys(x)
    q = layer.query(x).unflatten(-1, (4, 3)).transpose(1, 2)
    drawn = torch.stack([layer(x)[0] for _ in range(4000)])
    _, seen = layer(x, weights=True)
    assert seen is not None
    # z = Σ_j w_j v_j b_j / 0.75 with b_j of chance 0.75: its mean is z, its variance Σ_j (w_j v_j)² · 0.25 / 0.75.
    variance = (seen.dense().square() @ v.square() / 3).transpose(1, 2).flatten(-2)
    error = (drawn.mean(0) - layer.eval()(x)[0]).abs() / (variance / 4000).sqrt()
    assert 0 < error.max() < 5
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.25, atol=0)
    torch.testing.assert_close(layer(x)[0], attend(q, k, v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize(("heads", "key_heads"), [(5, 5), (4, 3), (4, 0)])
def test_multihead_refuses_heads_that_do_not_divide(heads: int, key_heads: int) -> None:
    with pytest.raises(ValueError, match="heads"):
        MultiHead(12, heads, key_heads=key_heads)


def test_sinusoidal_is_the_published_formula() -> None:
    got = SinusoidalPositions(8)(torch.zeros(1, 5, 8), first=3)
    for p in range(5):
        for i in range(4):
            angle = (p + 3) / 10_000 ** (2 * i / 8)
            assert math.isclose(got[0, p, 2 * i], math.sin(angle), abs_tol=1e-6)
            assert math.isclose(got[0, p, 2 * i + 1], math.cos(angle), abs_tol=1e-6)


def test_rotary_products_know_only_the_distance() -> None:
    rotary, q, k = RotaryPositions(8), torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    products = [(rotary(q, m) @ rotary(k, m + 5).mT).item() for m in (0, 1, 40)]
    assert max(products) - min(products) < 1e-5
    assert abs(products[0] - (rotary(q, 0) @ rotary(k, 6).mT).item()) > 1e-3


# -------------------------------------------------------------------------------------------------------- recurrence


def test_fixed_gives_the_gradient_of_every_step_at_once() -> None:
    m, b, x = leaf(4, 3), leaf(4), leaf(2, 3)

    def run(product: object) -> torch.Tensor:
        y, total = x, torch.zeros((), dtype=F64)
        for t in range(3):
            y = torch.tanh(product(y))[:, :3]  # type: ignore[operator]
            total = total + (y * (t + 1)).sum()
        return total

    for got, want in zip(
        grads(run(DeferredLinear(m, b)), m, b, x),
        grads(run(lambda y: nn.functional.linear(y, m, b)), m, b, x),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_fixed_can_go_back_twice_and_skips_what_did_not_matter() -> None:
    m, x = leaf(4, 3), leaf(2, 3)
    fixed = DeferredLinear(m)
    y = fixed(x).sum()
    fixed(x)  # a step that leads nowhere
    torch.testing.assert_close(
        torch.autograd.grad(y, m, retain_graph=True)[0], torch.autograd.grad(y, m)[0], rtol=0, atol=0
    )


def test_asking_for_an_inputs_gradient_leaves_the_matrix_alone() -> None:
    """As saliency and gradient penalties do: the steps' notes are for the matrix, and it was not asked for."""
    m, x, keys, w = leaf(4, 3), leaf(2, 3), leaf(2, 5, 4), leaf(4)
    for loop, q, learned in (
        (DeferredLinear(m), x, (m,)),
        (LoopAdditive(keys, w), x.repeat(1, 2)[:, None, :4], (keys, w)),
    ):
        y = loop(q).square().sum()
        want = torch.autograd.grad(y, learned, retain_graph=True)
        torch.autograd.grad(y, x, retain_graph=True)
        for got, other in zip(torch.autograd.grad(y, learned), want, strict=True):
            torch.testing.assert_close(got, other, rtol=0, atol=0)


def test_steps_can_be_trained_through_after_sentences_leave() -> None:
    keys, w, q = leaf(3, 5, 4), leaf(4), leaf(2, 2, 4)
    rows = torch.tensor([2, 0])
    got = LoopAdditive(keys, w).select(rows)(q)  # two queries of each sentence, as two beams would ask
    want = torch.tanh(q[:, :, None] + keys[rows][:, None]) @ w
    for mine, other in zip(grads(got.sum(), q, keys, w), grads(want.sum(), q, keys, w), strict=True):
        torch.testing.assert_close(mine, other)
    m, x = leaf(3, 4, 2), leaf(2, 5, 2)
    for mine, other in zip(
        grads(DeferredLinear(m).select(rows)(x).sum(), m, x), grads((x @ m[rows].mT).sum(), m, x), strict=True
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrence_is_pytorchs_over_packed_sentences(kind: str, bidirectional: bool) -> None:
    ours = RecurrentLayer(kind, 5, 4, bidirectional=bidirectional).double()  # type: ignore[arg-type]
    theirs = (nn.GRU if kind == "gru" else nn.LSTM)(5, 4, batch_first=True, bidirectional=bidirectional).double()
    for number, direction in enumerate(ours.directions):
        suffix = "_reverse" if number else ""
        for name, value in direction.named_parameters():
            getattr(theirs, name + suffix).data.copy_(value)
    x, lengths = leaf(3, 6, 5), torch.tensor([6, 1, 4])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    want, end = theirs(packed)
    want, _ = nn.utils.rnn.pad_packed_sequence(want, batch_first=True)
    end = (end if kind == "gru" else end[0]).transpose(0, 1).flatten(1)
    got, last = ours(x, lengths)
    real = torch.arange(6) < lengths[:, None]
    torch.testing.assert_close(got[real], want[real])
    torch.testing.assert_close(last, end)
    upstream = torch.randn_like(want)
    ours_w = [p for d in ours.directions for p in d.parameters()]
    theirs_w = list(theirs.parameters())
    a = grads((got * upstream * real[..., None]).sum(), x, *ours_w)
    b = grads((want * upstream * real[..., None]).sum(), x, *theirs_w)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_state_of_a_recurrence_is_not_rounded(kind: str) -> None:
    """In mixed precision its inputs may be bfloat16; the same values in float32 give the same states."""
    ours = RecurrentLayer(kind, 8, 8, bidirectional=False)  # type: ignore[arg-type]
    x, lengths = torch.randn(2, 50, 8).bfloat16(), torch.full((2,), 50)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded, wide = (ours(given, lengths)[0] for given in (x, x.float()))
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, wide)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_beyond_float16_are_finite_in_mixed_precision(kind: str) -> None:
    """Autocast runs cuDNN's steps in float16 even when it is asked for bfloat16: there this sum is infinite."""
    torch.manual_seed(0)
    ours = RecurrentLayer(kind, 16, 16, bidirectional=True)  # type: ignore[arg-type]
    x, lengths = torch.randn(64, 30, 16), torch.full((64,), 30)
    exact = copy.deepcopy(ours).double()
    want = grads(1e4 * exact(x.double(), lengths)[0].sum(), *exact.parameters())
    ours = ours.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        out = ours(x.cuda(), lengths.cuda())[0]
    got = grads(1e4 * out.float().sum(), *ours.parameters())
    assert max(gradient.abs().max() for gradient in want) > 65504
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu().double(), true, rtol=0.01, atol=0.003 * true.abs().max().item())


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cell_is_pytorchs(kind: str) -> None:
    cell = RecurrentCell(kind, 3, 2, 4).double()  # type: ignore[arg-type]
    theirs = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(5, 4).double()
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.cat([cell.early, cell.late], 1))
        theirs.weight_hh.copy_(cell.recall)
        theirs.bias_ih.copy_(cell.bias)
        theirs.bias_hh.copy_(torch.zeros(16) if cell.recall_bias is None else cell.recall_bias)
    x, y, h, c = leaf(2, 3), leaf(2, 2), leaf(2, 4), leaf(2, 4)
    unrolled, hidden = cell.unroll(F64), (h,) if kind == "gru" else (h, c)
    got = unrolled.step(cell.given(x), y, unrolled.recall(hidden)[0], hidden)
    want = theirs(torch.cat([x, y], 1), h if kind == "gru" else (h, c))
    for mine, other in zip(got, (want,) if kind == "gru" else want, strict=True):
        torch.testing.assert_close(mine, other)


def test_gates_have_the_right_gradients() -> None:
    torch.autograd.gradcheck(rnn_gates.gru, (leaf(2, 9), leaf(2, 9), leaf(2, 3)))
    torch.autograd.gradcheck(rnn_gates.lstm, (leaf(2, 12), leaf(2, 3)))


# ------------------------------------------------------------------------------------------------------------- looking


@pytest.mark.parametrize(
    "energy", [Additive(4, 5, 6), Concat(4, 5, 6), General(4, 5), Dot()], ids=lambda e: type(e).__name__
)
def test_memory_says_what_attend_says(energy: nn.Module) -> None:
    """Three looks in a loop, one after the other, are three queries at once: outputs, weights, gradients."""
    if isinstance(energy, nn.Module):
        energy = energy.double()
    vectors, lengths = leaf(2, 7, 4 if isinstance(energy, Dot) else 5), torch.tensor([7, 3])
    q = leaf(2, 3, 4)
    learned = list(energy.parameters()) if isinstance(energy, nn.Module) else []
    memory, matrix = EncoderMemory(energy, vectors, lengths), getattr(energy, "query_matrix", None)  # type: ignore[arg-type]
    looks = [memory.attend(at[:, None] if matrix is None else (at @ matrix.mT)[:, None]) for at in q.unbind(1)]
    got = torch.cat([z for z, _ in looks], 1)
    want, w = attend(q, vectors, vectors, energy=energy, mask=padding(lengths), weights=True, backend="reference")
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.cat([p for _, p in looks], 1), w.dense())
    upstream = torch.randn_like(want)
    a = grads((got * upstream).sum(), q, vectors, *learned)
    b = grads((want * upstream).sum(), q, vectors, *learned)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


def test_local_windows_are_luongs() -> None:
    lengths, places = torch.tensor([9, 4]), torch.arange(9)
    h = torch.randn(2, 1, 6)
    closed, scale = LocalAttention(6, 2, "local-m")(h, 5, lengths, places)
    assert scale is None
    assert (closed[0, 0] == 0).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert (closed[1, 0] == 0).nonzero().flatten().tolist() == [1, 2, 3, 4, 5]  # stays at the last word, 3
    predictive = LocalAttention(6, 2, "local-p")
    closed, scale = (x.detach() for x in predictive(h, 5, lengths, places))
    for b, length in enumerate(lengths.tolist()):
        middle = length * torch.sigmoid(predictive.outer(torch.tanh(predictive.inner(h[b, 0])))).item()
        for s in places.tolist():
            assert (closed[b, 0, s] == 0) == (abs(s - middle) <= 2)
            assert math.isclose(scale[b, 0, s], math.exp(-((s - middle) ** 2) / (2 * 1.0**2)), rel_tol=1e-4)


# ------------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_gates_and_scores_follow_the_formula(dtype: torch.dtype) -> None:
    skip_without_triton()
    with interpreted():
        from regard.attention.kernels.additive import additive_step_triton
        from regard.layers.recurrent import rnn_gates_triton

        torch.manual_seed(1)
        given, recalled, h, g = (torch.randn(5, n).to(dtype) for n in (21, 21, 7, 7))
        new, saved = rnn_gates_triton.gru_forward(given, recalled, h)
        inputs = [x.double().requires_grad_() for x in (given, recalled, h)]
        want = rnn_gates.gru(*inputs)
        rounding = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(new.double(), want, rtol=rounding, atol=rounding)
        for mine, other in zip(rnn_gates_triton.gru_backward(g, *saved), grads((want * g).sum(), *inputs), strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        total, c, gc = (torch.randn(5, n).to(dtype) for n in (28, 7, 7))
        hidden, after, saved = rnn_gates_triton.lstm_forward(total, c)
        inputs = [x.double().requires_grad_() for x in (total, c)]
        want_h, want_c = rnn_gates.lstm(*inputs)
        torch.testing.assert_close(hidden.double(), want_h, rtol=rounding, atol=rounding)
        torch.testing.assert_close(after.double(), want_c, rtol=rounding, atol=rounding)
        wanted = grads((want_h * g).sum() + (want_c * gc).sum(), *inputs)
        for mine, other in zip(rnn_gates_triton.lstm_backward(g, gc, *saved), wanted, strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=8 * rounding, atol=8 * rounding)

        q, keys, w, ge = (torch.randn(*shape).to(dtype) for shape in ((3, 20), (3, 19, 20), (20,), (3, 19)))
        e = additive_step_triton.energies(q, keys, w)
        q64, k64, w64 = (x.double().requires_grad_() for x in (q, keys, w))
        want = torch.tanh(q64[:, None] + k64) @ w64
        torch.testing.assert_close(e.double(), want, rtol=1e-5, atol=1e-5)
        sums, sum_w = torch.zeros(3, 19, 20), torch.zeros(3, 20)
        to_q = additive_step_triton.add_gradients(ge, q, keys, w, sums, sum_w)
        to_q = additive_step_triton.add_gradients(ge, q, keys, w, sums, sum_w)  # a second step adds to the same sums
        wanted = grads((want * ge).sum(), q64, k64, w64)
        torch.testing.assert_close(to_q.double(), wanted[0], rtol=8 * rounding, atol=8 * rounding)
        torch.testing.assert_close((sums * w).double(), 2 * wanted[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sum_w.sum(0).double(), 2 * wanted[2], rtol=1e-4, atol=1e-4)


def test_alibi_stands_in_multihead() -> None:
    layer = MultiHead(8, 2, energy=Modified(ScaledDot(), Alibi(2)))
    far, near = layer(torch.randn(1, 50, 8), weights=True)[1].dense()[0, 0, 25, [0, 24]]  # type: ignore[union-attr]
    assert near > far


# ------------------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(3)
    x = torch.ones(1_000_003, requires_grad=True)
    y = Dropout(p)(x)
    share = (y == 0).double().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(x))  # five standard deviations
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    # Neighbours come from the same 64 random bits: they must not know of one another.
    kept = (y[:1_000_000] != 0).double().view(-1, 4)
    correlation = torch.corrcoef(kept.T)
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(250_000)


def test_dropout_is_nothing_in_evaluation_and_repeats_with_its_seed() -> None:
    layer, x = Dropout(0.3), torch.randn(50)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()


# ------------------------------------------------------------------------------------------------- loops and precision


def test_what_a_broken_backward_pass_noted_does_not_count() -> None:
    energy = Additive(4, 4, 4).double()
    fixed, memory = DeferredLinear(energy.query.weight), EncoderMemory(energy, leaf(2, 3, 4), torch.tensor([3, 2]))
    breaks = True

    def stop(gradient: torch.Tensor) -> None:
        if breaks:
            raise RuntimeError("stop")

    state = first = leaf(2, 4)
    first.register_hook(stop)
    for _ in range(3):
        state = torch.tanh(state + memory.attend(fixed(state)[:, None])[0][:, 0])
    with pytest.raises(RuntimeError, match="stop"):
        state.sum().backward(retain_graph=True)
    breaks = False
    energy.zero_grad()
    state.sum().backward(retain_graph=True)
    found = [parameter.grad.clone() for parameter in energy.parameters() if parameter.grad is not None]
    energy.zero_grad()
    state.sum().backward()
    again = [parameter.grad for parameter in energy.parameters() if parameter.grad is not None]
    assert len(found) == len(again) == 3
    for a, b in zip(found, again, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "energy", [Additive(4, 4, 4), Concat(4, 4, 4), General(4, 4), Dot()], ids=lambda e: repr(e)[:4]
)
def test_loops_in_float32_run_and_learn_under_autocast(energy: nn.Module) -> None:
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    q = torch.randn(2, 1, 4)
    plain = EncoderMemory(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = EncoderMemory(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
        cell = RecurrentCell("gru", 3, 4, 4)
        unrolled = cell.unroll(torch.float32)
        hidden = (torch.zeros(2, 4),)
        hidden = unrolled.step(torch.randn(2, 12), mixed[:, 0], unrolled.recall(hidden)[0], hidden)
    torch.testing.assert_close(mixed.float(), plain, rtol=0.03, atol=0.03)
    (mixed.float().sum() + hidden[0].float().sum()).backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_loops_run_where_there_is_no_autocast() -> None:
    with torch.device("meta"):
        z, weights = EncoderMemory(Additive(4, 4, 4), torch.empty(2, 3, 4), torch.empty(2, dtype=torch.long)).attend(
            torch.empty(2, 1, 4)
        )
    assert (z.shape, weights.shape) == ((2, 1, 4), (2, 1, 3))


def test_a_sentence_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one place to attend to; the shortest has 0"):
        EncoderMemory(Dot(), torch.randn(2, 3, 4), torch.tensor([3, 0]))


def test_positions_do_not_depend_on_the_default_precision() -> None:
    x = torch.randn(1, 2, 600, 8)
    want = SinusoidalPositions(8)(x), RotaryPositions(8)(x), Alibi(12).slopes
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = SinusoidalPositions(8)(x), RotaryPositions(8)(x), Alibi(12).slopes
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_under_torch_func() -> None:
    drop = Dropout(0.5).train()
    gradient = torch.func.grad(lambda x: drop(x).sum())(torch.ones(1000))
    assert set(gradient.unique().tolist()) == {0.0, 2.0}
