"""Language models in docs/results.md: tiny Shakespeare, three seeds each, from training runs of ours.

    python -m benchmarks.language_model_results run [WORDS …]  train and evaluate what is missing (names with WORDS)
    python -m benchmarks.language_model_results list | section

A run is `regard train RECIPE …` followed by `regard evaluate RUN`, in a process of its own; `--jobs` runs several at a
time. It needs ../shared/data (or REGARD_DATA). On a GPU a run of the large table takes minutes, the LSTMN's longest;
those of the small table are made for two CPU cores.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from benchmarks.results_csv import by_recipe, line, spread, tables
from benchmarks.training_runs import RUNS, SEEDS, Experiment, main, trained, training_speed, where

FIGURES = Path(__file__).parent / "language_models.csv"
COLUMNS = (
    *("table", "recipe", "seed", "loss", "parameters", "updates", "seconds", "tokens_per_second"),
    *("day", "machine", "versions"),
)

TITLES = {
    "shakespeare": (
        "Tiny Shakespeare, character by character",
        "The last tenth of the text is held out, as in nanoGPT. The loss is in nats per character, over all of the "
        "held-out text in adjacent windows of 256; nanoGPT estimates the same from random windows. It is the loss of "
        "the best checkpoint, as in nanoGPT, or of the average of the last ten if that is better. nanoGPT reports "
        "1.4697 for its Transformer of this size after 5,000 updates of 64 windows; ours stopped after four "
        "validations without improvement. Several runs shared the GPU, so do not compare their times. The recipes "
        "differ in the number of updates and in dropout: the LSTM overfits first, the LSTMN learns slowly.",
    ),
    "shakespeare-kept": (
        "The same Transformer without attention dropout",
        "nanoGPT uses attention dropout of 0.2, and so does the recipe above. Without it "
        "(`decoder.attention_dropout=0`) the model overfits earlier.",
    ),
    "shakespeare-small": (
        "Tiny Shakespeare, small models",
        "nanoGPT's setting for a CPU: 2,000 updates of twelve windows of 64 characters. It reports 1.88 after about "
        "three minutes.",
    ),
}


def experiments() -> list[Experiment]:
    kinds = ("transformer", "lstm", "lstmn")
    all_kept = ("decoder.attention_dropout=0", "training.patience=0")
    made = [Experiment("shakespeare-small", f"{kind}-shakespeare-small", (), seed) for kind in kinds for seed in SEEDS]
    made += [Experiment("shakespeare-kept", "transformer-shakespeare", all_kept, seed) for seed in SEEDS]
    made += [Experiment("shakespeare", f"{kind}-shakespeare", (), seed) for kind in kinds for seed in SEEDS]
    made += [Experiment("shakespeare", "shakespeare-shipped", (), seed) for seed in SEEDS]
    return made


def run(experiment: Experiment) -> dict[str, str]:
    from safetensors import safe_open

    folder = RUNS / experiment.name
    scored = trained(folder, experiment.training)["values"]
    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        parameters = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    updates, speed = training_speed(folder)
    tokens = _tokens(folder)
    return {
        **experiment.key,
        "loss": f"{scored['loss']:.4f}",
        "parameters": str(parameters),
        "updates": str(updates),
        "seconds": f"{updates * tokens / speed:.0f}",
        "tokens_per_second": f"{speed:.0f}",
        **where(),
    }


def _tokens(folder: Path) -> int:
    """Predicted in one update."""
    from regard.training.run_folder import Run

    recipe = Run.open(folder).recipe
    block = recipe.data.longest
    return recipe.training.tokens // block * block * recipe.training.accumulate


def section(rows: list[dict[str, str]]) -> list[str]:
    """The tables of docs/results.md, as lines."""
    out = []
    for heading, same in tables(TITLES, rows):
        out += heading
        out += ["| language model | parameters | updates | loss | perplexity | training | seeds |"]
        out += ["|---|---:|---:|---:|---:|---:|---:|"]
        for runs in sorted(by_recipe(same), key=lambda runs: statistics.fmean(float(row["loss"]) for row in runs)):
            losses = [float(row["loss"]) for row in runs]
            seconds = statistics.median(float(row["seconds"]) for row in runs)
            cells = [
                f"{int(runs[0]['parameters']) / 1e6:.2f} M",
                f"{int(runs[0]['updates']):,}",
                spread(losses, 4),
                spread([math.exp(loss) for loss in losses], 3),
                f"{seconds:.0f} s",
            ]
            out.append(line(runs, cells))
        out.append("")
    return out


if __name__ == "__main__":
    main(__doc__, FIGURES, COLUMNS, experiments, run, section)
