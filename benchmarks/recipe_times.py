"""How long each recipe on data of regard's own trains on two CPU cores, from the command to the saved model.

python -m benchmarks.recipe_times run [WORDS …]    time what is missing (names that hold all WORDS), in turn,
                                              into benchmarks/recipe_times.csv; nothing else should run on the machine
python -m benchmarks.recipe_times list | section
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results_csv import places
from benchmarks.training_runs import Experiment, main, where
from regard.commands.train import EMBEDDED
from regard.training import recipe_files

FIGURES = Path(__file__).parent / "recipe_times.csv"
COLUMNS = ("table", "recipe", "seed", "seconds", "updates", "day", "machine", "versions")
CORES = 2


def experiments() -> list[Experiment]:
    own = [name for name, does in recipe_files.recipe_tasks().items() if does.split()[1] in EMBEDDED]
    return [Experiment("minutes", name, (), 1) for name in own]


def run(experiment: Experiment) -> dict[str, str]:
    """`regard train` as a user calls it, a process of its own that has two cores."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        code = (
            f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{CORES}])\n"
            "from regard.cli import main; main()"
        )
        command = ["train", *experiment.training, "--out", str(out)]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "training.accelerator=cpu"],
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")},
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"regard {' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        with (out / "metrics.csv").open(newline="", encoding="utf-8") as file:
            updates = max(int(line["update"]) for line in csv.DictReader(file))
    return {
        **experiment.key,
        "seconds": f"{seconds:.0f}",
        "updates": str(updates),
        **where(gpu=False),
    }


def section(rows: list[dict[str, str]]) -> list[str]:
    """The table of docs/results.md, as lines."""
    if not rows:
        return []
    out = ["## Training time on two CPU cores", ""]
    out += [f"Recipes on generated data, from `regard train RECIPE` to the saved model. {places(rows)}."]
    out += ["", "| recipe | updates | seconds |", "|---|---:|---:|"]
    out += [
        f"| {row['recipe']} | {int(row['updates']):,} | {row['seconds']} |"
        for row in sorted(rows, key=lambda row: int(row["seconds"]))
    ]
    return [*out, ""]


if __name__ == "__main__":
    main(__doc__, FIGURES, COLUMNS, experiments, run, section)
