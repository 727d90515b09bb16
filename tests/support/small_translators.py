"""Translators of a few texts with random weights, in memory and as the folder of a run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from regard.data import Tokenizer, TokenizerPair
from regard.decoding import export_ctranslate2
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "the bird sees a worm .",
    "a worm",
    "the early bird , the one under the old tree , sees and eats a very small and very late worm .",
    "",
    "the late worm sees the early bird .",
    "birds eat worms .",
    "the tree is old , the bird is early and the worm is late .",
]


ENCODERS = {
    "rnn": RecurrentEncoderConfig(embedding=16, width=8),
    "transformer": TransformerEncoderConfig(width=16, heads=2, hidden=32, layers=2),
}
DECODERS: dict[str, Any] = {
    "seq2seq": RecurrentDecoderConfig(attention="none", embedding=16, width=16),
    "bahdanau": RecurrentDecoderConfig(embedding=16, width=16, readout="maxout"),
    "conditional": RecurrentDecoderConfig(attention="conditional", embedding=16, width=16),
    "luong-local": RecurrentDecoderConfig(
        attention="luong", energy="general", scope="local-p", cell="lstm", window=2, embedding=16, width=16
    ),
    "transformer": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2),
    "alibi": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2, positions="alibi"),
    "rotary": TransformerDecoderConfig(width=16, heads=2, key_heads=1, hidden=32, layers=2, positions="rotary"),
}


@cache
def text_tokenizers() -> TokenizerPair:
    """One tokenizer of `TEXTS` for both sides."""
    both = Tokenizer.train("bpe", 80, TEXTS)
    return TokenizerPair(both, both)


def small_translator(size: int, encoder: str = "rnn", decoder: str = "bahdanau") -> EncoderDecoder:
    """A translator with a vocabulary of this size on both sides."""
    torch.manual_seed(1)
    made = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS[encoder], DECODERS[decoder]))
    with torch.no_grad():  # larger weights, so that no two hypotheses are nearly equal
        for parameter in made.parameters():
            parameter.mul_(2.5 if parameter.dim() > 1 else 1)
    return made.eval()


def with_sharp_logits(model: EncoderDecoder) -> EncoderDecoder:
    """Random weights with logits far apart, and norms and biases that differ from one place to the next."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save_run(folder: Path) -> Path:
    """A run as `regard train` leaves it."""
    tokenizers = text_tokenizers()
    small_translator(len(tokenizers.source)).save_pretrained(folder / "model")
    tokenizers.save(folder / "model")
    (folder / "recipe.toml").write_text("[search]\nbeams = 2\nlength_penalty = 0.5\n", encoding="utf-8")
    return folder


def save_unfinished_run(folder: Path, model: EncoderDecoder, *kinds: str) -> None:
    """A run as `regard train` leaves it when it is interrupted, with snapshots of these kinds."""
    from regard.training import Run
    from regard.training.checkpoint import Checkpoints

    (folder / "checkpoints").mkdir(parents=True)
    (folder / "data").mkdir()
    text_tokenizers().save(folder / "data")
    (folder / "recipe.toml").write_text("[data]\n[search]\nbeams = 3\n", encoding="utf-8")
    model.save_config(folder / "checkpoints")
    snapshots = Checkpoints(Run(folder, None), window=3)  # type: ignore[arg-type]
    others = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    if "update" in kinds:
        snapshots.take(50, others)
        snapshots.take(100, others if "best" in kinds else model.state_dict())
    if "best" in kinds:
        snapshots.take(75, model.state_dict(), "best")


def save_exported_run(folder: Path) -> Path:
    """A run with a Transformer, and its copy for CTranslate2 in ctranslate2/, as `regard export` writes it."""
    tokenizers = text_tokenizers()
    model = small_translator(len(tokenizers.source), "transformer", "transformer")
    model.save_pretrained(folder / "model")
    tokenizers.save(folder / "model")
    export_ctranslate2(model, tokenizers, folder / "ctranslate2")
    return folder


def recurrent_translator(tokenizers: TokenizerPair, attention: str = "bahdanau") -> EncoderDecoder:
    """A recurrent translator for these tokenizers."""
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        source_vocabulary=len(tokenizers.source),
        target_vocabulary=len(tokenizers.target),
        encoder=RecurrentEncoderConfig(embedding=8, width=8),
        decoder=RecurrentDecoderConfig(attention=attention, embedding=8, width=8),  # type: ignore[arg-type]
    )
    return EncoderDecoder(config).eval()
