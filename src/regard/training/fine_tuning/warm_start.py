"""`training.init`: a model that starts with the weights and the vocabulary of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...data import TokenizerPair
from ...data.label_set import LabelSet
from ...data.tokenizer import Tokenizer
from ...decoding.load_model_and_tokenizers import find
from ...models import Classifier, ClassifierConfig, EncoderDecoder, MultiDecoder
from ...models import load as load_model
from ...models.pretrained_model import MODEL_TYPES, read
from .vocabulary_extension import extended_labels, extended_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from ...data import Pair
    from ..recipe.recipe import Recipe


def in_parts(name: str, parts: Iterable[str]) -> bool:
    """Whether a parameter belongs to one of these parts: `encoder` has `encoder.embedding.weight`."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def require_parts(model: nn.Module, parts: Iterable[str], key: str) -> None:
    """Raise an error that names a part which the model does not have."""
    names = list(model.state_dict())
    for part in parts:
        if not any(in_parts(name, [part]) for name in names):
            known = sorted({".".join(name.split(".")[:depth]) for name in names for depth in (1, 2)})
            raise ValueError(f"{key} names {part!r}, and the model has no such part; it has {', '.join(known[:40])}")


class WarmStart:
    """The model that `training.init` names, and what is taken from it."""

    def __init__(self, recipe: Recipe) -> None:
        settings = recipe.training
        self.recipe, self.name, self.parts = recipe, settings.init, settings.init_parts
        self.extends = settings.init_vocabulary == "extend"
        try:
            self.folder, _ = find(self.name)
            kind, values = read(self.folder)
            if kind not in MODEL_TYPES:
                raise ValueError(f"{self.folder} is no model of regard: its model_type is {kind!r:.40}")
            self.config: Any = MODEL_TYPES[str(kind)].config_class.from_dict(values)
            with torch.device("meta"):
                self._shapes = _shapes(MODEL_TYPES[str(kind)](self.config))
        except ValueError as error:
            raise ValueError(f"training.init = {self.name!r}: {error}") from None

    def takes(self, name: str) -> bool:
        """Whether this parameter starts with the other model's."""
        return not self.parts or in_parts(name, self.parts)

    def check(self) -> None:
        """Raise an error where the recipe's model is not like the other one, before anything is made."""
        config, words = self.config, self.config.source_vocabulary
        if not self.parts and isinstance(config, ClassifierConfig) != (self.recipe.head is not None):
            theirs, ours = ("a classifier", "writes") if self.recipe.head is None else ("no classifier", "classifies")
            raise ValueError(
                f"training.init = {self.name!r} is {theirs}, and the model of this recipe {ours} (task = "
                f'"{self.recipe.task}"): start from a model of that task, or take a part that both have, '
                'training.init_parts = ["encoder"]'
            )
        with torch.device("meta"):
            model: nn.Module
            if self.recipe.head is not None:
                model = Classifier(self.recipe.classifier(words, getattr(config, "classes", 2)))
            else:
                tags = list(range(len(self.recipe.decoders)))  # any tokens: shapes do not depend on them
                sizes = self.recipe.writer(words, getattr(config, "target_vocabulary", words or 5), tags)
                model = (MultiDecoder if tags else EncoderDecoder)(sizes)
        require_parts(model, self.parts, "training.init_parts")
        tying, tied = ("none", "decoder", "all"), getattr(config, "tied", "none")
        if self.takes("decoder.embedding.weight") and tying.index(self.recipe.tied) > tying.index(tied):
            raise ValueError(
                f'training.init = {self.name!r}: tied = "{tied}" there, and tied = "{self.recipe.tied}" in this recipe '
                f'would share tables that differ; set tied = "{tied}"'
            )
        for name, tensor in model.state_dict().items():
            if self.takes(name):
                self._require_shape(name, tensor)

    def copy_into(self, model: nn.Module) -> None:
        """Copy the weights. Rows of words that were added to the vocabulary stay as they are."""
        weights = load_model(self.folder).state_dict()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if self.takes(name):
                    self._require_shape(name, tensor)
                    (tensor[: len(weights[name])] if tensor.dim() else tensor).copy_(weights[name])

    def _require_shape(self, name: str, tensor: Tensor) -> None:
        advice = (
            "use the same sizes (a recipe without [encoder], [decoder] and [head] has those of the model), or take "
            "other parts with training.init_parts"
        )
        theirs, ours = self._shapes.get(name), tensor.shape
        if theirs is None:
            raise ValueError(f"training.init = {self.name!r}: that model has no parameter {name}; {advice}")
        sizes = {getattr(self.config, size, 0) for size in ("source_vocabulary", "target_vocabulary", "classes")}
        added = self.extends and len(ours) == len(theirs) > 0 and theirs[0] in sizes and ours[0] > theirs[0]
        if ours[added:] != theirs[added:]:
            raise ValueError(
                f"training.init = {self.name!r}: {name} is {list(theirs)} there, and {list(ours)} in this recipe's "
                f"model; {advice}"
            )

    def tokenizers(self, pairs: Iterable[Pair]) -> TokenizerPair:
        """The vocabulary of the other model on each side whose parameters are taken, perhaps extended; else a new one.

        `pairs` is read again for each.
        """
        there, how = TokenizerPair.load(self.folder), self.recipe.tokenizer
        keeps_source = not self.parts or any(in_parts(part, ["encoder"]) for part in self.parts)
        keeps_target = not self.parts or any(not in_parts(part, ["encoder"]) for part in self.parts)
        labels = self.recipe.head is not None
        if labels != isinstance(there.target, LabelSet):
            keeps_target = False
        source = there.source if keeps_source else None
        target = there.target if keeps_target else None
        if self.extends and there.joint and source is target:
            texts = (text for pair in pairs for text in (pair.source, pair.target))
            both = extended_tokenizer(there.source, texts, how.size)
            return TokenizerPair(both, both)
        if self.extends and isinstance(source, Tokenizer):
            source = extended_tokenizer(source, (pair.source for pair in pairs), how.size)
        if self.extends and isinstance(target, LabelSet):
            target = extended_labels(target, (pair.target for pair in pairs))
        elif self.extends and isinstance(target, Tokenizer):
            target = extended_tokenizer(target, (pair.target for pair in pairs), how.size)
        if source is not None and target is not None:
            return TokenizerPair(source, target)
        if source is None and self.recipe.source.kind != "text":
            source = there.source
        settings = {"lowercase": how.lowercase, "punctuation": how.punctuation, "labels": labels}
        learned = TokenizerPair.train(how.kind, how.size, pairs, joint=False, source=source, **settings)
        return learned if target is None else TokenizerPair(learned.source, target)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}
