"""Our own models, watched while they translate: one matrix per layer, and the one the model says it used."""

from __future__ import annotations

import pytest
import torch

from regard import watch
from regard.data import Tokenizer, TokenizerPair
from regard.decoding import translate
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.small_models import VOCABULARY, batch

TEXTS = ["the bird sees a worm .", "a worm", "the late worm sees the early bird ."]
ENCODERS = {
    "rnn": RecurrentEncoderConfig(embedding=16, width=8),
    "transformer": TransformerEncoderConfig(width=16, heads=2, hidden=32, layers=2),
}
DECODERS = {
    "bahdanau": RecurrentDecoderConfig(embedding=16, width=16),
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
    (found,) = translate(model, tokenizers, TEXTS[:1], beams=1, longest=6, weights=True)
    assert plain.tokens == found.tokens
    assert seen.faithful, seen
    crossing = [call for call in seen if call.kind == "cross"]
    assert crossing
    assert found.weights is not None
    shown = torch.cat([call.weights.tile(slice(None), slice(None)).flatten(0, -3) for call in crossing])
    rows = found.weights.shape[1]  # the search may go a step beyond what it keeps
    assert rows >= 6
    assert torch.allclose(shown[:, :rows], found.weights, atol=1e-5)


def test_two_sentences_in_one_block_are_not_one_generation() -> None:
    """An RNN's decoder tells its energies, not its keys: only the values say that a new sentence has begun."""
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["rnn"], DECODERS["bahdanau"])).eval()  # type: ignore[arg-type]
    with watch(model) as seen, torch.no_grad():
        for seed in (1, 2):
            model.loss(batch(seed=seed))
    assert [call.shape for call in seen] == [(3, 6, 6), (3, 6, 6)]
    assert seen.faithful
