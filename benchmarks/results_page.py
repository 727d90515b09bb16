"""docs/results.md from the figures of our runs: tables of means and spreads, and Bahdanau's figure."""

from __future__ import annotations

import json
import statistics
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
FIGURE = DOCS / "length.svg"
CURVES = Path(__file__).parent.parent / "src" / "regard" / "viewer" / "length.json"
DRAWN = ("phrasebook", "tatoeba-en-fr")
KINDS = ("seq2seq", "bahdanau", "transformer")

TITLES = {
    "multi30k-en-de": (
        "Multi30k, English to German, test_2016_flickr",
        "Lowercased, normalised, tokenised; the form most papers score on. Published: Transformer-Tiny 41.02 "
        "tokenised BLEU, beam 5 (Wu et al. 2021); text-only GRUs about 38, which bahdanau-multi30k misses. Nothing "
        "tried beat it on the validation set (39.7 at its best update): batches twice as large, there with dropout "
        "0.4 or 0.5 and with the decoder's or all embeddings tied (38.5 to 38.8), all tied with dropout 0.5 (38.8); "
        "and, stopped at update 3,000, where it has 39.2, all tied (38.6), batches half as large (37.3), 768 wide "
        "with dropout 0.5 (38.8), a rate that falls as an inverse square root (38.3), the same with all tied and "
        "weight decay (37.8); and a schedule of 4,000 updates, at update 3,500 of it 38.5, with LSTMs for GRUs 38.8, "
        "with a plain readout 38.1 at update 3,000.",
    ),
    "multi30k-en-fr": (
        "Multi30k, English to French, test_2016_flickr",
        "As above. Published: Transformer-Tiny 61.80 (Wu et al. 2021).",
    ),
    "tatoeba-en-fr": (
        "Tatoeba, English to French",
        "Everyday sentences, cased, as people write; test sentences share no English side with training.",
    ),
    "hansards-en-fr": (
        "Word alignment: 200 sentences of the Hansards, English to French",
        "Gold links of the NAACL 2003 shared task; AER of the best layer, by forced decoding. Trained on Tatoeba and "
        "newstest 2008–2012 together, lowercased: none of that is parliament's language, nor tokenised like these "
        "sentences, so BLEU and perplexity are poor. Published, English to German: AER 0.34–0.39 (Luong et al. 2015).",
    ),
    "phrasebook": (
        "The phrase book, English to French",
        "Our own grammar; 1,000 unseen sentences with gold alignments. AER: of the best layer, by forced decoding.",
    ),
}


def spread(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation over the seeds; the one value where there is one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def table(rows: list[dict[str, str]]) -> list[str]:
    aligned = any(row["aer"] for row in rows)
    out = [
        "| translator | tokenised BLEU | sacreBLEU | chrF | perplexity |" + (" AER |" if aligned else "") + " seeds |",
        "|---|---:|---:|---:|---:|" + ("---:|" if aligned else "") + "---:|",
    ]
    groups = [(recipe, list(group)) for recipe, group in groupby(rows, key=lambda row: row["recipe"])]
    groups.sort(key=lambda pair: -statistics.fmean(float(row["tokenised_bleu"]) for row in pair[1]))
    for recipe, same in groups:
        cells = [
            spread([float(row[name]) for row in same]) for name in ("tokenised_bleu", "bleu", "chrf", "perplexity")
        ]
        if aligned:
            errors = [float(row["aer"]) for row in same if row["aer"]]
            cells.append(spread(errors, 3) if errors else "–")
        out.append(f"| {recipe} | {' | '.join(cells)} | {', '.join(row['seed'] for row in same)} |")
    return out


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


def save_curves(rows: list[dict[str, str]]) -> None:
    """The same figure's numbers, for the viewer to draw."""
    told = [
        {"data": TITLES[name][0], "translator": kind, "points": points}
        for name in DRAWN
        for kind in KINDS
        if (points := curves(rows, name, kind))
    ]
    CURVES.write_text(json.dumps({"curves": told}, indent=1) + "\n", encoding="utf-8")


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


def write(rows: list[dict[str, str]]) -> None:
    out = [
        "# Results",
        "",
        "Written by `python -m benchmarks.results page` from the figures that `make results` keeps in `benchmarks/`: "
        "each line is a training run from a shipped recipe (`regard train RECIPE seed=N`) and its `regard evaluate`, "
        "translators with beam 5. Mean ± standard deviation over the seeds. Tokenised BLEU is of the tokens as they "
        "stand, sacreBLEU of its own 13a tokens; the two are not to be mixed.",
        "",
    ]
    for name, group in groupby(
        sorted(rows, key=lambda row: list(TITLES).index(row["table"])), key=lambda r: r["table"]
    ):
        same = list(group)
        title, remark = TITLES[name]
        days, machines, versions = ({row[key] for row in same} for key in ("day", "machine", "versions"))
        where = f"{', '.join(sorted(machines))}; {', '.join(sorted(versions))}; {', '.join(sorted(days))}."
        out += [f"## {title}", "", f"{remark} {where}", "", *table(same), ""]
    if any(row["recipe"].startswith("seq2seq") for row in rows):
        figure(rows)
        save_curves(rows)
        out += [
            "## One vector, or a look per word",
            "",
            "BLEU by the length of the source sentence; lengths with fewer than 20 sentences are left out. What "
            "Bahdanau et al. drew in their figure 2: without attention, long sentences are lost.",
            "",
            f"![BLEU by sentence length, with and without attention]({FIGURE.name})",
            "",
        ]
    out += canon()
    (DOCS / "results.md").write_text("\n".join(out), encoding="utf-8")


def canon() -> list[str]:
    """The tables of all that does not translate, and of how long recipes take, which their own files make."""
    from . import canon_caption, canon_classify, canon_writing, minutes
    from .figures import kept

    parts = (canon_writing, canon_classify, canon_caption, minutes)
    return [line for part in parts for line in part.section(kept(part.FIGURES))]
