"""Writes a model of a run into src/regard/shipped: weights in half precision, tokenizers, and a card with its scores.

    python -m tools.ship_model runs/bahdanau-lectures-1 phrasebook-bahdanau-en-fr

The scores are those of the test split of the run's recipe (the first `--sentences`), of the weights as they are stored.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.decoding import model_folders
from regard.decoding.model_folders import SHIPPED
from regard.files import write_text
from regard.training.evaluation import TaskEvaluation, evaluate_loaded, pairs_of_run
from regard.training.recipe import recipe_toml
from regard.training.run_folder import Run

if TYPE_CHECKING:
    from regard.training.evaluation import TranslationEvaluation

CARD = """---
library_name: regard
pipeline_tag: {tag}
language: {language}
license: apache-2.0
---

# {name}

{about}.

    {command}

Trained by `regard train {recipe}` on one CPU core, seed {seed}.
{scores}
The weights are kept in half precision and used in single.

## Where the sentences come from

regard's own phrase book (`regard data phrasebook --lectures`): sentences like those that lectures on attention show, in
lower case. Nothing else was learned from.

## What it is not

It knows a few hundred words; others are <unk> to it.

## Recipe

```toml
{toml}```
"""
COMMANDS = {
    "translate": 'regard translate --model {name} "He hit me with a pie."',
    "write": 'regard see {name} "The FBI is chasing a criminal on the run." --layer 0',
}


def scores(evaluation: TranslationEvaluation | TaskEvaluation) -> str:
    """The scores of an evaluation as sentences."""
    if isinstance(evaluation, TaskEvaluation):
        return f"Loss on held-out text: {evaluation.values['loss']:.3f} nats per word."
    text = f"On {evaluation.sentences} sentences that training never had: BLEU {evaluation.tokenised_bleu.value:.1f}"
    aer = evaluation.best_aer
    return text + (f", alignment error rate {aer:.3f}." if aer is not None else "; it has no attention to align with.")


def ship(run_folder: str, name: str, sentences: int) -> Path:
    """The folder that was written; scored on at most this many sentences."""
    loaded, run = model_folders.load(run_folder), Run.open(Path(run_folder))
    recipe, folder = run.recipe, SHIPPED / name
    loaded.model.save_pretrained(folder, dtype=torch.float16)
    loaded.tokenizers.save(folder)
    loaded.model = model_folders.load(name).model  # the weights as they are stored
    pairs, tokenised, _ = pairs_of_run(loaded)
    settings = {"beams": recipe.search.beams, "length_penalty": recipe.search.length_penalty}
    evaluation, _ = evaluate_loaded(loaded, pairs[:sentences], settings, tokens=None, tokenised=tokenised)  # type: ignore[arg-type]
    task = loaded.model.task
    card = CARD.format(
        tag={"translate": "translation", "write": "text-generation"}[task],
        language="[en, fr]" if task == "translate" else "en",
        name=name,
        about=recipe.about,
        command=COMMANDS[task].format(name=name),
        recipe=recipe.name,
        seed=recipe.seed,
        scores=scores(evaluation),
        toml=recipe_toml(recipe),
    )
    write_text(folder / "README.md", card)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("name", help="of the model that ships")
    parser.add_argument("--sentences", type=int, default=500, help="of the test split to score it on, at most")
    arguments = parser.parse_args()
    folder = ship(arguments.run, arguments.name, arguments.sentences)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote {folder}: {size:,} bytes")


if __name__ == "__main__":
    main()
