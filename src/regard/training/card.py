"""The model card: what a trained model is, how well it does, and how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .written import written

if TYPE_CHECKING:
    from .recipe import Recipe


def card(recipe: Recipe, kept: str, bleu: float) -> str:
    """README.md of a model folder, as the Hugging Face hub shows it; the recipe in full makes it repeatable."""
    scoring = "tokenised BLEU" if recipe.data.tokenised else "sacreBLEU"
    return f"""---
library_name: regard
pipeline_tag: translation
---

# {recipe.name}

{recipe.about or "A translator trained with regard."}

Validation {scoring} {bleu:.2f} (beam {recipe.search.beams}), seed {recipe.seed}. The weights are {kept}.

    regard translate --model FOLDER "A sentence."

```toml
{written(recipe)}```
"""
