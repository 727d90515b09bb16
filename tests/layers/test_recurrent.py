"""The LSTMN against the paper's equations (Cheng, Dong and Lapata 2016), written out in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.layers import LSTMN, LocalAttention, RecurrentCell, RecurrentLayer
from regard.models import EncoderDecoder, EncoderDecoderConfig, LSTMNDecoderConfig, NoEncoderConfig
from regard.models.configurations import Annotations
from regard.models.lstmn_decoder import LSTMNDecoder
from tests.support.gradients import grads, leaf
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

EARLY, WIDTH, TIME = 5, 6, 7


def paper(
    layer: LSTMN,
    x: Tensor,
    first: Tensor | None = None,
    late: list[Tensor] | None = None,
    added: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Equations 4 to 9: the hidden tape and the memory tape, `first` not among them."""
    w_x, w_h_tilde = layer.energy.query.weight.split([layer.width_in, layer.width], dim=1)
    w_h, v = layer.energy.key.weight, layer.energy.weight
    zeros = x.new_zeros(len(x), layer.width)
    hidden, memory = ([], []) if first is None else ([first], [zeros])
    h_tilde = zeros
    for t in range(x.shape[1]):
        x_t, c_tilde = x[:, t], zeros
        if hidden:
            a = [torch.tanh(h @ w_h.T + x_t @ w_x.T + h_tilde @ w_h_tilde.T) @ v for h in hidden]
            s = torch.softmax(torch.stack(a, 1), 1)  # [batch, i < t]
            h_tilde = sum(s[:, i, None] * h for i, h in enumerate(hidden))  # type: ignore[assignment]
            c_tilde = sum(s[:, i, None] * c for i, c in enumerate(memory))  # type: ignore[assignment]
        gates = x_t @ layer.cell.early.T + h_tilde @ layer.cell.recall.T + layer.cell.bias
        if late is not None:
            gates = gates + late[t] @ layer.cell.late.T
        i, f, c_hat, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c_tilde + torch.sigmoid(i) * torch.tanh(c_hat)
        if added is not None:
            c = c + added[t]
        hidden.append(torch.sigmoid(o) * torch.tanh(c))
        memory.append(c)
    skip = 0 if first is None else 1
    return torch.stack(hidden[skip:], 1), torch.stack(memory[skip:], 1)


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def layer_of(late: int = 0) -> LSTMN:
    torch.manual_seed(3)
    return LSTMN(EARLY, WIDTH, late=late).double()


@pytest.mark.parametrize("starts", [False, True], ids=["empty tape", "a state to start from"])
def test_the_layer_is_the_papers(starts: bool) -> None:
    layer, x = layer_of(), made(3, TIME, EARLY)
    first = made(3, WIDTH) if starts else None
    learned = [x, *layer.parameters(), *([first] if first is not None else [])]
    ours, theirs = layer(x, first), paper(layer, x, first)
    into = [torch.randn_like(tape) for tape in ours]
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)
    losses = [sum((a * b).sum() for a, b in zip(tapes, into, strict=True)) for tapes in (ours, theirs)]
    for got, want in zip(*(torch.autograd.grad(loss, learned) for loss in losses), strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_of_a_part_leave_the_next_pass_alone() -> None:
    """Whoever asks for the gradient of one activation must not find it added to what is learned afterwards."""
    layer, x = layer_of(), made(2, TIME, EARLY)
    hidden, _ = layer(x)
    wanted = torch.autograd.grad(hidden.sum(), list(layer.parameters()), retain_graph=True)
    one = hidden[:, -1].sum()
    for _ in range(2):
        torch.autograd.grad(one, x, retain_graph=True)
        for got, want in zip(
            torch.autograd.grad(hidden.sum(), list(layer.parameters()), retain_graph=True), wanted, strict=True
        ):
            torch.testing.assert_close(got, want)


def test_nothing_depends_on_what_comes_after() -> None:
    layer, x = layer_of(), made(2, TIME, EARLY)
    other = torch.cat([x[:, :4], torch.randn_like(x[:, 4:])], 1)
    torch.testing.assert_close(layer(x)[0][:, :4], layer(other)[0][:, :4])
    (gradient,) = torch.autograd.grad(layer(x)[0][:, 3].sum(), x)
    assert gradient[:, :4].abs().min() > 0
    assert gradient[:, 4:].abs().max() == 0


def annotations(width: int, tape: bool) -> Annotations:
    torch.manual_seed(5)
    return Annotations(
        torch.randn(2, 4, width).double(),
        torch.tensor([4, 3]),
        torch.randn(2, width).double(),
        torch.randn(2, 4, width).double() if tape else None,
    )


def decoder_of(memory: int, **settings: object) -> LSTMNDecoder:
    torch.manual_seed(7)
    made = LSTMNDecoderConfig(embedding=EARLY, width=WIDTH, dropout=0.0, **settings)  # type: ignore[arg-type]
    return LSTMNDecoder(made, VOCABULARY, memory).double().eval()


def attended(query: Tensor, keys: Tensor, values: Tensor, decoder: LSTMNDecoder, lengths: Tensor) -> Tensor:
    """softmax_j(u · tanh(query + W_γ γ_j)) · values, the query already multiplied."""
    assert decoder.energy is not None
    e = torch.tanh(query[:, None] + keys @ decoder.energy.key.weight.T) @ decoder.energy.weight
    e = e.masked_fill(torch.arange(e.shape[1]) >= lengths[:, None], -torch.inf)
    return (torch.softmax(e, 1)[..., None] * values).sum(1)


def features_of(decoder: LSTMNDecoder, h: Tensor, y: Tensor, context: Tensor) -> Tensor:
    return torch.tanh(torch.cat([h, y, context], -1) @ decoder.join.weight.T + decoder.join.bias)


@pytest.mark.parametrize(
    ("memory", "tape"), [(WIDTH, True), (WIDTH, False), (9, True)], ids=["tape", "no tape", "another width"]
)
def test_deep_fusion_is_the_papers(memory: int, tape: bool) -> None:
    """Equations 10 to 15, in two layers."""
    decoder, source = decoder_of(memory, fusion="deep", layers=2), annotations(memory, tape)
    tokens = torch.randint(4, VOCABULARY, (2, TIME))
    y = decoder.embedding(tokens)
    assert decoder.energy is not None
    assert decoder.gate is not None
    alpha = source.vectors if source.tape is None else source.tape
    if memory != WIDTH:
        alpha = alpha @ decoder.tape.weight.T
    w_x, w_gamma = decoder.energy.query.weight.split([EARLY, memory], 1)
    contexts, added, gamma_tilde = [], [], torch.zeros(2, memory).double()
    for t in range(TIME):
        query = y[:, t] @ w_x.T + gamma_tilde @ w_gamma.T
        gamma_tilde, alpha_tilde = (
            attended(query, source.vectors, values, decoder, source.lengths) for values in (source.vectors, alpha)
        )
        gate = torch.cat([y[:, t], gamma_tilde], -1) @ decoder.gate.weight.T + decoder.gate.bias
        contexts.append(gamma_tilde)
        added.append(torch.sigmoid(gate) * alpha_tilde)
    starts = [torch.tanh(bridge(source.summary)) for bridge in decoder.bridges]
    h, _ = paper(decoder.layers[0], y, starts[0], added=added)
    h, _ = paper(decoder.layers[1], h, starts[1])
    want = features_of(decoder, h, y, torch.stack(contexts, 1))
    got = decoder(tokens, source, weights=True)
    torch.testing.assert_close(got.features, want)
    assert got.weights.shape == (2, 1, TIME, 4)
    learned = list(decoder.parameters())
    into = torch.randn_like(want)
    losses = ((got.features * into).sum(), (want * into).sum())
    one, other = (torch.autograd.grad(loss, learned, allow_unused=True) for loss in losses)
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_shallow_fusion_is_bahdanaus_attention_beside_the_tape() -> None:
    decoder, source = decoder_of(9, fusion="shallow"), annotations(9, tape=False)
    tokens = torch.randint(4, VOCABULARY, (2, TIME))
    y = decoder.embedding(tokens)
    assert decoder.energy is not None
    first = torch.tanh(decoder.bridges[0](source.summary))
    contexts: list[Tensor] = []
    h = first
    for t in range(TIME):
        query = h @ decoder.energy.query.weight.T
        contexts.append(attended(query, source.vectors, source.vectors, decoder, source.lengths))
        hidden, _ = paper(decoder.layers[0], y[:, : t + 1], first, late=contexts)
        h = hidden[:, -1]
    want = features_of(decoder, hidden, y, torch.stack(contexts, 1))
    torch.testing.assert_close(decoder(tokens, source).features, want)


def test_fusion_and_encoder_must_agree() -> None:
    for encoder, fusion in ((NoEncoderConfig(), "deep"), (ENCODERS["Transformer"], "none")):
        decoder = LSTMNDecoderConfig(fusion=fusion)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='is "none" without an encoder, and "shallow" or "deep" with one'):
            EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, encoder, decoder))


@pytest.mark.parametrize("fusion", ["shallow", "deep"])
def test_what_is_seen_is_what_was_used(fusion: str) -> None:
    """Reader and writer both attend to themselves, and the writer to the reader: every weight is proven."""
    torch.manual_seed(2)
    made = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["LSTMN, 2 layers"], DECODERS[f"LSTMN, {fusion}"])
    model, pairs = EncoderDecoder(made).eval(), batch(sentences=1)
    with torch.no_grad(), regard.watch(model) as seen:
        model(pairs.source, pairs.source_lengths, pairs.target)
    assert seen.faithful, seen
    names = {call.name: (call.kind, call.shape) for call in seen}
    places, targets = pairs.source.shape[1], pairs.target.shape[1]
    # The first word of the source has nothing behind it; the target's first looks at the state made of the summary.
    assert names["encoder.layers.0"] == ("self", (1, places - 1, places - 1))
    assert names["encoder.layers.1"] == ("self", (1, places - 1, places - 1))
    assert names["decoder.layers.0"] == ("self", (1, targets, targets))
    assert names["decoder"][0] == "cross"
    dense = seen["encoder.layers.0"].weights.dense()[0]
    assert dense.triu(1).abs().max() == 0
    torch.testing.assert_close(dense.sum(-1), torch.ones(places - 1))


@pytest.mark.parametrize("fusion", ["shallow", "deep"])
def test_mixed_precision_gives_nearly_the_same(fusion: str) -> None:
    torch.manual_seed(2)
    made = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["LSTMN, 2 layers"], DECODERS[f"LSTMN, {fusion}"])
    model, pairs = EncoderDecoder(made), batch()
    losses, gradients = [], []
    for mixed in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            total = model.loss(pairs).total
            gradients.append(torch.autograd.grad(total, list(model.parameters())))  # inside, as Lightning does it
        losses.append(total.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    largest = max(gradient.abs().max().item() for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * largest)


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
    got = cell(cell.input_gates(x), (h,) if kind == "gru" else (h, c), y)
    want = theirs(torch.cat([x, y], 1), h if kind == "gru" else (h, c))
    for mine, other in zip(got, (want,) if kind == "gru" else want, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_mask_multiplies_the_state_that_the_matrix_reads() -> None:
    cell, mask = RecurrentCell("gru", 3, 0, 4).double(), torch.tensor([[2.0, 0, 2, 0], [0, 2, 2, 2]]).double()
    gates, h = leaf(2, 12), leaf(2, 4)
    (got,) = cell(gates, (h,), mask=mask)
    recurrent = nn.functional.linear(h * mask, cell.recall, cell.recall_bias)
    r, z = torch.sigmoid(gates + recurrent)[:, :8].chunk(2, -1)
    n = torch.tanh(gates[:, 8:] + r * recurrent[:, 8:])
    torch.testing.assert_close(got, (1 - z) * n + z * h)


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
