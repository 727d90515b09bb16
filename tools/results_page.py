"""docs/results.md and its figure, from the figures of our training runs; no number in a table is typed by hand.

    python -m tools.results_page

`make results` makes the runs that are missing first.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks import (
    caption_results,
    classification_results,
    language_model_results,
    recipe_times,
    translation_results,
)
from benchmarks.results_csv import kept
from benchmarks.translation_results import TITLES

DOCS = Path(__file__).parent.parent / "docs"
FIGURE = DOCS / "length.svg"
DRAWN = ("phrasebook", "tatoeba-en-fr")
KINDS = ("seq2seq", "bahdanau", "transformer")


def lengths(row: dict[str, str]) -> list[tuple[int, int, int, float]]:
    """(low, high, sentences, BLEU) for each range of lengths."""
    found = []
    for part in row["lengths"].split():
        span, count, bleu = part.split(":")
        low, high = span.split("-")
        found.append((int(low), int(high), int(count), float(bleu)))
    return found


def curves(rows: list[dict[str, str]], name: str, kind: str) -> list[tuple[float, float, int]]:
    """(words in the source, BLEU, sentences) of one translator on one corpus, the mean over its seeds."""
    same = [lengths(row) for row in rows if row["table"] == name and row["recipe"].startswith(kind)]
    bins = [group for group in zip(*same, strict=False) if group[0][2] >= 20]  # fewer say little
    return [
        ((one[0][0] + (one[0][1] or one[0][0] + 4)) / 2, round(statistics.fmean(x[3] for x in one), 2), one[0][2])
        for one in bins
    ]


def figure(rows: list[dict[str, str]]) -> None:
    """BLEU by sentence length with and without attention: figure 2 of Bahdanau et al. 2015, on our data."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "regard"  # the same figures give the same file
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(DRAWN), figsize=(9, 3.2), constrained_layout=True)
    colours = dict(zip(KINDS, ("#c2553a", "#159a8c", "#4a66c0"), strict=True))
    for axis, name in zip(axes, DRAWN, strict=True):
        for kind, colour in colours.items():
            points = curves(rows, name, kind)
            if points:
                axis.plot([x[0] for x in points], [x[1] for x in points], "o-", color=colour, label=kind)
        axis.set(title=TITLES[name][0], xlabel="words in the source", ylabel="BLEU", ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    fig.savefig(FIGURE, metadata={"Date": None})
    plt.close(fig)


def main() -> None:
    translators = kept(translation_results.FIGURES)
    if not translators:
        raise SystemExit("no figures of translators yet: `make results` makes them")
    figure(translators)
    out = [
        "# Results",
        "",
        "What the shipped recipes score. Each row is trained with `regard train RECIPE seed=N` and scored with "
        "`regard evaluate`; translators use beam search with 5 beams.",
        "",
        "- Values are the mean ± standard deviation over the seeds.",
        "- Tokenised BLEU uses the tokens of the data set, sacreBLEU its own 13a tokenisation. Do not compare one with "
        "the other.",
        "- `make results` runs what is missing and keeps the figures in `benchmarks/*.csv`; "
        "`python -m tools.results_page` writes this page from them. Terms are in the [glossary](glossary.md).",
        "",
        *translation_results.section(translators),
        "## BLEU by sentence length",
        "",
        "Figure 2 of Bahdanau et al. on our data: without attention, BLEU falls with the length of the source "
        "sentence. Lengths with fewer than 20 sentences are left out.",
        "",
        f"![BLEU by sentence length, with and without attention]({FIGURE.name})",
        "",
    ]
    for part in (language_model_results, classification_results, caption_results, recipe_times):
        out += part.section(kept(part.FIGURES))
    (DOCS / "results.md").write_text("\n".join(out), encoding="utf-8")


if __name__ == "__main__":
    main()
