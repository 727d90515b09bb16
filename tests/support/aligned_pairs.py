"""Four sentence pairs with gold links, and small translators of them with random weights."""

from __future__ import annotations

from functools import cache

import torch

from regard.data import Pair, Tokenizer, TokenizerPair
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.small_translators import recurrent_translator

SOURCES = ["the bird sees a worm .", "a worm", "the early bird eats the late worm under the old tree .", "birds eat ."]
TARGETS = [
    "l' oiseau voit un ver .",
    "un ver",
    "l' oiseau matinal mange le ver tardif sous le vieil arbre .",
    "ils mangent .",
]
LINKS = ["0-0 1-1 2-2 3-3 4-4 5-5", "0-0 1-1", "1-2 2-1 3-3 4-4 5-6 6-5 7-7 8-8 9-9 10-10 11-11", "0-0 1-1 2-2"]
PAIRS = [Pair(s, t, alignment=links, possible="0-1") for s, t, links in zip(SOURCES, TARGETS, LINKS, strict=True)]


@cache
def pair_tokenizers() -> TokenizerPair:
    return TokenizerPair(Tokenizer.train("bpe", 60, SOURCES), Tokenizer.train("bpe", 60, TARGETS))


def pair_model(kind: str = "transformer") -> EncoderDecoder:
    """A Transformer, or a recurrent translator with attention ("bahdanau") or without ("seq2seq")."""
    tokenizers = pair_tokenizers()
    if kind != "transformer":
        return recurrent_translator(tokenizers, "none" if kind == "seq2seq" else kind)
    torch.manual_seed(0)
    parts = {"width": 16, "heads": 2, "hidden": 32, "layers": 3}
    encoder, decoder = TransformerEncoderConfig(**parts), TransformerDecoderConfig(**parts)
    return EncoderDecoder(EncoderDecoderConfig(len(tokenizers.source), len(tokenizers.target), encoder, decoder)).eval()
