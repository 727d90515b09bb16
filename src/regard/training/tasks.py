"""Tasks: what training needs to know about each kind of model, and what another package may minimise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from ..data.batches import AdjacentWindows, Batches, RandomWindows
from ..decoding.translation import translate
from ..models.classifier import Classifier
from ..models.encoder_decoder import EncoderDecoder
from ..models.several_decoders import MultiDecoder
from ..plugins import load_plugin
from ..special_tokens import UNKNOWN
from ..wording import count_of
from . import scores
from .devices import moved
from .recipe import recipe_toml
from .scores import caption_bleu, caption_chrf, cider, error_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

    from ..data.batches import Batch
    from ..data.encoding import EncodedCorpus
    from ..data.rows import Pair
    from ..data.tokenizer_pair import TokenizerPair
    from ..models.configurations import TaskName
    from ..models.decoder import Loss
    from ..models.saved_weights import PretrainedModel
    from .recipe import Recipe
    from .run_batches import EpochBatches


def task_class(name: str) -> type[Task]:
    return TASKS.get(name) or load_plugin(name, "task", Task, "task")  # type: ignore[type-abstract]


def recipe_task(recipe: Recipe) -> Task:
    """The task of a recipe."""
    return task_class(recipe.task)(recipe)


class TrainingLoss(ABC):
    """Base of a loss of another package, which a recipe names: `training.loss = "mypkg.losses:Focal"`.

    It is minimised in place of `model.loss`, which validates as before.
    """

    kind: ClassVar[str]  # "package.module:Class"

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @abstractmethod
    def __call__(self, model: Any, batch: Batch) -> Loss:
        """Σ loss over the target tokens of a batch, with its gradient, Σ −log p of them, and their number."""


def recipe_loss(recipe: Recipe) -> TrainingLoss | None:
    """The loss that a recipe names; None for that of the model."""
    name = recipe.training.loss
    return load_plugin(name, "loss", TrainingLoss, "training.loss")(recipe) if name else None  # type: ignore[type-abstract]


def tag_token(tokenizers: TokenizerPair, tag: str) -> int:
    """The token of a tag that names a decoder."""
    tokens: list[int] = tokenizers.source.encode(tag)
    if len(tokens) != 1 or tokens[0] == UNKNOWN:
        raise ValueError(f"decoders: {tag!r} is not one word of the source vocabulary; sentences must begin with it")
    return tokens[0]


def column_name(measure: str) -> str:
    return measure.lower().replace(" ", "_")


class Task(ABC):
    """What the loop asks about a kind of model. Another package may have a subclass of one of ours."""

    name: ClassVar[TaskName]  # of the task, or of the one that a plug-in is a variant of
    kind: ClassVar[str]  # of a plug-in: "package.module:Class"
    measure: str  # the name of the score
    measures: ClassVar[tuple[str, ...]] = ()  # the scores among which `training.best` chooses, where there are several
    command: ClassVar[str]  # how to use a model of this task, for its card
    searches: ClassVar[bool] = False  # whether its answers depend on the recipe's [search]

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        best = recipe.training.best
        self.by_loss = best == "loss"  # what is kept is what has the lowest loss
        self.measure = next((name for name in self.measures if column_name(name) == best), self.measure)
        self.column = f"valid_{column_name(self.measure)}"  # of metrics.csv

    def measure_by(self, metric: Callable[[Any], float]) -> None:
        """Name the score after a function of one's own, which the loop calls."""
        self.measure = getattr(metric, "__name__", "metric").strip("<>").replace("_", " ")
        self.column = f"valid_{column_name(self.measure)}"

    def load_kept(self, folder: Path) -> None:  # noqa: B027
        """Load the weights of a finished run into a model that the caller has; a recipe's is read from the folder."""

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
            loss = model.loss(moved(batch, device))
            sums += torch.stack([loss.nll.double(), loss.tokens.double()])
        return sums

    @abstractmethod
    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        """The model's output for the source of each pair."""

    @abstractmethod
    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        """The score of the answers; higher is better. `nll` is the loss per token on the same pairs."""

    def judged(self, score: float, nll: float) -> float:
        """What decides which weights are best; higher is better."""
        return -nll if self.by_loss else score

    def amount(self, encoded: EncodedCorpus) -> str:
        """The size of a corpus, in the units of the task."""
        return f"{count_of(len(encoded), 'pair')}, {count_of(len(encoded.target), 'target token')}"

    def shown(self, score: float, *, judged: bool = False) -> str:
        """A score, or what `judged` gave."""
        if self.measure == "loss" or (judged and self.by_loss):  # as a score it is negative: higher is better
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
        of_tokens = self.measure == "BLEU" and recipe.data.tokenised and not self.by_loss
        scoring = "tokenised " if of_tokens else ""
        origin = f"\n## Provenance\n\n{provenance}\n" if provenance else ""
        return f"""---
library_name: regard
pipeline_tag: {self.tag}
---

# {recipe.name}

{recipe.about or "A model trained with regard."}

Validation {scoring}{self.shown(score, judged=True)}{beam}, seed {recipe.seed}. The weights are {kept}.

    {self.command}

```toml
{recipe_toml(recipe)}```
{origin}"""


class TranslateTask(Task):
    name: ClassVar[TaskName] = "translate"
    measure = "BLEU"
    measures: ClassVar[tuple[str, ...]] = ("BLEU", "chrF")
    command: ClassVar[str] = 'regard translate --model FOLDER "A sentence."'
    tag: ClassVar[str] = "translation"
    searches: ClassVar[bool] = True

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        how = self.recipe.search.to_dict()
        sources = [pair.source for pair in pairs]
        return [found.text for found in translate(model, tokenizers, sources, **how)]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        references = [pair.target for pair in pairs]
        if self.measure == "chrF":
            return scores.chrf(answers, references).value
        return scores.bleu(answers, references, tokenised=self.recipe.data.tokenised).value


class CaptionTask(TranslateTask):
    """Pairs may share a picture: it is described once, and all their captions are its references."""

    name: ClassVar[TaskName] = "caption"
    measures: ClassVar[tuple[str, ...]] = ("BLEU",)
    command: ClassVar[str] = "regard caption --model FOLDER picture.png"
    tag: ClassVar[str] = "image-to-text"

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        once = list({pair.source: pair for pair in pairs}.values())
        captions = dict(zip((pair.source for pair in once), super().answers(model, tokenizers, once), strict=True))
        return [captions[pair.source] for pair in pairs]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return caption_bleu(*gathered(answers, pairs))[3]

    def figures(
        self, answers: list[str], pairs: Sequence[Pair], nll: float, model: Any, tokenizers: TokenizerPair
    ) -> dict[str, float]:
        captions, references = gathered(answers, pairs)
        figures = {f"BLEU-{n}": value for n, value in enumerate(caption_bleu(captions, references), 1)}
        figures |= {"CIDEr-D": cider(captions, references), "chrF": caption_chrf(captions, references)}
        if self.recipe.data.kind == "scenes":
            from .evaluation import pointing  # evaluation imports tasks

            share = pointing(model, tokenizers, pairs)
            figures |= {} if share is None else {"pointing": share}
        return {**figures, "loss": nll}


def gathered(answers: Sequence[str], pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]]]:
    """One caption per picture, and its references."""
    by_picture: dict[str, tuple[str, list[str]]] = {}
    for answer, pair in zip(answers, pairs, strict=True):
        by_picture.setdefault(pair.source, (answer, []))[1].append(pair.target)
    return [answer for answer, _ in by_picture.values()], [references for _, references in by_picture.values()]


class ClassifyTask(Task):
    name: ClassVar[TaskName] = "classify"
    measure = "accuracy"
    measures: ClassVar[tuple[str, ...]] = ("accuracy",)
    command: ClassVar[str] = 'regard classify --model FOLDER "A sentence, or a file of sound"'

    @property
    def tag(self) -> str:
        return {"text": "text-classification", "sound": "audio-classification"}[self.recipe.source.kind]

    def model(self, tokenizers: TokenizerPair, train: EncodedCorpus) -> Classifier:
        words = tokenizers.source_size
        model = Classifier(self.recipe.classifier(words, len(tokenizers.target.names)))
        if model.static is not None:
            model.static.idf.copy_(torch.from_numpy(train.idf(words, model.config.head.idf)))
        return model

    def amount(self, encoded: EncodedCorpus) -> str:
        return count_of(len(encoded), "example")

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        from ..decoding.classification import classify

        return [found.label for found in classify(model, tokenizers, [pair.source for pair in pairs])]

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        right = sum(answer == pair.target for answer, pair in zip(answers, pairs, strict=True))
        return 100 * right / max(len(pairs), 1)


class LanguageModelTask(Task):
    """The text is one stream of tokens; a batch is windows of it, `data.longest` tokens each."""

    name: ClassVar[TaskName] = "write"
    measure = "loss"
    command: ClassVar[str] = 'regard generate --model FOLDER "How it begins"'
    tag: ClassVar[str] = "text-generation"

    def batches(
        self,
        encoded: EncodedCorpus,
        *,
        seed: int,
        epoch: int,
        rank: int,
        world: int,
        fixed_shapes: bool | Literal["full"],
    ) -> RandomWindows:
        # All of one shape, with or without `fixed_shapes`.
        return RandomWindows(encoded, **self._sizes, seed=seed, epoch=epoch, rank=rank, world=world)

    def checks(self, encoded: EncodedCorpus, *, rank: int = 0, world: int = 1) -> AdjacentWindows:
        return AdjacentWindows(encoded, **self._sizes, rank=rank, world=world)

    @property
    def _sizes(self) -> dict[str, int]:
        block = self.recipe.data.longest
        return {"block": block, "rows": self.recipe.training.tokens // block}

    def amount(self, encoded: EncodedCorpus) -> str:
        return count_of(len(encoded.target), "token")

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        return [""] * len(pairs)  # only the loss is measured

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -nll

    def figures(
        self, answers: list[str], pairs: Sequence[Pair], nll: float, model: Any, tokenizers: TokenizerPair
    ) -> dict[str, float]:
        """Perplexity is per token, and tokens differ between vocabularies; bits per byte and character do not."""
        text = "".join(pair.target for pair in pairs)
        bits = nll / math.log(2) * len(tokenizers.target.encode(text))
        return {
            "loss": nll,
            "perplexity": math.exp(min(nll, 700.0)),
            "bits per byte": bits / len(text.encode()),
            "bits per character": bits / len(text),
        }


class SpellTask(TranslateTask):
    name: ClassVar[TaskName] = "spell"
    measure = "error rate"
    measures: ClassVar[tuple[str, ...]] = ("error rate",)
    command: ClassVar[str] = "regard classify --model FOLDER sound.wav"
    tag: ClassVar[str] = "automatic-speech-recognition"

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -100 * error_rate(answers, [pair.target for pair in pairs])

    def shown(self, score: float, *, judged: bool = False) -> str:
        return super().shown(score, judged=True) if judged and self.by_loss else f"{self.measure} {-score:.2f} %"


TASKS: dict[str, type[Task]] = {
    "translate": TranslateTask,
    "write": LanguageModelTask,
    "classify": ClassifyTask,
    "caption": CaptionTask,
    "spell": SpellTask,
}
"""By the name that recipes and models use."""
