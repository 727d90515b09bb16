"""Shared by the tests that train: a made-up language pair, and a recipe small enough to learn from it in seconds."""

from __future__ import annotations

import csv
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [f"{first}{second}" for first in "bdfgk" for second in ("a", "e", "i")]

# What two runs that did the same agree on; tokens_per_second is the clock's.
MEASURED = ("update", "epoch", "loss", "nll", "rate", "valid_nll", "valid_bleu")


def corpus(path: Path, rows: int, seed: int, shortest: int = 1, longest: int = 6) -> None:
    """Sentences and their translation: every word doubled."""
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            words = chance.choices(WORDS, k=chance.randint(shortest, longest))
            file.write(" ".join(words) + "\t" + " ".join(word + word for word in words) + "\n")


def data_section(folder: Path) -> str:
    """The section [data] of a recipe whose corpora are train.tsv and valid.tsv in a folder."""
    return f"""[data]
kind = "files"
root = '{folder}'
train = ["train.tsv"]
valid = ["valid.tsv"]
tokenised = true
longest = 50"""


def recipe_file(folder: Path, *, rows: int = 300, **lengths: int) -> Path:
    """A recipe file beside its corpora."""
    corpus(folder / "train.tsv", rows, seed=1, **lengths)
    corpus(folder / "valid.tsv", 12, seed=2, **lengths)
    file = folder / "tiny.toml"
    file.write_text(
        f"""
base = ["bahdanau-phrasebook"]
{data_section(folder)}
[encoder]
embedding = 16
width = 16
dropout = 0.2
[decoder]
embedding = 16
width = 16
dropout = 0.2
[training]
updates = 20
tokens = 200
rate = 0.01
schedule = "constant"
warmup = 0
validate_every = 10
save_every = 5
log_every = 1
average = 3
accelerator = "cpu"
[search]
beams = 2
""",
        encoding="utf-8",
    )
    return file


def measured(run: Path) -> list[tuple[Any, ...]]:
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [tuple(row[name] for name in MEASURED) for row in csv.DictReader(file)]
