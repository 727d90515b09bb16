"""The parameters of a model: from which model they start, which of them learn, how an update changes them."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..data.tokenizer_pair import LabelSet, TokenizerPair
from ..decoding.model_folders import find
from ..models.classifier import Classifier, ClassifierConfig
from ..models.encoder_decoder import EncoderDecoder
from ..models.saved_weights import MODEL_TYPES, read
from ..models.saved_weights import load as load_model
from ..models.several_decoders import MultiDecoder
from .recipe_sections import GIVEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import Tensor, nn

    from ..data.rows import Pair
    from .recipe import Recipe
    from .recipe_sections import TrainingSection


# From which model they start


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
        """Copy the weights."""
        weights = load_model(self.folder).state_dict()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if self.takes(name):
                    self._require_shape(name, tensor)
                    tensor.copy_(weights[name])

    def _require_shape(self, name: str, tensor: Tensor) -> None:
        advice = (
            "use the same sizes (a recipe without [encoder], [decoder] and [head] has those of the model), or take "
            "other parts with training.init_parts"
        )
        theirs, ours = self._shapes.get(name), tensor.shape
        if theirs is None:
            raise ValueError(f"training.init = {self.name!r}: that model has no parameter {name}; {advice}")
        if ours != theirs:
            raise ValueError(
                f"training.init = {self.name!r}: {name} is {list(theirs)} there, and {list(ours)} in this recipe's "
                f"model; {advice}"
            )

    def tokenizers(self, pairs: Iterable[Pair]) -> TokenizerPair:
        """The vocabulary of the other model on each side whose parameters are taken; else a new one."""
        there, how = TokenizerPair.load(self.folder), self.recipe.tokenizer
        keeps_source = not self.parts or any(in_parts(part, ["encoder"]) for part in self.parts)
        keeps_target = not self.parts or any(not in_parts(part, ["encoder"]) for part in self.parts)
        labels = self.recipe.head is not None
        if labels != isinstance(there.target, LabelSet):
            keeps_target = False
        source = there.source if keeps_source else None
        target = there.target if keeps_target else None
        if source is not None and target is not None:
            return TokenizerPair(source, target)
        if source is None and self.recipe.source.kind != "text":
            source = there.source
        settings = {"lowercase": how.lowercase, "punctuation": how.punctuation, "labels": labels}
        learned = TokenizerPair.train(how.kind, how.size, pairs, joint=False, source=source, **settings)
        return learned if target is None else TokenizerPair(learned.source, target)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


# Which of them learn, and how an update changes them


def rate(training: TrainingSection, update: int, cuts: int = 0) -> float:
    """The rate of update 1, 2, …: up linearly over `warmup` updates w, then down.

    - inverse square root (Vaswani et al. 2017, section 5.3): r · √(w / update);
    - cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) down to f · r, f the floor, at the last update n:
      r · (f + (1 − f)·½(1 + cos π(update−w)/(n−w)));
    - plateau: r · cut^cuts, `cuts` the number of times that the validation score stopped rising;
    - constant: r.
    """
    peak, warmup = training.rate, training.warmup
    if update < warmup:
        return peak * update / warmup
    if training.schedule == "inverse-square-root":
        return peak * math.sqrt(max(warmup, 1) / max(update, 1))
    if training.schedule == "cosine":
        past = (update - warmup) / max(training.updates - warmup, 1)
        return peak * (training.floor + (1 - training.floor) * (1 + math.cos(math.pi * min(past, 1.0))) / 2)
    if training.schedule == "plateau":
        return peak * training.cut**cuts
    return peak


def make_optimizer(
    parameters: list[nn.Parameter],
    settings: TrainingSection,
    given: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer that a recipe names, or that of the caller of `fit`.

    Fused, AdamW reads and writes each number once, where PyTorch's default on a CPU has a dozen passes over memory. A
    model of one's own may have parameters without a fused kernel: complex ones, and views with gaps between their
    numbers, of which PyTorch's kernel on a CPU would update the numbers in the gaps.
    """
    if given is not None:
        return given([{"params": parameters}])
    if settings.optimizer == GIVEN:
        raise ValueError(f'training.optimizer = "{GIVEN}" stands for that of the caller: fit(…, optimizer=…)')
    kind = without_compiler(getattr(torch.optim, settings.optimizer))
    options = optimizer_settings(settings)
    if settings.optimizer == "AdamW":
        fused = all(x.is_floating_point() and _is_dense(x) for x in parameters)
        options |= {"eps": 1e-9, "fused": fused}
    options["lr"] = settings.rate
    return kind([{"params": parameters}], **options)


def optimizer_settings(settings: TrainingSection) -> dict[str, Any]:
    """What the optimizer takes of the recipe, beside the rate: a resumed run may change it."""
    if settings.optimizer == GIVEN:
        return {}
    values = {"betas": tuple(settings.betas), "weight_decay": settings.decay}
    known = inspect.signature(getattr(torch.optim, settings.optimizer)).parameters
    return {name: value for name, value in values.items() if name in known}


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer, whose methods are not prepared for `torch.compile`: that imports it, which takes longer than
    importing PyTorch.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    step = inspect.unwrap(kind.step)
    methods["step"] = lambda self, closure=None: torch.no_grad()(step)(self, closure)
    return type(kind.__name__, (kind,), methods)


def _is_dense(x: Tensor) -> bool:
    """Whether the numbers lie side by side in memory, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


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


class MovingAverage:
    """θ̄ ← d·θ̄ + (1 − d)·θ after every update n, with d = min(decay, (1 + n) / (10 + n)).

    The decay rises over the first updates, or the average would be of the random start (Polyak and Juditsky 1992 for
    the mean; the rising decay as in TensorFlow's ExponentialMovingAverage). Buffers are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float, averages: list[Tensor] | None = None) -> None:
        self.parameters = list(model.parameters())
        self.decay = decay
        self.averages = [
            parameter.detach().clone() if averages is None else averages[n].to(parameter)
            for n, parameter in enumerate(self.parameters)
        ]

    @torch.no_grad()
    def update(self, n: int) -> None:
        decay = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in self.parameters], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages as its parameters."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.averages)
        try:
            yield
        finally:
            self._set(kept)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([parameter.detach() for parameter in self.parameters], values)
