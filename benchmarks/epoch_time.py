"""python -m benchmarks.epoch_time [RECIPE …]: seconds of one epoch of `regard train`, and the extra time of the first.

The first epoch records a CUDA graph for every shape of batch and compiles kernels: the warm-up. Two more follow.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import tempfile
from pathlib import Path

from regard.data import Batches, EncodedCorpus
from regard.training import fit, recipe_files
from regard.training.run_batches import Corpora
from regard.training.run_folder import Run
from regard.training.tasks import recipe_task

EPOCHS = 3


def seconds(name: str, folder: Path) -> list[float]:
    """Of each epoch, from the speeds that metrics.csv holds."""
    first = Run.create(recipe_files.load_recipe(name), folder / "first")
    Corpora(first, recipe_task(first.recipe), lambda line: None).prepare()
    encoded = EncodedCorpus.load(first.data / "train")
    tokens = int((encoded.target_lengths - 1).sum())  # <s> is not predicted
    length = len(Batches(encoded, tokens=first.recipe.training.tokens, fixed_shapes=True))
    last = EPOCHS * length
    told = [f"training.{key}={last}" for key in ("updates", "validate_every", "save_every")]
    recipe = recipe_files.load_recipe(name, [*told, f"training.log_every={length}"])
    run = Run.create(recipe, folder / "run")
    shutil.copytree(first.data, run.data)
    fit(recipe, run.folder, resume=True)
    with run.metrics.open(newline="", encoding="utf-8") as file:
        speeds = [float(line["tokens_per_second"]) for line in csv.DictReader(file) if line["tokens_per_second"]]
    return [tokens / speed for speed in speeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["transformer-multi30k", "bahdanau-multi30k"])
    base = None
    for name in parser.parse_args().recipes:
        with tempfile.TemporaryDirectory() as folder:
            first, *rest = seconds(name, Path(folder))
        one = min(rest)
        base = base or one
        print(f"{name}: {one:.2f} s an epoch, {one / base:.2f} × the first's; warm-up {first - one:.2f} s", flush=True)


if __name__ == "__main__":
    main()
