"""The table of systems, encoders × decoders, from the code: `python -m tools.systems_page` writes docs/systems.md.

A cell names the published system, or says that the pair works; tests/models/test_systems.py trains all of them.
"""

from __future__ import annotations

from pathlib import Path

from regard.models import config

PAGE = Path(__file__).parent.parent / "docs" / "systems.md"
WIDTH = 32
RNN = {"embedding": 24, "width": WIDTH, "dropout": 0.0}
DEEP = {"width": WIDTH, "heads": 4, "hidden": 64, "layers": 1, "dropout": 0.0}

# By what they read, then by name; small, so that a test can train each.
ENCODERS: dict[tuple[str, str], config.Encoder] = {
    ("nothing", "none"): config.NoEncoder(),
    ("text", "bag of words"): config.BagEncoder(width=WIDTH),
    ("text", "CNN"): config.ConvolutionEncoder(embedding=24, width=8, windows=[1, 2, 3, 4], dropout=0.0),
    ("text", "RNN"): config.RecurrentEncoder(bidirectional=False, **RNN),  # type: ignore[arg-type]
    ("text", "bidirectional RNN"): config.RecurrentEncoder(embedding=24, width=WIDTH // 2, dropout=0.0),
    ("text", "LSTMN"): config.LSTMNEncoder(**RNN),  # type: ignore[arg-type]
    ("text", "Transformer"): config.TransformerEncoder(**DEEP),  # type: ignore[arg-type]
    ("sound", "CNN"): config.ConvolutionEncoder(
        reads="sound", embedding=24, width=8, windows=[1, 2, 3, 4], stride=4, dropout=0.0
    ),
    ("sound", "RNN"): config.RecurrentEncoder(reads="sound", embedding=24, width=WIDTH // 2, dropout=0.0),
    ("sound", "LSTMN"): config.LSTMNEncoder(reads="sound", **RNN),  # type: ignore[arg-type]
    ("sound", "Transformer"): config.TransformerEncoder(reads="sound", **DEEP),  # type: ignore[arg-type]
    ("a picture", "our CNN"): config.GridEncoder(size=64, width=WIDTH),
    ("a picture", "EfficientNet-Lite0"): config.EfficientNetEncoder(size=64),
}
WRITERS: dict[str, config.Decoder] = {
    "RNN, no attention": config.RecurrentDecoder(attention="none", **RNN),  # type: ignore[arg-type]
    "RNN, Bahdanau": config.RecurrentDecoder(**RNN),  # type: ignore[arg-type]
    "RNN, Luong": config.RecurrentDecoder(attention="luong", energy="general", **RNN),  # type: ignore[arg-type]
    "LSTMN": config.LSTMNDecoder(**RNN),  # type: ignore[arg-type]
    "Show-Attend-Tell, soft": config.TellDecoder(hidden=16, **RNN),  # type: ignore[arg-type]
    "Show-Attend-Tell, hard": config.TellDecoder(attention="hard", hidden=16, **RNN),  # type: ignore[arg-type]
    "Transformer": config.TransformerDecoder(**DEEP),  # type: ignore[arg-type]
}
HEADS: dict[str, config.Head] = {
    "mean": config.Head(pooling="mean"),
    "last": config.Head(pooling="last"),
    "max": config.Head(pooling="max"),
    "TF-IDF": config.Head(pooling="static"),
    "learned per word": config.Head(pooling="learned"),
    "attention": config.Head(pooling="attention", hidden=16),
}

NAMED = {
    ("text", "RNN", "RNN, no attention"): "seq2seq (Sutskever 2014)",
    ("text", "bidirectional RNN", "RNN, Bahdanau"): "Bahdanau 2014",
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


def why_not(reads: str, part: config.Decoder | config.Head) -> str | None:
    """Why a pairing cannot be; None where it can."""
    if isinstance(part, config.Head):
        if reads == "nothing":
            return "nothing to classify"
        if part.pooling in ("static", "learned") and reads != "text":
            return "weighs words"
        return "recipes classify text and sound" if reads == "a picture" else None
    if reads == "nothing":
        looks = getattr(part, "attention", "none") != "none"
        return "nothing to attend to" if looks else None
    return None


def paired(reads: str, decoder: config.Decoder) -> config.Decoder:
    """The decoder as it stands over this encoder: over nothing an LSTMN has nothing to fuse with."""
    if reads == "nothing" and isinstance(decoder, config.LSTMNDecoder):
        return config.LSTMNDecoder(fusion="none", **RNN)  # type: ignore[arg-type]
    return decoder


def cells() -> list[tuple[str, str, str]]:
    """Every pairing that works: what is read, by which encoder, under which decoder or pooling."""
    parts: dict[str, config.Decoder | config.Head] = {**WRITERS, **HEADS}
    return [
        (reads, encoder, name)
        for reads, encoder in ENCODERS
        for name, part in parts.items()
        if not why_not(reads, part)
    ]


def table(parts: dict[str, config.Decoder] | dict[str, config.Head]) -> str:
    lines = [f"| reads | encoder | {' | '.join(parts)} |", f"|{'---|' * (len(parts) + 2)}"]
    for reads, encoder in ENCODERS:
        row = []
        for name, part in parts.items():
            reason = why_not(reads, part)
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
