"""The commit of a dataset on the Hugging Face Hub, which a run keeps in its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..preparation.recipe_corpus import dataset_split
from ..recipe.data_section import StreamData

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe


def pin_revision(recipe: Recipe, begun: Recipe | None = None, *, restart: bool = False) -> Recipe:
    """The recipe with a commit in `data.revision`: the run has the same rows when it resumes, whatever is pushed later.

    `begun` is the recipe of the run that resumes: its commit stays, unless `recipe` has another commit. With `restart`
    the same command runs again, and a branch in its recipe stands for the commit that it stood for before. Where the
    Hub does not answer, the revision stays as it is.
    """
    data = recipe.data
    if not isinstance(data, StreamData) or not data.dataset:
        return recipe
    split = dataset_split(data, "train")
    if Path(split.name).is_dir():
        return recipe
    former = begun.data if begun is not None else None
    if not isinstance(former, StreamData) or former.dataset != data.dataset:
        return _with_revision(recipe, split.commit() or data.revision)
    if restart or data.revision in ("", former.revision):
        return _with_revision(recipe, former.revision)
    commit = split.commit()
    if commit and commit != former.revision and commit != data.revision:
        raise ValueError(
            f"data.revision = {data.revision!r} is commit {commit} of {data.dataset} now, and the run has read "
            f"{former.revision or 'a revision that it did not record'}: leave data.revision as it is to continue with "
            f"the same rows, or set it to {commit} for the new ones"
        )
    return _with_revision(recipe, commit or former.revision)


def _with_revision(recipe: Recipe, revision: str) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"revision": revision})})
