"""What an update does with gradients: the optimizer, its groups and rate, and the moving average of the weights."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .recipe_sections import GIVEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor, nn

    from .recipe_sections import TrainingSection

REST = ""
"""The name of the group of parameters that `training.part_rates` does not name; it comes first."""


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
    groups: Iterable[list[nn.Parameter]],
    settings: TrainingSection,
    given: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer that a recipe names, or that of the caller of `fit`, over groups of parameters.

    Fused, AdamW reads and writes each number once, where PyTorch's default on a CPU has a dozen passes over memory. A
    model of one's own may have parameters without a fused kernel: complex ones, and views with gaps between their
    numbers, of which PyTorch's kernel on a CPU would update the numbers in the gaps.
    """
    groups = list(groups)
    if given is not None:
        return given([{"params": parameters} for parameters in groups])
    if settings.optimizer == GIVEN:
        raise ValueError(f'training.optimizer = "{GIVEN}" stands for that of the caller: fit(…, optimizer=…)')
    kind = without_compiler(getattr(torch.optim, settings.optimizer))
    options = optimizer_settings(settings)
    if settings.optimizer == "AdamW":
        fused = all(x.is_floating_point() and _is_dense(x) for parameters in groups for x in parameters)
        options |= {"eps": 1e-9, "fused": fused}
    options["lr"] = settings.rate
    return kind([{"params": parameters} for parameters in groups], **options)


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


def parameter_groups(module: nn.Module, settings: TrainingSection) -> dict[str, list[nn.Parameter]]:
    """Part → its parameters that learn. A parameter belongs to the longest name that fits; empty groups are left out.

    The names alone decide the groups, not the rates: a run whose `training.rate` changes keeps them.
    """
    groups: dict[str, list[nn.Parameter]] = {REST: []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parts = [part for part in settings.part_rates if in_parts(name, [part])]
            groups.setdefault(max(parts, key=len, default=REST), []).append(parameter)
    return {part: parameters for part, parameters in groups.items() if parameters}


def rate_share(part: str, settings: TrainingSection) -> float:
    """The highest rate of a group, as a share of `training.rate`."""
    return settings.part_rates.get(part, settings.rate) / settings.rate


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
