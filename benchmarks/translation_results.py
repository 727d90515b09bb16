"""Translators in docs/results.md: Multi30k, Tatoeba, alignments, the phrase book; three seeds each.

    python -m benchmarks.translation_results run [WORDS …]  train and evaluate what is missing (names with WORDS)
    python -m benchmarks.translation_results list | section

`--jobs` runs several at a time; three fill a GPU, more gain nothing. All but the phrase book need ../shared/data (or
REGARD_DATA), and a GPU is advised.
"""

from __future__ import annotations

import csv
import os
import statistics
from itertools import groupby
from pathlib import Path

from benchmarks.results_csv import spread, tables
from benchmarks.training_runs import RUNS, SEEDS, Experiment, main, trained, where

FIGURES = Path(__file__).parent / "translation.csv"
COLUMNS = (
    *("table", "recipe", "seed", "bleu", "tokenised_bleu", "chrf", "perplexity"),
    "aer",  # of the best layer; empty where there are no gold links
    "lengths",  # "low-high:sentences:BLEU" for each range of source lengths, joined by spaces
    "updates",
    "tokens_per_second",  # while training, the median
    *("signature", "day", "machine", "versions"),
)
ARCHITECTURES = (
    "transformer",
    "bahdanau",
    "luong-dot",
    "luong-general",
    "luong-concat",
    "luong-local",
    "seq2seq",
)
GOLD = "alignments/hansards-200.en-fr.tsv.xz"

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
        "with a plain readout 38.1 at update 3,000. On the test set LSTMs for GRUs reach 37.43, 37.58 and 38.10. Here "
        "and below, recurrent encoders were trained when mixed precision still ran cuDNN's steps in float16, as "
        "PyTorch's autocast does whatever it is asked for; now they run in float32.",
    ),
    "multi30k-en-fr": (
        "Multi30k, English to French, test_2016_flickr",
        "As above. Published: Transformer-Tiny 61.80 (Wu et al. 2021). Seed 2 of luong-local-multi30k overflowed in "
        "float16 at update 1,241; in float32 it learns on (50.1 at update 3,000 on the validation set), but was not "
        "finished.",
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


def experiments() -> list[Experiment]:
    made = []
    for table, settings in (("multi30k-en-de", ()), ("multi30k-en-fr", ("data.columns=[0,2]",))):
        made += [Experiment(table, f"{a}-multi30k", settings, seed) for a in ARCHITECTURES for seed in SEEDS]
    for kind in ("transformer", "bahdanau", "seq2seq"):
        made += [Experiment("tatoeba-en-fr", f"{kind}-tatoeba", (), seed) for seed in SEEDS]
    # Long pairs are few, and each of their widths would be a graph of its own.
    news = (
        'data.train=["tatoeba/train.en-fr.tsv.xz","newstest/2008-2012.en-fr.tsv.xz"]',
        "data.longest=80",
        "tokenizer.size=10000",
        "tokenizer.lowercase=true",
    )
    for kind in ("transformer", "bahdanau", "luong-general"):
        made += [Experiment("hansards-en-fr", f"{kind}-tatoeba", news, seed) for seed in SEEDS]
    # Another seed of the grammar than the recipes were tuned with: none of its test sentences was ever looked at.
    fresh = ("data.seed=7",)
    made += [Experiment("phrasebook", f"{a}-phrasebook", fresh, seed) for a in ARCHITECTURES for seed in SEEDS]
    return made


def run(experiment: Experiment) -> dict[str, str]:
    folder, evaluation = RUNS / experiment.name, []
    if experiment.table == "hansards-en-fr":  # scored on sentences with gold links, not on the recipe's test set
        data = Path(os.environ.get("REGARD_DATA", "../shared/data"))
        evaluation = [str(data / GOLD), "--columns", "0,1,2,3", "--tokenised"]
    scored = trained(folder, experiment.training, evaluation)
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["tokens_per_second"]]
    return {
        **experiment.key,
        "bleu": f"{scored['bleu']['value']:.2f}",
        "tokenised_bleu": f"{scored['tokenised_bleu']['value']:.2f}",
        "chrf": f"{scored['chrf']['value']:.2f}",
        "perplexity": f"{scored['perplexity']:.3f}",
        "aer": f"{min(scored['aer'].values()):.4f}" if scored["aer"] else "",
        "lengths": " ".join(f"{b['low']}-{b['high']}:{b['sentences']}:{b['bleu']:.2f}" for b in scored["by_length"]),
        "updates": str(max(int(line["update"]) for line in lines)),
        "tokens_per_second": f"{statistics.median(float(line['tokens_per_second']) for line in lines):.1f}",
        "signature": scored["bleu"]["signature"],
        **where(),
    }


def section(rows: list[dict[str, str]]) -> list[str]:
    """The tables of docs/results.md, as lines."""
    out = []
    for heading, same in tables(TITLES, rows):
        out += [*heading, *_table(same), ""]
    return out


def _table(rows: list[dict[str, str]]) -> list[str]:
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


if __name__ == "__main__":
    main(__doc__, FIGURES, COLUMNS, experiments, run, section)
