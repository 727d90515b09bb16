"""Trains two small translators, with and without attention, and compares them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from .terminal_layout import answer, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ..training.score.translation_evaluation import TranslationEvaluation

RECIPES = {"one context vector": "seq2seq-phrasebook", "attention (Bahdanau)": "bahdanau-phrasebook"}


def sections() -> Iterator[RenderableType]:
    try:
        import pydantic  # noqa: F401
    except ModuleNotFoundError:
        yield Text("Next, a translator would be trained: pip install 'regard[train]'", style="bold")
        return
    from ..decoding import load_model_and_tokenizers
    from ..training import fit
    from ..training.corpora import read
    from ..training.recipe import recipe_loader
    from ..training.score.translation_evaluation import evaluate_translation

    yield Text("Two translators are trained on 20,000 sentences of a generated English-French phrase book.\n")
    scored: dict[str, tuple[TranslationEvaluation, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe_name in RECIPES.items():
            yield Text(f"{name}: regard train {recipe_name}", style="bold")
            recipe = recipe_loader.load_recipe(recipe_name, ["training.tensorboard=false"])
            start = time.perf_counter()
            run = fit(recipe, Path(folder) / recipe_name)
            seconds = time.perf_counter() - start
            loaded = load_model_and_tokenizers.load(run.folder)
            unseen = list(read(recipe.data, "test"))
            scored[name] = evaluate_translation(loaded.model, loaded.tokenizers, unseen, **loaded.search)[0], seconds
    rows = table("1,000 unseen sentences", *scored)
    results = [result for result, _ in scored.values()]
    rows.add_row("BLEU", *(answer(f"{r.bleu.value:.1f}") for r in results))
    errors = ["–" if r.best_aer is None else f"{r.best_aer:.2f}" for r in results]
    rows.add_row("AER, against gold links", *map(answer, errors))
    for bins in zip(*(r.by_length for r in results), strict=True):
        rows.add_row(f"BLEU, {bins[0].name} words", *(f"{bin.bleu:.1f}" for bin in bins))
    rows.add_row("seconds to train", *(f"{seconds:.0f}" for _, seconds in scored.values()))
    yield section(
        "What attention adds",
        "one vector per sentence, or one context per word",
        rows,
        "One vector of fixed size cannot hold a long sentence; attention reads the source again.",
    )
    yield Text(
        "Next: `regard train transformer-phrasebook`, `regard recipes`, `regard translate --help`;\n"
        "docs/tour.md walks from the formula to the models in code.",
        style="bold",
    )
