"""The model card: what a trained model is, how well it does, and how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..recipe.recipe_toml import recipe_toml

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe
    from ..tasks.task import Task


def model_card(recipe: Recipe, task: Task, kept: str, score: float) -> str:
    """README.md of a model folder, as the Hugging Face hub shows it; the recipe in full makes it repeatable."""
    beam = f" (beam {recipe.search.beams})" if task.searches else ""
    scoring = "tokenised " if task.measure == "BLEU" and recipe.data.tokenised else ""
    return f"""---
library_name: regard
pipeline_tag: {task.tag}
---

# {recipe.name}

{recipe.about or "A model trained with regard."}

Validation {scoring}{task.shown(score)}{beam}, seed {recipe.seed}. The weights are {kept}.

    {task.command}

```toml
{recipe_toml(recipe)}```
"""
