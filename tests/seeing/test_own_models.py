"""Our own models, watched while they translate: one matrix per layer, and the one the model says it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import torch

from regard import load_trace, watch
from regard.attention.energies import DotForm, TanhForm
from regard.data import Tokenizer, TokenizerPair
from regard.decoding import model_folders, translate
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    GridEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.viewer.inside import neuron_view
from tests.support.small_models import DECODERS as SMALL_DECODERS
from tests.support.small_models import ENCODERS as SMALL_ENCODERS
from tests.support.small_models import VOCABULARY, batch

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the bird sees a worm .", "a worm", "the late worm sees the early bird ."]
ENCODERS = {
    "rnn": RecurrentEncoderConfig(embedding=16, width=8),
    "transformer": TransformerEncoderConfig(width=16, heads=2, hidden=32, layers=2),
}
DECODERS = {
    "bahdanau": RecurrentDecoderConfig(embedding=16, width=16),
    "conditional": RecurrentDecoderConfig(attention="conditional", embedding=16, width=16),
    "luong": RecurrentDecoderConfig(attention="luong", energy="general", cell="lstm", embedding=16, width=16),
    "transformer": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2),
    "alibi": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2, positions="alibi"),
    "rotary": TransformerDecoderConfig(width=16, heads=2, key_heads=1, hidden=32, layers=2, positions="rotary"),
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_translation_is_seen_whole(encoder: str, decoder: str) -> None:
    both = Tokenizer.train("bpe", 60, TEXTS)
    torch.manual_seed(1)
    size = len(both)
    model = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS[encoder], DECODERS[decoder])).eval()  # type: ignore[arg-type]
    tokenizers = TokenizerPair(both, both)
    with watch(model) as seen:
        (plain,) = translate(model, tokenizers, TEXTS[:1], beams=1, longest=6)
    (translation,) = translate(model, tokenizers, TEXTS[:1], beams=1, longest=6, weights=True)
    assert plain.tokens == translation.tokens
    assert seen.faithful, seen
    crossing = [call for call in seen if call.kind == "cross"]
    assert crossing
    assert translation.weights is not None
    shown = torch.cat([call.weights.tile(slice(None), slice(None)).flatten(0, -3) for call in crossing])
    rows = translation.weights.shape[1]  # the search may go a step beyond what it keeps
    assert rows >= 6
    assert torch.allclose(shown[:, :rows], translation.weights, atol=1e-5)


def test_two_sentences_in_one_block_are_not_one_generation() -> None:
    """Other keys and values: a new sentence, not a further step."""
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["rnn"], DECODERS["bahdanau"])).eval()  # type: ignore[arg-type]
    with watch(model) as seen, torch.no_grad():
        for seed in (1, 2):
            model.loss(batch(seed=seed))
    assert [call.shape for call in seen] == [(3, 6, 6), (3, 6, 6)]
    assert seen.faithful


def test_a_shipped_recurrent_translator_shows_queries_and_keys(tmp_path: Path) -> None:
    loaded = model_folders.load("tatoeba-bahdanau-en-fr")
    with watch(loaded.model) as seen:
        (plain,) = translate(loaded.model, loaded.tokenizers, ["The cat sleeps."], beams=1)
    (translation,) = translate(loaded.model, loaded.tokenizers, ["The cat sleeps."], beams=1, weights=True)
    (call,) = seen
    assert plain.tokens == translation.tokens
    assert translation.weights is not None
    energies, decoder = call.weights.energies, loaded.model.decoder
    assert isinstance(energies.form, TanhForm)
    assert torch.equal(energies.form.weight, decoder.energy.weight)
    assert energies.a.shape == (1, call.shape[-2], decoder.config.width)
    assert energies.b.shape == (1, call.shape[-1], decoder.config.width)
    error = call.fidelity().error
    assert error is not None
    assert error < 1e-5
    rows = translation.weights.shape[1]
    torch.testing.assert_close(call.weights.dense()[:, :rows], translation.weights, atol=1e-5, rtol=1e-4)
    terms = neuron_view(call.head(0), 1, range(call.shape[-1]))
    assert terms["kind"] == "tanh"
    torch.testing.assert_close(
        torch.tensor(terms["product"]).sum(-1), torch.tensor(terms["modified"]), atol=1e-4, rtol=1e-4
    )
    seen.save(tmp_path / "trace")
    (back,) = load_trace(tmp_path / "trace")
    for kept, saved in ((energies.a, back.weights.energies.a), (energies.b, back.weights.energies.b)):
        torch.testing.assert_close(kept, saved)
    assert back.weights.entropy().shape == call.shape[:-1]


@pytest.mark.parametrize(
    "name", [name for name in SMALL_DECODERS if not name.startswith(("no attention", "Transformer"))]
)
def test_a_loop_reports_its_form_and_its_mask(name: str) -> None:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, SMALL_ENCODERS["bidirectional GRU"], SMALL_DECODERS[name])
    model, pairs = EncoderDecoder(config).eval(), batch()
    with watch(model) as seen, torch.no_grad():
        decoded = model(pairs.source, pairs.source_lengths, pairs.target, weights=True)
    crossing = [call for call in seen if call.kind == "cross"]
    if name == "Luong local-p":  # Gaussian weights do not sum to one
        assert not crossing
        return
    (call,) = crossing
    assert seen.faithful, seen
    dot = "dot" in name or ("Luong" in name and "concat" not in name)
    assert isinstance(call.weights.energies.form, DotForm if dot else TanhForm)
    assert call.weights.energies.mask is not None  # the sentences differ in length
    assert not call.weights.energies.modifiers
    torch.testing.assert_close(call.weights.dense(), decoded.weights[:, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_a_captioner_reports_queries_and_keys(attention: Literal["soft", "hard"]) -> None:
    torch.manual_seed(0)
    decoder = ShowAttendTellDecoderConfig(attention=attention, embedding=16, width=16, hidden=8)
    model = EncoderDecoder(EncoderDecoderConfig(0, VOCABULARY, GridEncoderConfig(size=32, width=16), decoder)).eval()
    pictures, pairs = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8), batch()
    with watch(model) as seen, torch.no_grad():
        decoded = model(pictures, torch.ones(3), pairs.target, weights=True)
    (call,) = seen
    assert seen.faithful, seen
    assert isinstance(call.weights.energies.form, TanhForm)
    assert call.weights.energies.a.shape[-1] == 8
    torch.testing.assert_close(call.weights.dense(), decoded.weights[:, 0], atol=1e-5, rtol=1e-4)
