"""Translators: every encoder under every decoder, against PyTorch's Transformer and the papers' equations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from regard.layers import MultiHead
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, WIDTH, batch, translator

if TYPE_CHECKING:
    from regard.layers import RecurrentCell

GRU, TRANSFORMER = ENCODERS["bidirectional GRU"], ENCODERS["Transformer"]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_forward_and_step_agree(encoder: str, decoder: str) -> None:
    """Also with two beams that swap places at every step, and when a sentence leaves half-way."""
    model, pairs = translator(ENCODERS[encoder], DECODERS[decoder]), batch()
    with torch.no_grad():
        whole = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True)
        state = model.decoder.start(model.encode(pairs.source, pairs.source_lengths), beams=2, steps=6)
        chosen = torch.arange(3)
        for t in range(6):
            if t == 3:
                chosen = torch.tensor([0, 2])
                state = state.keep(chosen)
            tokens = pairs.target[chosen, t].repeat_interleave(2)
            features, state, maps = model.decoder.step(tokens, state, weights=True)
            for beam in (0, 1):
                torch.testing.assert_close(features[beam::2], whole.features[chosen, t])
                if whole.weights is not None:
                    assert maps is not None
                    torch.testing.assert_close(maps[beam::2], whole.weights[chosen, :, t])
            state = state.reorder(torch.arange(len(tokens)).view(-1, 2).flip(1).flatten())
    if whole.weights is not None and "local-p" not in decoder:
        torch.testing.assert_close(whole.weights.sum(-1), torch.ones_like(whole.weights[..., 0]))


def test_the_size_of_the_vocabulary_is_the_number_of_logits() -> None:
    pairs = batch()
    for decoder in DECODERS.values():
        model = translator(ENCODERS["bidirectional GRU"], decoder)
        decoded = model(pairs.source, pairs.source_lengths, pairs.target)
        assert model.readout(decoded.features).shape[-1] == model.decoder.vocabulary_size == VOCABULARY


def test_a_transformer_drops_weights_of_every_attention() -> None:
    encoder, decoder = ENCODERS["Transformer"], DECODERS["Transformer"]
    assert isinstance(encoder, TransformerEncoderConfig)
    assert isinstance(decoder, TransformerDecoderConfig)
    some = {"dropout": 0.0, "attention_dropout": 0.4}
    model, pairs = translator(replace(encoder, **some), replace(decoder, **some)), batch()
    dropouts = [part.dropout for part in model.modules() if isinstance(part, MultiHead)]
    assert dropouts == [0.4] * (encoder.layers + 2 * decoder.layers)
    given = (pairs.source, pairs.source_lengths, pairs.target[:, :-1])
    assert torch.equal(model(*given).features, model(*given).features)
    model.train()
    assert not torch.equal(model(*given).features, model(*given).features)


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_is_known_can_be_read_at_once(decoder: str) -> None:
    """Twice two tokens, then one by one: as if each had been a step, for both beams."""
    model, pairs = translator(TRANSFORMER, DECODERS[decoder]), batch()
    with torch.no_grad():
        whole = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1])
        state = model.decoder.start(model.encode(pairs.source, pairs.source_lengths), beams=2, steps=6)
        rows = pairs.target.repeat_interleave(2, 0)
        state = model.decoder.read(rows[:, 2:4], model.decoder.read(rows[:, :2], state))
        for t in (4, 5):
            features, state, _ = model.decoder.step(rows[:, t], state)
            for beam in (0, 1):
                torch.testing.assert_close(features[beam::2], whole.features[:, t])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ["bidirectional GRU", "Transformer"])
def test_padding_changes_nothing(encoder: str, decoder: str) -> None:
    """The loss of a batch is the sum of its sentences' losses, each computed alone; so are the gradients."""
    model, pairs = translator(ENCODERS[encoder], DECODERS[decoder]), batch()
    together = model.loss(pairs, smoothing=0.1)
    gradient = torch.autograd.grad(together.total, list(model.parameters()))
    alone, summed = 0.0, [torch.zeros_like(g) for g in gradient]
    for row, (s, t) in enumerate(zip(pairs.source_lengths.tolist(), pairs.target_lengths.tolist(), strict=True)):
        one = type(pairs)(
            pairs.source[row : row + 1, :s],
            pairs.source_lengths[row : row + 1],
            pairs.target[row : row + 1, :t],
            pairs.target_lengths[row : row + 1],
            pairs.rows[row : row + 1],
        )
        loss = model.loss(one, smoothing=0.1).total
        alone += loss.item()
        for total, g in zip(summed, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total += g
    assert together.total.item() == pytest.approx(alone)
    assert together.tokens.item() == int((pairs.target_lengths - 1).sum())
    for got, want in zip(gradient, summed, strict=True):
        torch.testing.assert_close(got, want)


def _copy_attention(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    q, k, v = theirs.in_proj_weight.chunk(3)
    ours.query.weight.copy_(q)
    ours.key_value.weight.copy_(torch.cat([k, v]))
    ours.query.bias.copy_(theirs.in_proj_bias[:WIDTH])
    ours.key_value.bias.copy_(theirs.in_proj_bias[WIDTH:])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def _copy_layer(theirs: nn.Module, ours: nn.Module, names: dict[str, str]) -> None:
    _copy_attention(theirs.self_attn, ours.attention)
    if hasattr(theirs, "multihead_attn"):
        _copy_attention(theirs.multihead_attn, ours.cross)
    ours.feed_forward[0].load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward[3].load_state_dict(theirs.linear2.state_dict())
    for own, other in names.items():
        getattr(ours, own).norm.load_state_dict(getattr(theirs, other).state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_transformer_is_pytorchs(norm: str) -> None:
    settings = {"width": WIDTH, "heads": 2, "hidden": 16, "layers": 2, "norm": norm, "dropout": 0.0}
    model = translator(TransformerEncoderConfig(**settings), TransformerDecoderConfig(**settings))  # type: ignore[arg-type]
    theirs = nn.Transformer(
        WIDTH, 2, 2, 2, 16, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    if norm == "post":  # PyTorch closes with a norm in both cases; published post-norm does not
        theirs.encoder.norm = theirs.decoder.norm = None
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
        around = {"around_attention": "norm1", "around_feed_forward": "norm2"}
        for a, b in zip(theirs.encoder.layers, model.encoder.layers, strict=True):
            _copy_layer(a, b, around)
        around = {"around_attention": "norm1", "around_cross": "norm2", "around_feed_forward": "norm3"}
        for a, b in zip(theirs.decoder.layers, model.decoder.layers, strict=True):
            _copy_layer(a, b, around)
        if norm == "pre":
            model.encoder.norm.load_state_dict(theirs.encoder.norm.state_dict())
            model.decoder.norm.load_state_dict(theirs.decoder.norm.state_dict())
        pairs = batch()
        source = model.encoder.positions(model.encoder.embedding(pairs.source) * WIDTH**0.5)
        target = model.decoder.positions(model.decoder.embedding(pairs.target) * WIDTH**0.5)
        closed = torch.arange(pairs.source.shape[1]) >= pairs.source_lengths[:, None]
        want = theirs(
            source,
            target,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(pairs.target.shape[1], dtype=torch.float64),
            tgt_is_causal=True,
            src_key_padding_mask=closed,
            memory_key_padding_mask=closed,
        )
        got = model(pairs.source, pairs.source_lengths, pairs.target).features
    torch.testing.assert_close(got, want)


def gru_cell(cell: RecurrentCell) -> nn.GRUCell:
    """PyTorch's GRU with the weights of ours."""
    given = torch.cat([matrix for matrix in (cell.early, cell.late) if matrix is not None], 1)
    theirs = nn.GRUCell(given.shape[1], WIDTH).double()
    theirs.weight_ih.copy_(given)
    for own, other in (("weight_hh", "recall"), ("bias_ih", "bias"), ("bias_hh", "recall_bias")):
        getattr(theirs, own).copy_(getattr(cell, other))
    return theirs


def test_bahdanau_is_the_papers_equations() -> None:
    """One step after the other, written out: e = w·tanh(W s + U h), α = softmax(e), c = Σ α h, s' = GRU([y; c], s)."""
    model, pairs = translator(GRU, DECODERS["Bahdanau"]), batch(sentences=1)
    decoder = model.decoder
    with torch.no_grad():
        got = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True)
        notes = model.encode(pairs.source, pairs.source_lengths)
        h, s = notes.vectors[0], torch.tanh(decoder.bridges[0](notes.summary[0]))
        cell = gru_cell(decoder.cells[0])
        for t, token in enumerate(pairs.target[0, :-1]):
            y = decoder.embedding.weight[token]
            e = torch.stack(
                [
                    decoder.energy.weight
                    @ torch.tanh(decoder.energy.query.weight @ s + decoder.energy.key.weight @ h_j)
                    for h_j in h
                ]
            )
            alpha = torch.exp(e) / torch.exp(e).sum()
            c = sum(a * h_j for a, h_j in zip(alpha, h, strict=True))
            s = cell(torch.cat([y, c]), s)
            feature = torch.tanh(decoder.join(torch.cat([s, y, c])))
            torch.testing.assert_close(got.weights[0, 0, t], alpha)
            torch.testing.assert_close(got.features[0, t], feature)


@torch.no_grad()
def test_the_conditional_gru_is_the_papers_equations() -> None:
    """s' = GRU₁(y, s), α = softmax(w·tanh(W s' + U h)), c = Σ α h, s = GRU₂(c, s'), tanh(W [s; y; c])."""
    model, pairs = translator(GRU, DECODERS["conditional"]), batch(sentences=1)
    decoder, energy = model.decoder, model.decoder.energy
    got = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True)
    notes = model.encode(pairs.source, pairs.source_lengths)
    h, s = notes.vectors[0], torch.tanh(decoder.bridges[0](notes.summary[0]))
    first, second = gru_cell(decoder.cells[0]), gru_cell(decoder.second)
    for t, token in enumerate(pairs.target[0, :-1]):
        y = decoder.embedding.weight[token]
        between = first(y, s)
        alpha = torch.softmax(torch.tanh(energy.query(between) + energy.key(h)) @ energy.weight, 0)
        c = alpha @ h
        s = second(c, between)
        torch.testing.assert_close(got.weights[0, 0, t], alpha)
        torch.testing.assert_close(got.features[0, t], torch.tanh(decoder.join(torch.cat([s, y, c]))))


def test_recurrent_and_word_dropout_act_in_training_alone() -> None:
    for encoder, decoder in (
        (GRU, replace(DECODERS["conditional"], recurrent_dropout=0.5)),  # type: ignore[type-var]
        (GRU, replace(DECODERS["conditional"], word_dropout=0.5)),  # type: ignore[type-var]
        (replace(GRU, word_dropout=0.5), DECODERS["conditional"]),  # type: ignore[type-var]
    ):
        model, pairs = translator(encoder, decoder), batch()
        inputs = (pairs.source, pairs.source_lengths, pairs.target[:, :-1])
        assert torch.equal(model(*inputs).features, model(*inputs).features)
        model.train()
        assert not torch.equal(model(*inputs).features, model(*inputs).features)


@pytest.mark.parametrize("kind", ["Luong dot", "Luong general", "Luong local-p"])
def test_luong_is_the_papers_equations(kind: str) -> None:
    """s' = cell([y; h̃], s), a = softmax(s' W h), c = Σ a h, h̃' = tanh(W_c [c; s']); local-p as in section 3.2."""
    settings = DECODERS[kind]
    assert isinstance(settings, RecurrentDecoderConfig)
    model = translator(GRU, RecurrentDecoderConfig(**{**settings.__dict__, "layers": 1, "cell": "gru"}))
    decoder, pairs = model.decoder, batch(sentences=1)
    with torch.no_grad():
        got = model(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True)
        notes = model.encode(pairs.source, pairs.source_lengths)
        h, s = notes.vectors[0], torch.tanh(decoder.bridges[0](notes.summary[0]))
        cell, fed = gru_cell(decoder.cells[0]), torch.zeros(WIDTH, dtype=torch.float64)
        for t, token in enumerate(pairs.target[0, :-1]):
            s = cell(torch.cat([decoder.embedding.weight[token], fed]), s)
            e = h @ (s if "dot" in kind else decoder.energy.weight.mT @ s)
            scale = torch.ones(len(h), dtype=torch.float64)
            if "local" in kind:
                p = len(h) * torch.sigmoid(decoder.local.outer(torch.tanh(decoder.local.inner(s)))).float().double()
                away = torch.arange(len(h)) - p
                e = e.masked_fill(away.abs() > 2, -torch.inf)
                scale = torch.exp(-(away**2) / (2 * 1.0**2))  # σ = D/2 = 1
            a = torch.softmax(e, 0) * scale
            fed = torch.tanh(decoder.join(torch.cat([a @ h, s])))
            torch.testing.assert_close(got.weights[0, 0, t], a, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(got.features[0, t], fed, rtol=1e-6, atol=1e-6)


def test_label_smoothing_is_pytorchs() -> None:
    model, pairs = translator(GRU, DECODERS["Bahdanau"]), batch()
    logits = model.readout(model(pairs.source, pairs.source_lengths, pairs.target[:, :-1]).features)
    want = nn.functional.cross_entropy(
        logits.flatten(0, 1), pairs.target[:, 1:].flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
    )
    loss = model.loss(pairs, smoothing=0.1)
    assert loss.total.item() == pytest.approx(want.item(), rel=1e-12)
    assert loss.nll.item() == pytest.approx(model.loss(pairs).total.item(), rel=1e-12)
    assert not loss.nll.requires_grad


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match='"general"'):
        translator(GRU, RecurrentDecoderConfig(attention="luong", energy="dot", width=WIDTH + 1))
    with pytest.raises(ValueError, match="luong"):
        translator(GRU, RecurrentDecoderConfig(scope="local-m"))
    with pytest.raises(ValueError, match="equally wide"):
        translator(GRU, RecurrentDecoderConfig(attention="luong", embedding=8, width=WIDTH), tied="decoder")
    with pytest.raises(ValueError, match="one vocabulary"):
        EncoderDecoder(EncoderDecoderConfig(20, 21, TRANSFORMER, DECODERS["Transformer"], tied="all"))
    with pytest.raises(ValueError, match="learned 4 positions"):
        translator(TRANSFORMER, DECODERS["Transformer, learned"], longest=4).loss(batch())


def test_the_loss_is_the_same_in_any_number_of_pieces() -> None:
    from regard.models import decoder as loss

    torch.manual_seed(0)
    f, w = (torch.randn(n, 6, dtype=torch.float64, requires_grad=True) for n in (50, 11))
    y = torch.randint(0, 11, (50,))
    want = nn.functional.cross_entropy(f @ w.mT, y, reduction="sum", label_smoothing=0.2)
    wanted = torch.autograd.grad(want, (f, w))
    for rows in (7, 50, 1000):
        total, _ = loss._CrossEntropy.apply(f, w, y, None, 0.2, rows, True)
        torch.testing.assert_close(total, want)
        for got, other in zip(torch.autograd.grad(total, (f, w)), wanted, strict=True):
            torch.testing.assert_close(got, other)
    real = torch.rand(50) < 0.5  # as on a GPU, where padding is multiplied by 0
    want = nn.functional.cross_entropy(f[real] @ w.mT, y[real], reduction="sum", label_smoothing=0.2)
    total, _ = loss._CrossEntropy.apply(f, w, y, real.double(), 0.2, 7, True)
    torch.testing.assert_close(total, want)
    for got, other in zip(torch.autograd.grad(total, (f, w)), torch.autograd.grad(want, (f, w)), strict=True):
        torch.testing.assert_close(got, other)


def test_the_loss_of_half_precision_features_is_that_of_their_numbers() -> None:
    """Log-probabilities, their sums and the gradient of the matrix are in float32; only p − y is rounded."""
    from regard.models.decoder import cross_entropy

    torch.manual_seed(0)
    f, w = (torch.randn(n, 16).bfloat16().requires_grad_() for n in (300, 1000))
    y, real = torch.randint(0, 1000, (300,)), torch.rand(300) < 0.8
    wide = [x.detach().double().requires_grad_() for x in (f, w)]
    want = cross_entropy(wide[0], wide[1], y, real, 0.1).total
    total = cross_entropy(f, w, y, real, 0.1).total
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(want.item(), rel=2**-8)  # the logits are bfloat16
    for got, exact in zip(torch.autograd.grad(total, (f, w)), torch.autograd.grad(want, wide), strict=True):
        assert got.dtype == torch.bfloat16
        assert (got.double() - exact).norm() < 2**-6 * exact.norm()


def test_scoring_computes_no_gradients() -> None:
    """Validation and perplexity need the loss alone: one product with the vocabulary, not three."""
    model, pairs = translator(GRU, DECODERS["Bahdanau"]), batch()
    turned = [VOCABULARY, int((pairs.target_lengths - 1).sum())]  # of the product that gives the matrix's gradient

    def products(learns: bool) -> int:
        with torch.set_grad_enabled(learns), torch.profiler.profile(record_shapes=True) as watched:
            model.loss(pairs)
        return sum("mm" in event.name and turned in (event.input_shapes or []) for event in watched.events())

    assert products(learns=True)
    assert not products(learns=False)
