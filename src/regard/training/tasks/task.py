"""The interface of a task: its model, its batches and its score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch

from ...data import Batches
from ...data.batch import UNKNOWN
from ...models import EncoderDecoder, MultiDecoder
from ...noun_count import count_of
from ...plugins import load_plugin
from ..recipe.recipe_writer import recipe_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from ...data import Batch, EncodedCorpus, Pair, TokenizerPair
    from ...data.bpe_dropout import BpeDropout
    from ...models.config_base import TaskName
    from ...models.pretrained_model import PretrainedModel
    from ..batches import EpochBatches
    from ..recipe.recipe import Recipe

_CLASS: dict[TaskName, tuple[str, str]] = {  # task of a recipe: its module and its class
    "translate": ("translate_task", "TranslateTask"),
    "write": ("language_model_task", "LanguageModelTask"),
    "classify": ("classify_task", "ClassifyTask"),
    "caption": ("caption_task", "CaptionTask"),
    "spell": ("spell_task", "SpellTask"),
}


def recipe_task(recipe: Recipe) -> Task:
    """The task of a recipe. Its module is imported only here: each needs libraries of its own."""
    if recipe.task not in _CLASS:
        return load_plugin(recipe.task, "task", Task, "task")(recipe)  # type: ignore[type-abstract]
    module, name = _CLASS[recipe.task]
    return cast("Task", getattr(import_module(f".{module}", __package__), name)(recipe))


def tag_token(tokenizers: TokenizerPair, tag: str) -> int:
    """The token of a tag that names a decoder."""
    tokens: list[int] = tokenizers.source.encode(tag)
    if len(tokens) != 1 or tokens[0] == UNKNOWN:
        raise ValueError(f"decoders: {tag!r} is not one word of the source vocabulary; sentences must begin with it")
    return tokens[0]


class Task(ABC):
    """One subclass per file of this folder; the trainer is the same for all."""

    name: ClassVar[TaskName]  # of the task, or of the one that a plug-in is a variant of
    kind: ClassVar[str]  # of a plug-in: "package.module:Class"
    measure: ClassVar[str]  # the name of the score
    command: ClassVar[str]  # how to use a model of this task, for its card
    searches: ClassVar[bool] = False  # whether its answers depend on the recipe's [search]

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.dropout: BpeDropout | None = None  # of the recipe's `tokenizer.dropout`, once there is a vocabulary
        self.column = f"valid_{self.measure.lower().replace(' ', '_')}"  # of metrics.csv

    @property
    @abstractmethod
    def tag(self) -> str:
        """The pipeline tag of the Hugging Face hub."""

    def model(self, tokenizers: TokenizerPair, train: EncodedCorpus) -> PretrainedModel:
        """A new model; the caller has set the seed. `train` is for statistics that are counted, not learned."""
        tags = [tag_token(tokenizers, tag) for tag in self.recipe.decoders]
        config = self.recipe.writer(tokenizers.source_size, len(tokenizers.target), tags)
        if (unknown := getattr(tokenizers.target, "unknown_words", None)) is not None:
            config = replace(config, slots=unknown.count)
        model = (MultiDecoder if tags else EncoderDecoder)(config)
        model.encoder.pretrain()
        return model

    def batches(
        self,
        encoded: EncodedCorpus,
        *,
        seed: int,
        epoch: int,
        rank: int,
        world: int,
        fixed_shapes: bool | Literal["full"],
    ) -> EpochBatches:
        """The batches of one process in one epoch; `fixed_shapes` is that of `Batches`."""
        shares = {"epoch": epoch, "rank": rank, "world": world}
        return Batches(
            encoded,
            tokens=self.recipe.training.tokens,
            seed=seed,
            fixed_shapes=fixed_shapes,
            weights=getattr(self.recipe.data, "weights", ()),
            dropout=self.dropout,
            **shares,
        )

    def checks(self, encoded: EncodedCorpus, *, rank: int = 0, world: int = 1) -> Iterable[Batch]:
        """The validation set in batches, each pair once."""
        tokens = max(self.recipe.training.tokens, self.recipe.data.longest)
        return Batches(encoded, tokens=tokens, rank=rank, world=world)

    @torch.no_grad()
    def loss_sums(self, model: Any, encoded: EncodedCorpus, *, rank: int = 0, world: int = 1) -> Tensor:
        """[Σ −log p, tokens] of an encoded corpus, or of the part of it that belongs to a process."""
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for batch in self.checks(encoded, rank=rank, world=world):
            loss = model.loss(batch.to(device))
            sums += torch.stack([loss.nll.double(), loss.tokens.double()])
        return sums

    @abstractmethod
    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        """The model's output for the source of each pair."""

    @abstractmethod
    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        """The score of the answers; higher is better. `nll` is the loss per token on the same pairs."""

    def amount(self, encoded: EncodedCorpus) -> str:
        """The size of a corpus, in the units of the task."""
        return f"{count_of(len(encoded), 'pair')}, {count_of(len(encoded.target), 'target token')}"

    def shown(self, score: float) -> str:
        if self.measure == "loss":  # as a score it is negative: higher is better
            return f"loss {-score:.4f}"
        return f"{self.measure} {score:.2f}"

    def figures(
        self, answers: list[str], pairs: Sequence[Pair], nll: float, model: Any, tokenizers: TokenizerPair
    ) -> dict[str, float]:
        """All scores on a test set, for `regard evaluate`."""
        return {self.measure: abs(self.score(answers, pairs, nll)), "loss": nll}

    def model_card(self, kept: str, score: float, provenance: str = "") -> str:
        """README.md of a model folder, as the Hugging Face hub shows it; it holds the whole recipe and where from."""
        recipe = self.recipe
        beam = f" (beam {recipe.search.beams})" if self.searches else ""
        scoring = "tokenised " if self.measure == "BLEU" and recipe.data.tokenised else ""
        origin = f"\n## Provenance\n\n{provenance}\n" if provenance else ""
        return f"""---
library_name: regard
pipeline_tag: {self.tag}
---

# {recipe.name}

{recipe.about or "A model trained with regard."}

Validation {scoring}{self.shown(score)}{beam}, seed {recipe.seed}. The weights are {kept}.

    {self.command}

```toml
{recipe_toml(recipe)}```
{origin}"""
