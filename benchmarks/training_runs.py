"""What the tables of docs/results.md share: which training runs are missing, and making them.

A run is `regard train RECIPE …` followed by `regard evaluate RUN`, in a process that stays for the next run, since
starting Python takes longer than some of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results_csv import KEY, keep, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = Path(__file__).parent.parent / "runs"
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Experiment:
    """One training run: a line of a table is the mean over its seeds."""

    table: str
    recipe: str  # with the settings that tell lines of one table apart, if any
    settings: tuple[str, ...]  # that the line does not show
    seed: int

    @property
    def name(self) -> str:
        return re.sub(r"[^\w-]+", "-", f"{self.table}-{self.recipe}-{self.seed}")

    @property
    def key(self) -> dict[str, str]:
        """The columns that say which run a line of figures is of."""
        return {"table": self.table, "recipe": self.recipe, "seed": str(self.seed)}

    @property
    def training(self) -> list[str]:
        """What comes after `regard train`."""
        return [*self.recipe.split(), *self.settings, f"seed={self.seed}"]


def trained(folder: Path, training: Sequence[str], evaluation: Sequence[str] = ()) -> dict[str, Any]:
    """What a run scores on its test set, once it is trained, or on the file that `evaluation` begins with.

    What it says goes into a log beside its folder.
    """
    folder.parent.mkdir(exist_ok=True)
    with (
        folder.with_name(folder.name + ".log").open("a", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        if not (folder / "model").exists():
            resumes = (folder / "recipe.toml").exists()
            _call(["train", "--resume", str(folder)] if resumes else ["train", *training, "--out", str(folder)])
        _call(["evaluate", str(folder), *evaluation])
    scored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = scored[evaluation[0] if evaluation else "test"]
    return found


def training_speed(folder: Path) -> tuple[int, float]:
    """The number of updates of a run, and its median speed in tokens per second."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["tokens_per_second"]]
    speed = statistics.median(float(line["tokens_per_second"]) for line in lines)
    return max(int(line["update"]) for line in lines), speed


def where(*, gpu: bool = True) -> dict[str, str]:
    """The columns that say where and when a figure was measured; without `gpu`, on the processor in any case."""
    import torch

    return {
        "day": date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if gpu and torch.cuda.is_available() else platform.machine(),
        "versions": f"torch {torch.__version__}",
    }


def main(
    about: str | None,
    figures: Path,
    columns: Sequence[str],
    experiments: Callable[[], Sequence[Experiment]],
    run: Callable[[Experiment], dict[str, str]],
    section: Callable[[list[dict[str, str]]], list[str]],
) -> None:
    """The command of one of these files."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "list", "section"])
    parser.add_argument("words", nargs="*", help="only runs whose names hold all of these")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    chosen = [one for one in experiments() if all(word in one.name for word in given.words)]
    if given.what == "list":
        print("\n".join(one.name for one in chosen))
    if given.what == "section":
        print("\n".join(section(kept(figures))))
    if given.what == "run":
        done = [{name: old[name] for name in KEY} for old in kept(figures)]
        missing = [one for one in chosen if one.key not in done]
        failed = 0
        with ProcessPoolExecutor(given.jobs, get_context("spawn"), _share_cores, (given.jobs,)) as pool:
            runs = {pool.submit(run, one): one.name for one in missing}
            for finished in as_completed(runs):
                if finished.exception() is not None:  # the others go on; it is missing, and will be tried again
                    print(f"{runs[finished]}: failed: {finished.exception()}", flush=True)
                    failed += 1
                    continue
                new = finished.result()
                keep(figures, columns, new)
                said = ", ".join(f"{name} {value}" for name, value in list(new.items())[3:-3] if value)
                print(f"{runs[finished]}: {said}", flush=True)
        if failed:
            raise SystemExit(f"{failed} of {len(missing)} runs failed")


def _share_cores(jobs: int) -> None:
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // jobs))


def _call(arguments: list[str]) -> None:
    from regard.commands import app

    if app(arguments, standalone_mode=False):
        raise RuntimeError(f"regard {' '.join(arguments)} failed; the run's log says why")
