"""Captioners in docs/results.md: scenes and photographs, three seeds each, from training runs of ours.

    python -m benchmarks.caption_results run [WORDS …]  train and evaluate what is missing (names with WORDS)
    python -m benchmarks.caption_results list | section

A run is `regard train RECIPE …` followed by `regard evaluate RUN`, in a process of its own; `--jobs` runs several at a
time. The photographs need ../shared/data (or REGARD_DATA) and EfficientNet-Lite0's weights: its package, or the file of
it that the environment variable REGARD_EFFICIENTNET names.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results_csv import by_recipe, line, spread, tables
from benchmarks.training_runs import RUNS, SEEDS, Experiment, main, trained, where

FIGURES = Path(__file__).parent / "captions.csv"
SCORES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D", "chrF", "pointing", "loss")
DIGITS = {"CIDEr-D": 2, "loss": 3}
COLUMNS = ("table", "recipe", "seed", *SCORES, "day", "machine", "versions")
KINDS = ("plain", "soft", "hard", "transformer")

TITLES = {
    "scenes": (
        "Captions of scenes",
        "Generated pictures: 1,000 with captions that do not occur in training. Pointing is the share of words with a "
        "position (sizes, colours, shapes) for which the centre of the cell with the largest weight lies inside a box "
        "of the named object, with the true caption as input; a Transformer's maps are averaged. Training is longer "
        "than in the recipe, which is made for two minutes on two CPU cores. Hard attention starts soft for 4,000 "
        "updates; [Lab notes](lab_notes.md) lists the other settings that were tried.",
    ),
    "photos-en": (
        "Captions of photographs, English",
        "The 991 photographs of Flickr8k that were available, in the official split: 753 for training, which is few, "
        "113 for validation, 125 for testing, with five captions each. The features of EfficientNet-Lite0 are frozen. "
        "Words are compared in lower case, without punctuation. For comparison, Xu et al. 2015 reach BLEU-1 to 4 of "
        "67/44.8/29.9/19.5 (soft) and 67/45.7/31.4/21.3 (hard) with 6,000 photographs.",
    ),
    "photos-de": (
        "The same photographs, German",
        "The same frozen encoder with another decoder: 705 captions of Multi30k, one per photograph. There is one "
        "reference per test photograph, which alone lowers BLEU.",
    ),
    "photos-fr": ("The same photographs, French", "As above."),
}


def experiments() -> list[Experiment]:
    # Another seed of the pictures than the recipes were tried with; and longer than two minutes on two CPU cores.
    longer = ("training.updates=5000", "training.tokens=1024", "training.validate_every=1000", "data.train=20000")
    longer = (*longer, "data.seed=7")
    made = []
    for kind in KINDS:
        settings = (*longer, "decoder.warmup=4000") if kind == "hard" else longer  # four fifths, as in the recipe
        made += [Experiment("scenes", f"{kind}-scenes", settings, seed) for seed in SEEDS]
    made += [Experiment("photos-en", f"{kind}-photos", (), seed) for kind in KINDS for seed in SEEDS]
    for language in ("de", "fr"):
        made += [
            Experiment(f"photos-{language}", f"{kind}-photos", (f"data.language={language}",), seed)
            for kind in ("plain", "soft")
            for seed in SEEDS
        ]
    return made


def run(experiment: Experiment) -> dict[str, str]:
    folder = RUNS / experiment.name
    scored = trained(folder, experiment.training)["values"]
    return {
        **experiment.key,
        **{name: f"{scored[name]:.3f}" if name in scored else "" for name in SCORES},
        **where(),
    }


def section(rows: list[dict[str, str]]) -> list[str]:
    """The tables of docs/results.md, as lines."""
    out = []
    for heading, same in tables(TITLES, rows):
        scores = [score for score in SCORES if any(row[score] for row in same)]
        out += heading
        out += [f"| captioner | {' | '.join(scores)} | seeds |", f"|---|{'---:|' * (len(scores) + 1)}"]
        order = sorted(same, key=lambda row: KINDS.index(row["recipe"].split("-")[0]))
        for runs in by_recipe(order):
            values = [[float(row[score]) for row in runs if row[score]] for score in scores]
            cells = [
                spread(seeds, DIGITS.get(score, 1)) if seeds else "–"
                for score, seeds in zip(scores, values, strict=True)
            ]
            out.append(line(runs, cells))
        out.append("")
    return out


if __name__ == "__main__":
    main(__doc__, FIGURES, COLUMNS, experiments, run, section)
