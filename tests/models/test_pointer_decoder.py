"""The pointer-generator against its equation; unknown words are copied, never generated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.decoding import search
from regard.models import EncoderDecoder, EncoderDecoderConfig, MultiDecoderConfig, RecurrentDecoderConfig
from regard.models.pointer_decoder import PointerDecoder
from regard.special_tokens import END, UNKNOWN
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

SLOTS = 4
FIRST = VOCABULARY - SLOTS  # ids from here on are unknown words


KINDS = {"Bahdanau, copy": 1, "Transformer, copy": 2}  # and the number of heads


def model(kind: str = "Bahdanau, copy", slots: int = SLOTS) -> EncoderDecoder:
    torch.manual_seed(3)
    parts = ENCODERS["bidirectional GRU"], DECODERS[kind]
    return EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, *parts, slots=slots)).double().eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_is_the_papers_equation(kind: str) -> None:
    """p(w) = p_gen P_vocab(w) + (1 − p_gen) Σ_{i: x_i = w} a_i; unknown words are read as <unk>."""
    made, pairs = model(kind), batch()
    decoder = made.decoder
    assert isinstance(decoder, PointerDecoder)
    pairs.source[0, :2], pairs.target[0, 2] = torch.tensor([FIRST + 1, FIRST]), FIRST
    source, target = (ids.where(ids < FIRST, UNKNOWN) for ids in (pairs.source, pairs.target))
    inner = decoder.decoder(target[:, :-1], made.encoder(source, pairs.source_lengths), weights=True)
    got = made(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True)
    for row in range(3):
        for t in range(target.shape[1] - 1):
            f, a = inner.features[row, t], inner.weights[row, -KINDS[kind] :, t].mean(0)
            p_gen = torch.sigmoid(decoder.gate.weight[0] @ f + decoder.gate.bias[0])
            vocabulary = torch.softmax(decoder.output.weight[:FIRST] @ f, 0)
            p = torch.cat([p_gen * vocabulary, torch.zeros(SLOTS, dtype=torch.float64)])
            for word, weight in zip(pairs.source[row].tolist(), a, strict=True):
                p[word] += (1 - p_gen) * weight
            torch.testing.assert_close(got.features[row, t].exp(), p)
            torch.testing.assert_close(got.generation[row, t], p_gen)
    torch.testing.assert_close(got.features.exp().sum(-1), torch.ones(3, 6, dtype=torch.float64))


@torch.no_grad()
def test_the_loss_is_that_of_the_mixture() -> None:
    """An unknown word that the source lacks counts as <unk>; smoothing is spread over what can be generated."""
    made, pairs = model(), batch()
    pairs.source[0, 0], pairs.target[0, 1] = FIRST, FIRST
    pairs.source[1] = pairs.source[1].where(pairs.source[1] != FIRST + 1, 5)
    pairs.target[1, 1] = FIRST + 1
    log_p = made(pairs.source, pairs.source_lengths, pairs.target[:, :-1]).features
    nll = spread = 0.0
    for row, length in enumerate(pairs.target_lengths.tolist()):
        for t in range(length - 1):
            word = int(pairs.target[row, t + 1])
            word = word if word < FIRST or word in pairs.source[row].tolist() else UNKNOWN
            nll -= log_p[row, t, word].item()
            spread -= log_p[row, t, :FIRST].mean().item()
    loss = made.loss(pairs, smoothing=0.1)
    assert loss.nll.item() == pytest.approx(nll)
    assert loss.total.item() == pytest.approx(0.9 * nll + 0.1 * spread)
    assert int(loss.tokens) == int((pairs.target_lengths - 1).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind: str) -> None:
    made, pairs = model(kind), batch()
    pairs.target[0, 1] = pairs.source[0, 0] = FIRST
    made.loss(pairs).total.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_a_search_copies_an_unknown_word() -> None:
    made = model()
    with torch.no_grad():  # always copy, from the first place
        made.decoder.gate.bias.fill_(-1e3)
    source = torch.tensor([[FIRST + 2, END]])
    annotations = made.encode(source, torch.tensor([2]))
    ((best,),) = search(made, annotations, beams=3, longest=2, weights=True)
    assert set(best.tokens) <= {FIRST + 2}
    assert best.generation is not None
    assert best.generation.max() < 1e-6
    assert best.generation.shape == best.weights.shape[1:2]  # type: ignore[union-attr]


def test_what_cannot_copy_is_refused() -> None:
    encoder, copying = ENCODERS["bidirectional GRU"], DECODERS["Bahdanau, copy"]
    assert isinstance(copying, RecurrentDecoderConfig)
    with pytest.raises(ValueError, match="needs one vocabulary for source and target"):
        EncoderDecoder(EncoderDecoderConfig(20, 21, encoder, copying))
    with pytest.raises(ValueError, match="slots = 4 are unknown words to copy, and decoder"):
        EncoderDecoder(EncoderDecoderConfig(20, 20, encoder, DECODERS["Bahdanau"], slots=4))
    with pytest.raises(ValueError, match="copies the words that attention points to"):
        replace(copying, attention="none").check()
    with pytest.raises(ValueError, match="for a model with one decoder"):
        MultiDecoderConfig(20, 20, encoder, copying, tags=[4, 5]).check()
    assert "no decoder that copies" in (model().config.export_problem("ctranslate2") or "")
    assert model().config.export_problem("onnx") is None
    made = model()
    with pytest.raises(ValueError, match="do not have the ids to copy from"):
        search(made, made.encoder(torch.tensor([[5, END]]), torch.tensor([2])))
