"""The common representation holds: every encoder under every decoder learns from the phrase book."""

from __future__ import annotations

import pytest
import torch

from regard.data import Batches, EncodedCorpus, Tokenizer, TokenizerPair
from regard.data.corpora import phrasebook
from regard.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)

RNN = {"embedding": 32, "width": 48, "dropout": 0.0}
DEEP = {"width": 48, "heads": 4, "hidden": 96, "layers": 1, "dropout": 0.0}
LUONG = {**RNN, "attention": "luong", "cell": "lstm"}

ENCODERS: dict[str, EncoderConfig] = {
    "GRU, both directions": RecurrentEncoderConfig(embedding=32, width=24, dropout=0.0),
    "LSTM, one direction": RecurrentEncoderConfig(cell="lstm", bidirectional=False, **RNN),  # type: ignore[arg-type]
    "Transformer": TransformerEncoderConfig(**DEEP),  # type: ignore[arg-type]
}
DECODERS: dict[str, DecoderConfig] = {
    "none": RecurrentDecoderConfig(attention="none", **RNN),  # type: ignore[arg-type]
    "Bahdanau": RecurrentDecoderConfig(**RNN),  # type: ignore[arg-type]
    "conditional": RecurrentDecoderConfig(attention="conditional", **RNN),  # type: ignore[arg-type]
    "Luong dot": RecurrentDecoderConfig(energy="dot", **LUONG),  # type: ignore[arg-type]
    "Luong general": RecurrentDecoderConfig(energy="general", **LUONG),  # type: ignore[arg-type]
    "Luong concat": RecurrentDecoderConfig(energy="concat", **LUONG),  # type: ignore[arg-type]
    "Luong local": RecurrentDecoderConfig(energy="general", scope="local-p", window=4, **LUONG),  # type: ignore[arg-type]
    "Transformer": TransformerDecoderConfig(**DEEP),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def corpus() -> tuple[EncodedCorpus, TokenizerPair, float]:
    """A few sentences, and what each word costs who knows only how often it comes."""
    pairs = [pair for pair in phrasebook.pairs(600, seed=0) if len(pair.source.split()) < 12][:120]
    sides = TokenizerPair(
        Tokenizer.train("word", 2000, (pair.source for pair in pairs)),
        Tokenizer.train("word", 2000, (pair.target for pair in pairs)),
    )
    encoded = EncodedCorpus.build(pairs, sides)
    counts = torch.bincount(torch.from_numpy(encoded.target).long())
    share = counts[counts > 0] / counts.sum()
    return encoded, sides, -(share * share.log()).sum().item()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_pairing_learns(corpus: tuple[EncodedCorpus, TokenizerPair, float], encoder: str, decoder: str) -> None:
    encoded, sides, frequencies = corpus
    torch.manual_seed(0)
    model = EncoderDecoder(
        EncoderDecoderConfig(len(sides.source), len(sides.target), ENCODERS[encoder], DECODERS[decoder])
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    nll = tokens = 0.0
    for epoch in range(20):
        nll = tokens = 0.0
        for batch in Batches(encoded, tokens=512, epoch=epoch):
            loss = model.loss(batch)
            optimizer.zero_grad()
            (loss.total / loss.tokens).backward()
            optimizer.step()
            nll, tokens = nll + loss.nll.item(), tokens + loss.tokens.item()
    assert nll / tokens < 0.8 * frequencies, f"{nll / tokens:.2f} nats a word; frequencies alone give {frequencies:.2f}"
