"""The classifiers that ship with regard, from a run of ours: `python -m benchmarks.ship_classifiers NAME RUN`.

    regard train cnn-digits && regard evaluate runs/cnn-digits-1
    python -m benchmarks.ship_classifiers digits-cnn runs/cnn-digits-1
    regard train lstm-attention-opinions && regard evaluate runs/lstm-attention-opinions-1
    python -m benchmarks.ship_classifiers opinions-lstm runs/lstm-attention-opinions-1

Weights are written in half precision into src/regard/shipped/NAME, with the labels and a card whose figures are those
of the run's own evaluation.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from regard.data import Tokenizers
from regard.models import load
from regard.training.run import Run
from regard.training.written import written

SHIPPED = Path(__file__).parent.parent / "src" / "regard" / "shipped"

CARDS = {
    "digits-cnn": """---
library_name: regard
pipeline_tag: audio-classification
language: en
license: cc-by-sa-4.0
---

# digits-cnn

Which digit was spoken, in English, zero to nine, and when: three layers of convolutions over log-mel energies, and
attention over what they found.

    regard classify seven.wav

Trained by `regard train {recipe}`, seed {seed}. On the {items} recordings of the official test set, by speakers it
learned from, {accuracy:.1f} % are right; docs/results.md says how much worse it does with a voice it never heard. The
weights are kept in half precision and used in single.

## Where the recordings come from

The [Free Spoken Digit Dataset](https://github.com/Jakobovski/free-spoken-digit-dataset) by Zohar Jackson, César Souza,
Jason Flaks, Yuxin Pan, Hereman Nicolas and Adhish Thite, licensed CC BY-SA 4.0. The weights are under the same licence.
None of the recordings is in this package.

## What it is not

It knows ten words from six voices at 8 kHz, cut close. Whatever it is given, speech or not, it calls one of the ten.
""",
    "opinions-lstm": """---
library_name: regard
pipeline_tag: text-classification
language: en
license: apache-2.0
---

# opinions-lstm

Whether a small review is positive, negative or neutral: a bidirectional LSTM, and attention over its states.

    regard classify "The soup was not bad, but the service was awful."

Trained by `regard train {recipe}`, seed {seed}, on sentences of regard's own grammar (`src/regard/data/opinions.py`);
of {items:,} that training never had, {accuracy:.1f} % are right. The weights are kept in half precision and used in
single.

## What it is not

It knows the few hundred words of that grammar and how `not`, `but` and `although` turn them round, which is what it is
there to show. It is no judge of the reviews that people write: `regard train lstm-attention-sst2` makes one of those.
""",
}


def ship(name: str, folder: Path) -> Path:
    """Write the model of a run as one that ships."""
    recipe = Run.open(folder).recipe
    test = json.loads((folder / "results.json").read_text(encoding="utf-8"))["test"]
    card = CARDS[name].format(
        recipe=recipe.name, seed=recipe.seed, items=test["items"], accuracy=test["values"]["accuracy"]
    )
    card += f"\n## The recipe, in full\n\n```toml\n{written(recipe)}```\n"
    made = SHIPPED / name
    unfinished = made.with_name(f"{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    load(folder / "model").save_pretrained(unfinished, card=card, dtype=torch.float16)
    Tokenizers.load(folder / "model").save(unfinished)
    shutil.rmtree(made, ignore_errors=True)
    unfinished.rename(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(CARDS))
    parser.add_argument("run", type=Path)
    given = parser.parse_args()
    made = ship(given.name, given.run)
    size = sum(file.stat().st_size for file in made.iterdir())
    print(f"wrote {made}: {size:,} bytes")


if __name__ == "__main__":
    main()
