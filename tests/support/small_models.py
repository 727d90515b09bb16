"""Batches and small models that tests of translators share."""

from __future__ import annotations

import torch

from regard.data.batches import Batch
from regard.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.special_tokens import BEGIN, END, PAD

VOCABULARY = 20
WIDTH = 12


def batch(sentences: int = 3, places: int = 6, targets: int = 7, seed: int = 0) -> Batch:
    """Random pairs of different lengths; the first is as long as allowed."""
    torch.manual_seed(seed)
    source_lengths, target_lengths = (
        torch.randint(1, places + 1, (sentences,)),
        torch.randint(3, targets + 1, (sentences,)),
    )
    source_lengths[0], target_lengths[0] = places, targets
    source, target = (torch.randint(4, VOCABULARY, (sentences, n)) for n in (places, targets))
    target[:, 0] = BEGIN
    for ids, lengths in ((source, source_lengths), (target, target_lengths)):
        ids[torch.arange(sentences), lengths - 1] = END
        ids[torch.arange(ids.shape[1]) >= lengths[:, None]] = PAD
    return Batch(source, source_lengths, target, target_lengths, torch.arange(sentences))


ENCODERS: dict[str, EncoderConfig] = {
    "bidirectional GRU": RecurrentEncoderConfig(embedding=8, width=WIDTH // 2, dropout=0.0),
    "LSTM, 2 layers": RecurrentEncoderConfig(
        cell="lstm", bidirectional=False, embedding=8, width=WIDTH, layers=2, dropout=0.0
    ),
    "Transformer": TransformerEncoderConfig(width=WIDTH, heads=2, hidden=16, layers=2, dropout=0.0),
    "Transformer, post, rotary": TransformerEncoderConfig(
        width=WIDTH, heads=2, key_heads=1, hidden=16, layers=1, norm="post", positions="rotary", dropout=0.0
    ),
    "LSTMN, 2 layers": LSTMNEncoderConfig(embedding=8, width=WIDTH, layers=2, dropout=0.0),
}


def _rnn(**settings: object) -> RecurrentDecoderConfig:
    return RecurrentDecoderConfig(**{"embedding": 8, "width": WIDTH, "dropout": 0.0, **settings})  # type: ignore[arg-type]


def _transformer(**settings: object) -> TransformerDecoderConfig:
    small = {"width": WIDTH, "heads": 2, "hidden": 16, "layers": 2, "dropout": 0.0}
    return TransformerDecoderConfig(**{**small, **settings})  # type: ignore[arg-type]


DECODERS: dict[str, DecoderConfig] = {
    "no attention": _rnn(attention="none"),
    "no attention, LSTM": _rnn(attention="none", cell="lstm", layers=2),
    "Bahdanau": _rnn(),
    "Bahdanau, maxout, 2 layers": _rnn(readout="maxout", layers=2),
    "Bahdanau, dot": _rnn(energy="dot"),
    "Bahdanau, copy": _rnn(copy=True),
    "conditional": _rnn(attention="conditional"),
    "conditional, LSTM, maxout, 2 layers": _rnn(attention="conditional", cell="lstm", readout="maxout", layers=2),
    "conditional, dot": _rnn(attention="conditional", energy="dot"),
    "Luong dot": _rnn(attention="luong", energy="dot", cell="lstm"),
    "Luong general": _rnn(attention="luong", energy="general", cell="lstm", layers=2),
    "Luong concat": _rnn(attention="luong", energy="concat"),
    "Luong without input feeding": _rnn(attention="luong", energy="general", input_feeding=False),
    "Luong local-m": _rnn(attention="luong", energy="general", scope="local-m", window=2),
    "Luong local-p": _rnn(attention="luong", energy="general", scope="local-p", window=2),
    "LSTMN, shallow": LSTMNDecoderConfig(fusion="shallow", embedding=8, width=WIDTH, layers=2, dropout=0.0),
    "LSTMN, deep": LSTMNDecoderConfig(embedding=8, width=WIDTH, dropout=0.0),
    "Transformer": _transformer(),
    "Transformer, copy": _transformer(copy=True),
    "Transformer, post": _transformer(norm="post"),
    "Transformer, shared keys": _transformer(key_heads=1),
    "Transformer, learned": _transformer(positions="learned"),
    "Transformer, rotary": _transformer(positions="rotary"),
    "Transformer, ALiBi": _transformer(positions="alibi"),
}


def translator(encoder: EncoderConfig, decoder: DecoderConfig, **settings: object) -> EncoderDecoder:
    """A translator with random weights in float64, ready to be evaluated."""
    torch.manual_seed(7)
    made = EncoderDecoderConfig(VOCABULARY, VOCABULARY, encoder, decoder, **settings)  # type: ignore[arg-type]
    return EncoderDecoder(made).double().eval()
