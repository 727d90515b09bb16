"""The table of systems, encoders × decoders, from the code: `python -m tools.systems_page` writes docs/systems.md.

A cell names the published system, or says that the pair works; tests/models/test_systems.py trains all of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from regard.models import (
    BagEncoderConfig,
    ClassifierConfig,
    ConvolutionEncoderConfig,
    DecoderConfig,
    EfficientNetEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    GridEncoderConfig,
    HeadConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
    encoder_decoder,
)
from regard.models.configurations import SOURCES

PAGE = Path(__file__).parent.parent / "docs" / "systems.md"
WIDTH = 32
RNN = {"embedding": 24, "width": WIDTH, "dropout": 0.0}
DEEP = {"width": WIDTH, "heads": 4, "hidden": 64, "layers": 1, "dropout": 0.0}

# By source and name; small, so that a test can train each. Registered kinds without an entry are added below.
ENCODERS: dict[tuple[str, str], EncoderConfig] = {
    ("nothing", "none"): NoEncoderConfig(),
    ("text", "bag of words"): BagEncoderConfig(width=WIDTH),
    ("text", "CNN"): ConvolutionEncoderConfig(embedding=24, width=8, windows=[1, 2, 3, 4], dropout=0.0),
    ("text", "RNN"): RecurrentEncoderConfig(bidirectional=False, **RNN),  # type: ignore[arg-type]
    ("text", "bidirectional RNN"): RecurrentEncoderConfig(embedding=24, width=WIDTH // 2, dropout=0.0),
    ("text", "LSTMN"): LSTMNEncoderConfig(**RNN),  # type: ignore[arg-type]
    ("text", "Transformer"): TransformerEncoderConfig(**DEEP),  # type: ignore[arg-type]
    ("sound", "CNN"): ConvolutionEncoderConfig(
        reads="sound", embedding=24, width=8, windows=[1, 2, 3, 4], stride=4, dropout=0.0
    ),
    ("sound", "RNN"): RecurrentEncoderConfig(reads="sound", embedding=24, width=WIDTH // 2, dropout=0.0),
    ("sound", "LSTMN"): LSTMNEncoderConfig(reads="sound", **RNN),  # type: ignore[arg-type]
    ("sound", "Transformer"): TransformerEncoderConfig(reads="sound", **DEEP),  # type: ignore[arg-type]
    ("a picture", "our CNN"): GridEncoderConfig(size=64, width=WIDTH),
    ("a picture", "EfficientNet-Lite0"): EfficientNetEncoderConfig(size=64),
}
WRITERS: dict[str, DecoderConfig] = {
    "RNN, no attention": RecurrentDecoderConfig(attention="none", **RNN),  # type: ignore[arg-type]
    "RNN, Bahdanau": RecurrentDecoderConfig(**RNN),  # type: ignore[arg-type]
    "RNN, conditional": RecurrentDecoderConfig(attention="conditional", **RNN),  # type: ignore[arg-type]
    "RNN, Luong": RecurrentDecoderConfig(attention="luong", energy="general", **RNN),  # type: ignore[arg-type]
    "LSTMN": LSTMNDecoderConfig(**RNN),  # type: ignore[arg-type]
    "Show-Attend-Tell, soft": ShowAttendTellDecoderConfig(hidden=16, **RNN),  # type: ignore[arg-type]
    "Show-Attend-Tell, hard": ShowAttendTellDecoderConfig(attention="hard", hidden=16, **RNN),  # type: ignore[arg-type]
    "Transformer": TransformerDecoderConfig(**DEEP),  # type: ignore[arg-type]
}
HEADS: dict[str, HeadConfig] = {
    "mean": HeadConfig(pooling="mean"),
    "last": HeadConfig(pooling="last"),
    "max": HeadConfig(pooling="max"),
    "TF-IDF": HeadConfig(pooling="static"),
    "learned per word": HeadConfig(pooling="learned"),
    "attention": HeadConfig(pooling="attention", hidden=16),
}

SMALL: dict[str, Any] = {**RNN, **DEEP, "size": 64}


def _small(config: type[Any]) -> Any:
    """A configuration with the small sizes of this page."""
    return config(**{each.name: SMALL[each.name] for each in fields(config) if each.name in SMALL})


for kind in encoder_decoder.ENCODERS.keys() - {part.kind for part in ENCODERS.values()}:
    encoder = _small(encoder_decoder.ENCODERS[kind])
    ENCODERS[{"none": "nothing", "picture": "a picture"}.get(encoder.reads, encoder.reads), kind] = encoder
for kind in encoder_decoder.DECODERS.keys() - {part.kind for part in WRITERS.values()}:
    WRITERS[kind] = _small(encoder_decoder.DECODERS[kind])

NAMED = {
    ("text", "RNN", "RNN, no attention"): "seq2seq (Sutskever 2014)",
    ("text", "bidirectional RNN", "RNN, Bahdanau"): "Bahdanau 2014",
    ("text", "bidirectional RNN", "RNN, conditional"): "Nematus (Sennrich 2017)",
    ("text", "RNN", "RNN, Luong"): "Luong 2015",
    ("text", "LSTMN", "LSTMN"): "LSTMN, deep fusion (Cheng 2016)",
    ("text", "Transformer", "Transformer"): "Transformer (Vaswani 2017)",
    ("nothing", "none", "RNN, no attention"): "RNN language model",
    ("nothing", "none", "LSTMN"): "LSTMN language model (Cheng 2016)",
    ("nothing", "none", "Transformer"): "Transformer language model",
    ("a picture", "our CNN", "Show-Attend-Tell, soft"): "Show, Attend and Tell (Xu 2015)",
    ("a picture", "EfficientNet-Lite0", "Show-Attend-Tell, soft"): "Show, Attend and Tell (Xu 2015)",
    ("a picture", "our CNN", "Show-Attend-Tell, hard"): "the same, hard",
    ("a picture", "EfficientNet-Lite0", "Show-Attend-Tell, hard"): "the same, hard",
    ("sound", "RNN", "RNN, Bahdanau"): "speller",
    ("text", "bag of words", "TF-IDF"): "TF-IDF and a linear map",
    ("text", "bag of words", "learned per word"): "adaptive weights",
    ("text", "CNN", "max"): "Kim 2014",
    ("text", "bidirectional RNN", "last"): "BiLSTM",
    ("text", "RNN", "attention"): "LSTM with attention pooling",
}


def why_not(encoder: EncoderConfig, part: DecoderConfig | HeadConfig) -> str | None:
    """Why a pairing cannot be; None where it can."""
    words = 1 if encoder.reads == "text" else 0
    if isinstance(part, HeadConfig):
        if encoder.reads == "none":
            return "nothing to classify"
        if ClassifierConfig(words, 1, encoder, part).problems():
            return "weighs words"
        return None if encoder.reads in SOURCES["classify"] else "recipes classify text and sound"
    return "nothing to attend to" if EncoderDecoderConfig(words, 1, encoder, paired(encoder, part)).problems() else None


def paired(encoder: EncoderConfig, decoder: DecoderConfig) -> DecoderConfig:
    """The decoder's settings over this encoder: without a source an LSTMN has nothing to fuse with."""
    if encoder.reads == "none" and isinstance(decoder, LSTMNDecoderConfig):
        return replace(decoder, fusion="none")
    return decoder


def cells() -> list[tuple[str, str, str]]:
    """Every pairing that works: what is read, by which encoder, under which decoder or pooling."""
    parts: dict[str, DecoderConfig | HeadConfig] = {**WRITERS, **HEADS}
    return [
        (reads, encoder, name)
        for (reads, encoder), config in ENCODERS.items()
        for name, part in parts.items()
        if not why_not(config, part)
    ]


def table(parts: dict[str, DecoderConfig] | dict[str, HeadConfig]) -> str:
    lines = [f"| reads | encoder | {' | '.join(parts)} |", f"|{'---|' * (len(parts) + 2)}"]
    for (reads, encoder), config in ENCODERS.items():
        row = []
        for name, part in parts.items():
            reason = why_not(config, part)
            row.append(f"– ({reason})" if reason else NAMED.get((reads, encoder, name), "works"))
        if not all(cell.startswith("–") for cell in row):
            lines.append(f"| {reads} | {encoder} | {' | '.join(row)} |")
    return "\n".join(lines)


def page() -> str:
    return f"""# Systems: encoders × decoders

An encoder turns a sentence, a picture or a sound into annotation vectors with a mask. A decoder reads them, whatever
their source (see the [glossary](glossary.md#models)). Each published system is one cell of these tables.
`python -m tools.systems_page` writes this page from the code, and `tests/models/test_systems.py` trains every cell that
does not begin with a dash.

## Decoders: generation, token by token

{table(WRITERS)}

## Classifiers: pooling the annotations into one vector

{table(HEADS)}

A recipe selects a cell with `[encoder] kind = …` and `[decoder] kind = …` (or `[head] pooling = …`). `regard recipes`
lists the recipes that ship. For any other cell, write your own recipe: see [Translation](translation.md).
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(cells())} systems")


if __name__ == "__main__":
    main()
