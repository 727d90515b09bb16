"""Starting from a model that is trained: its weights, its vocabulary, and what of it learns at which rate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from ..data.tokenizer import Tokenizer, tokenizer_trainer
from ..data.tokenizer_pair import LabelSet, TokenizerPair
from ..decoding.load_model_and_tokenizers import find
from ..messages import count_of
from ..models.classifier import Classifier, ClassifierConfig
from ..models.encoder_decoder import EncoderDecoder
from ..models.multi_decoder import MultiDecoder
from ..models.pretrained import MODEL_TYPES, read
from ..models.pretrained import load as load_model
from .optimizer import in_parts, require_parts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor, nn

    from ..data.rows import Pair
    from .recipe import Recipe


def extended_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer with the pieces of `tokenizer`, then those that the same method learns from `texts`, up to `size`.

    The merges of BPE are appended too, so they apply after the old ones: a text that was cut into pieces before is cut
    into the same ones or into longer ones.
    """
    from tokenizers import Tokenizer as Backend

    if tokenizer.unknown_words is not None:
        raise ValueError(
            'training.init_vocabulary = "extend" adds pieces at the end of the vocabulary, where this model has its '
            'ids of unknown words (tokenizer.slots): use "keep"'
        )
    if tokenizer.tags:
        raise ValueError(
            'training.init_vocabulary = "extend" adds pieces at the end of the vocabulary, where this model has its '
            'tags (data.tags): use "keep"'
        )
    old: dict[str, Any] = json.loads(tokenizer.to_json())
    kind = old["model"]["type"]
    backend: Any = Backend.from_str(tokenizer.to_json())
    backend.train_from_iterator(texts, tokenizer_trainer(kind, size))
    new = json.loads(backend.to_str())["model"]
    pieces = old["model"]["vocab"]  # Unigram: a list of [piece, score]; else piece → id
    known = {piece for piece, _ in pieces} if kind == "Unigram" else set(pieces)
    learned = new["vocab"] if kind == "Unigram" else sorted(new["vocab"].items(), key=lambda item: item[1])
    added = [(piece, value) for piece, value in learned if piece not in known]
    room = size - len(known)
    if added and room <= 0:
        raise ValueError(
            f"the vocabulary has {count_of(len(known), 'piece')}, and tokenizer.size = {size:,} leaves no room for the "
            f"{len(added):,} that the new corpus needs; raise tokenizer.size"
        )
    added = added[:room]
    if kind == "Unigram":
        pieces.extend(list(item) for item in added)
    else:
        pieces.update({piece: len(known) + n for n, (piece, _) in enumerate(added)})
    if kind == "BPE":
        merges = [tuple(pair) for pair in old["model"]["merges"]]
        there = set(merges)
        for first, second in new["merges"]:
            if (first, second) not in there and {first, second, first + second} <= pieces.keys():
                merges.append((first, second))
        old["model"]["merges"] = [list(pair) for pair in merges]
    return Tokenizer(Backend.from_str(json.dumps(old)))


def extended_labels(labels: LabelSet, texts: Iterable[str]) -> LabelSet:
    """The labels, then those that `texts` has and they have not."""
    new = set(texts) - set(labels.names)
    return LabelSet([*labels.names, *LabelSet.sorted_names(new)])


def read_model(name: str) -> tuple[Path, dict[str, Any], Any]:
    """The folder of the model that `training.init` names, its config.json, and that as a configuration."""
    try:
        folder, _ = find(name)
        kind, values = read(folder)
        if kind not in MODEL_TYPES:
            raise ValueError(f"{folder} is no model of regard: its model_type is {kind!r:.40}")
        return folder, values, MODEL_TYPES[str(kind)].config_class.from_dict(values)
    except ValueError as error:
        raise ValueError(f"training.init = {name!r}: {error}") from None


class WarmStart:
    """The model that `training.init` names, and what is taken from it."""

    def __init__(self, recipe: Recipe) -> None:
        settings = recipe.training
        self.recipe, self.name, self.parts = recipe, settings.init, settings.init_parts
        self.extends = settings.init_vocabulary == "extend"
        self.folder, _, self.config = read_model(self.name)
        kind = next(each for each in MODEL_TYPES.values() if each.config_class is type(self.config))
        with torch.device("meta"):
            self._shapes = _shapes(kind(self.config))

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
