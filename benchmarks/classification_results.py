"""Classifiers and spellers in docs/results.md: SST-5, SST-2, TREC, opinions, spoken digits, from training runs of ours.

    python -m benchmarks.classification_results run [WORDS …]  train and evaluate what is missing (names with WORDS)
    python -m benchmarks.classification_results list | section

A run is `regard train RECIPE …` followed by `regard evaluate RUN`. `--jobs` keeps several at work, each in a process
that stays for the next run, since starting Python takes longer than some of them. It needs ../shared/data (or
REGARD_DATA); the digits need soundfile. On a GPU a run takes half a minute, most of which is not the GPU's.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from benchmarks.results_csv import by_recipe, spread, tables
from benchmarks.training_runs import RUNS, SEEDS, Experiment, main, trained, where

FIGURES = Path(__file__).parent / "classification.csv"
COLUMNS = ("table", "recipe", "seed", "score", "loss", "day", "machine", "versions")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
MEAN, ATTENTION = "head.pooling=mean", "head.pooling=attention"

# What is compared: the recipe and its settings.
TEXT = (
    ("tfidf",),
    ("adaptive",),
    ("mean",),
    ("cnn",),
    ("bilstm",),
    ("bilstm", MEAN),
    ("lstm-attention",),
    ("lstmn",),
    ("lstmn", ATTENTION),
    ("transformer", MEAN),
    ("transformer",),
)
SOUND = (("cnn", MEAN), ("cnn",), ("gru", MEAN), ("gru",), ("transformer", MEAN), ("transformer",))
SPELLERS = (("spell", "decoder.attention=none"), ("spell",))

_SENTENCES = (
    "Accuracy on the official test set, %. Trained on whole sentences only, with randomly initialised word vectors. "
)
TITLES = {
    "sst5": (
        "SST-5: sentiment, five classes",
        _SENTENCES
        + "Published models also train on phrases and mostly use pretrained vectors: Kim's CNN 45.0 with random "
        "vectors, the LSTMN 47.9.",
    ),
    "sst2": (
        "SST-2: sentiment, two classes",
        _SENTENCES + "With phrases, Kim's CNN reaches 82.7 with random vectors, the LSTMN 87.0.",
    ),
    "trec": (
        "TREC: question types",
        _SENTENCES + "Kim's CNN reaches 91.2 with random vectors. A tenth of the training set is used for validation.",
    ),
    "opinions": (
        "Opinions: generated reviews",
        "Short reviews from our own grammar, in which word order matters. Accuracy on 1,000 unseen reviews, %. The "
        "seed of the grammar differs from the one that the recipes were tuned with.",
    ),
    "digits": (
        "Spoken digits, the official split",
        "Accuracy on 300 recordings of the six speakers in the training set, %.",
    ),
    "digits-apart": (
        "Spoken digits, unseen speaker",
        "Accuracy on the 500 recordings of one speaker, by a classifier trained on the other five, %. Mean and "
        "standard deviation over the six speakers.",
    ),
    "spelling": (
        "Speech to letters, spoken digits",
        "Character error rate on the official test set, %. Lower is better.",
    ),
}
# The same encoder under the mean and under attention.
PAIRED = (("bilstm-{} " + MEAN, "lstm-attention-{}"), ("lstmn-{}", "lstmn-{} " + ATTENTION))
PAIRED += tuple((f"{kind}-{{}} {MEAN}", f"{kind}-{{}}") for kind in ("transformer", "cnn", "gru"))


def experiments() -> list[Experiment]:
    made = []
    for table in ("sst5", "sst2", "trec"):
        made += [Experiment(table, _with(system, table), (), seed) for system in TEXT for seed in SEEDS]
    made += [
        Experiment("opinions", _with(system, "opinions", "data.seed=7"), (), seed) for system in TEXT for seed in SEEDS
    ]
    made += [Experiment("digits", _with(system, "digits"), (), seed) for system in SOUND for seed in SEEDS]
    for speaker in SPEAKERS:
        apart = f"data.left_out={speaker}"
        made += [Experiment("digits-apart", _with(system, "digits", apart), (), 1) for system in SOUND]
    made += [Experiment("spelling", _with(system, "digits"), (), seed) for system in SPELLERS for seed in SEEDS]
    return made


def _with(system: tuple[str, ...], data: str, *more: str) -> str:
    return " ".join([f"{system[0]}-{data}", *system[1:], *more])


def run(experiment: Experiment) -> dict[str, str]:
    scored = trained(RUNS / experiment.name, experiment.training)["values"]
    return {
        **experiment.key,
        "score": f"{scored.get('accuracy', scored.get('error rate')):.3f}",
        "loss": f"{scored['loss']:.4f}",
        **where(),
    }


def section(rows: list[dict[str, str]]) -> list[str]:
    """The tables of docs/results.md, as lines."""
    out = []
    for heading, same in tables(TITLES, [{**row, "recipe": _shown(row["recipe"])} for row in rows]):
        table = same[0]["table"]
        named = "error rate" if table == "spelling" else "accuracy"
        counted = "speakers" if table == "digits-apart" else "seeds"
        out += [*heading, f"| `regard train …` | {named} | loss | {counted} |", "|---|---:|---:|---:|"]
        groups = {runs[0]["recipe"]: runs for runs in by_recipe(sorted(same, key=lambda row: row["recipe"]))}
        scores = {recipe: [float(row["score"]) for row in runs] for recipe, runs in groups.items()}
        for recipe in sorted(scores, key=lambda recipe: statistics.fmean(scores[recipe]), reverse=named == "accuracy"):
            loss = spread([float(row["loss"]) for row in groups[recipe]], 3)
            out.append(f"| `{recipe}` | {spread(scores[recipe], 2)} | {loss} | {len(groups[recipe])} |")
        out += ["", *_verdicts(table.removesuffix("-apart"), scores), ""]
    return out


def _shown(recipe: str) -> str:
    """Without what differs between the runs of one line."""
    return re.sub(r" data\.(left_out|seed)=\w+", "", recipe)


def _verdicts(data: str, scores: dict[str, list[float]]) -> list[str]:
    """Whether attention does better than the mean of the same vectors, by more than both spread together."""
    said = []
    for mean, attention in ((one.format(data), other.format(data)) for one, other in PAIRED):
        if min(len(scores.get(mean, [])), len(scores.get(attention, []))) < len(SEEDS):  # too few to tell
            continue
        gain = statistics.fmean(scores[attention]) - statistics.fmean(scores[mean])
        noise = statistics.stdev(scores[mean]) + statistics.stdev(scores[attention])
        verdict = "beyond" if abs(gain) > noise else "within"
        said.append(f"`{attention}` over `{mean}`: {gain:+.2f}, {verdict} the spread.")
    return [f"Attention pooling compared with mean pooling of the same encoder. {' '.join(said)}"] if said else []


if __name__ == "__main__":
    main(__doc__, FIGURES, COLUMNS, experiments, run, section)
