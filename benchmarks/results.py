"""docs/results.md: what every translator scores, from training runs of ours; no figure there is typed by hand.

    python -m benchmarks.results run [WORDS …]    train and evaluate what is missing (names that hold all WORDS), and
                                                  keep the figures in benchmarks/translation.csv; a GPU is advised
    python -m benchmarks.results page             write docs/results.md and its figure from that file

A run is `regard train RECIPE …` followed by `regard evaluate RUN`, in a process of its own; `--jobs` runs several at a
time; three fill a GPU, more gain nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

from .results_page import write

ROOT = Path(__file__).parent.parent
FIGURES = Path(__file__).parent / "translation.csv"
RUNS = ROOT / "runs"

ARCHITECTURES = (
    "transformer",
    "bahdanau",
    "luong-dot",
    "luong-general",
    "luong-concat",
    "luong-local",
    "seq2seq",
)
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Experiment:
    """One training run and what it is scored on."""

    table: str
    recipe: str
    settings: tuple[str, ...]
    seed: int
    gold: str = ""  # a file of pairs with gold links to score on, in place of the recipe's own test set

    @property
    def name(self) -> str:
        return "-".join([self.table, self.recipe, str(self.seed)])

    @property
    def command(self) -> list[str]:
        return ["train", self.recipe, *self.settings, f"seed={self.seed}", "--out", str(RUNS / self.name)]

    @property
    def evaluation(self) -> list[str]:
        """What comes after `evaluate RUN`."""
        if not self.gold:
            return []
        data = Path(os.environ.get("REGARD_DATA", "../shared/data"))
        return [str(data / self.gold), "--columns", "0,1,2,3", "--tokenised"]


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
    gold = "alignments/hansards-200.en-fr.tsv.xz"
    for kind in ("transformer", "bahdanau", "luong-general"):
        made += [Experiment("hansards-en-fr", f"{kind}-tatoeba", news, seed, gold) for seed in SEEDS]
    # Another seed of the grammar than the recipes were tuned with: none of its test sentences was ever looked at.
    fresh = ("data.seed=7",)
    made += [Experiment("phrasebook", f"{a}-phrasebook", fresh, seed) for a in ARCHITECTURES for seed in SEEDS]
    return made


@dataclass
class Row:
    """The figures of one run, as translation.csv keeps them."""

    table: str
    recipe: str
    seed: int
    bleu: float
    tokenised_bleu: float
    chrf: float
    perplexity: float
    aer: str  # of the best layer; empty where there are no gold links
    lengths: str  # "low-high:sentences:BLEU" for each range of source lengths, joined by spaces
    updates: int
    tokens_per_second: float  # while training, the median
    signature: str
    day: str
    machine: str
    versions: str


def call(*arguments: str) -> None:
    code = "from regard.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"regard {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def row(experiment: Experiment, folder: Path) -> Row:
    """The figures of a run that is trained and evaluated."""
    import torch

    scored = json.loads((folder / "results.json").read_text(encoding="utf-8"))[Path(experiment.gold).name or "test"]
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["tokens_per_second"]]
    return Row(
        table=experiment.table,
        recipe=experiment.recipe,
        seed=experiment.seed,
        bleu=round(scored["bleu"]["value"], 2),
        tokenised_bleu=round(scored["tokenised_bleu"]["value"], 2),
        chrf=round(scored["chrf"]["value"], 2),
        perplexity=round(scored["perplexity"], 3),
        aer=f"{min(scored['aer'].values()):.4f}" if scored["aer"] else "",
        lengths=" ".join(f"{b['low']}-{b['high']}:{b['sentences']}:{b['bleu']:.2f}" for b in scored["by_length"]),
        updates=max(int(line["update"]) for line in lines),
        tokens_per_second=statistics.median(float(line["tokens_per_second"]) for line in lines),
        signature=scored["bleu"]["signature"],
        day=date.today().isoformat(),
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        versions=f"torch {torch.__version__}",
    )


def kept() -> list[dict[str, str]]:
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(new: Row) -> None:
    """Add a run's figures to the file, in place of older ones of the same run."""
    same = (new.table, new.recipe, str(new.seed))
    rows = [old for old in kept() if (old["table"], old["recipe"], old["seed"]) != same]
    rows.append({name: str(value) for name, value in asdict(new).items()})
    rows.sort(key=lambda one: (one["table"], one["recipe"], one["seed"]))
    unfinished = FIGURES.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(FIGURES)


def run(experiment: Experiment, settings: list[str]) -> Row:
    folder = RUNS / experiment.name
    if not (folder / "model").exists():
        resumes = (folder / "recipe.toml").exists()
        call(*(["train", "--resume", str(folder)] if resumes else [*experiment.command, *settings]))
    call("evaluate", str(folder), *experiment.evaluation)
    return row(experiment, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "page", "list"])
    parser.add_argument(
        "words", nargs="*", help="only runs whose names hold all of these; key=value goes to the recipe"
    )
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    settings = [word for word in given.words if "=" in word]
    words = [word for word in given.words if "=" not in word]
    chosen = [one for one in experiments() if all(word in one.name for word in words)]
    if given.what == "list":
        print("\n".join(one.name for one in chosen))
        return
    if given.what == "run":
        done = {(old["table"], old["recipe"], old["seed"]) for old in kept()}
        missing = [one for one in chosen if (one.table, one.recipe, str(one.seed)) not in done]
        with ThreadPoolExecutor(given.jobs) as pool:
            for finished in as_completed([pool.submit(run, one, settings) for one in missing]):
                new = finished.result()
                keep(new)
                print(f"{new.table} {new.recipe} seed {new.seed}: BLEU {new.tokenised_bleu} / {new.bleu}", flush=True)
    write(kept())


if __name__ == "__main__":
    main()
