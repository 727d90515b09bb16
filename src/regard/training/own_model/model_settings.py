"""The settings of a run whose model and batches are given to `fit` in Python."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from ..recipe.data_section import Count, StrictSection
from ..recipe.recipe_errors import recipe_error
from ..recipe.recipe_sections import TrainingSection
from ..run.run_folder import Run

if TYPE_CHECKING:
    from pathlib import Path


class ModelRecipe(StrictSection):
    """recipe.toml of such a run, which has no [data]."""

    name: str = Field(pattern=r"^[\w.-]+$")
    about: str = "A model of one's own, trained with regard.training.fit."
    seed: Count = 1
    training: TrainingSection

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()

    @classmethod
    def of_call(
        cls, folder: Path, seed: int, settings: dict[str, Any], train: Any, *, validates: bool = True
    ) -> ModelRecipe:
        """What `fit` was called with. A DataLoader says how many workers it has.

        Without a validation an average of checkpoints cannot be compared with the last one, and must be asked for.
        """
        defaults = {"workers": getattr(train, "num_workers", 0)} | ({} if validates else {"average": 1})
        try:
            training = TrainingSection.model_validate(defaults | settings)
        except ValidationError as error:
            raise recipe_error(error, TrainingSection, "the call of fit(model, …)", {}) from None
        try:
            recipe = cls(name=run_name(folder), seed=seed, training=training)
        except ValidationError as error:
            raise recipe_error(error, cls, "the call of fit(model, …)", {}) from None
        if training.init or training.graphs is True:
            raise ValueError("init and graphs are for models of a recipe; load weights into the model before fit")
        if training.strategy == "fsdp":
            raise ValueError(
                'strategy="fsdp" is for models of a recipe: a model of one\'s own stays sharded over the processes, '
                'and cannot get its kept weights; use strategy="ddp"'
            )
        if not validates and (training.patience or training.schedule == "plateau"):
            key = "patience" if training.patience else 'schedule="plateau"'
            raise ValueError(f"{key} follows the validation, and valid is not given: give it, or leave {key} out")
        return recipe

    @classmethod
    def open(cls, folder: Path) -> ModelRecipe:
        """The settings of an existing run."""
        file = Run.recipe_file(folder)
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except ValidationError as error:
            reason: Exception = recipe_error(error, cls, "it", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            reason = error
        line = " ".join(str(reason).split())[:300]
        raise ValueError(f"{file} has not the settings of a run that fit(model, …) began: {line}")


def run_name(folder: Path) -> str:
    """The name of a run in this folder: that of the folder, with "-" for characters that a name cannot have."""
    return re.sub(r"[^\w.-]+", "-", folder.resolve().name) or "model"
