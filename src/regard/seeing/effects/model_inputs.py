"""Inputs and outputs of models of any kind: how they are called, and rows of a batch of what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn

    Inputs = Tensor | Mapping[str, Any]


def run_model(model: nn.Module, inputs: Inputs) -> Any:
    """`model(**inputs)` for a mapping of keyword arguments, `model(inputs)` for a tensor."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def first_tensor(x: Any) -> Tensor | None:
    """A tensor, or the first one of a tuple, list, mapping or dataclass."""
    return x if isinstance(x, Tensor) else next((part for part in _parts(x) if isinstance(part, Tensor)), None)


def all_tensors(x: Any) -> list[Tensor]:
    """A tensor, or all those in a tuple, list, mapping or dataclass and what these contain."""
    return [x] if isinstance(x, Tensor) else [tensor for part in _parts(x) for tensor in all_tensors(part)]


def _parts(x: Any) -> tuple[Any, ...]:
    """The parts of a tuple, list, mapping or dataclass; none of anything else."""
    if isinstance(x, Mapping):  # outputs of Transformers are mappings and dataclasses
        return tuple(x.values())
    if is_dataclass(x):
        return tuple(getattr(x, field.name) for field in fields(x))
    return tuple(x) if isinstance(x, tuple | list) else ()


def batch_size(inputs: Inputs) -> int:
    """The first dimension of the first tensor."""
    x = first_tensor(inputs)
    if x is None or x.dim() == 0:
        raise ValueError("the inputs have no tensor with a batch dimension; give a tensor or keyword arguments")
    return x.shape[0]


def repeated(x: Any, batch: int, times: int) -> Any:
    """The same inputs or outputs with every tensor of this batch size repeated along the batch."""
    if isinstance(x, Tensor):
        return x.repeat(times, *[1] * (x.dim() - 1)) if x.dim() and x.shape[0] == batch else x
    return _mapped(x, lambda part: repeated(part, batch, times))


def batch_rows(x: Any, batch: int, rows: slice) -> Any:
    """The same with these rows of every tensor whose batch size is `batch`."""
    if isinstance(x, Tensor):
        return x[rows] if x.dim() and x.shape[0] == batch else x
    return _mapped(x, lambda part: batch_rows(part, batch, rows))


def outputs_agree(first: Any, second: Any, batch: int) -> bool:
    """Whether the tensors of two outputs that have this batch size differ by rounding alone.

    Batches of different size are computed in another order. The bounds are wide, for models that compute in half
    precision inside.
    """
    pairs = zip(all_tensors(first), all_tensors(second), strict=True)
    for x, y in pairs:
        if not (x.dim() and x.shape[0] == batch and x.is_floating_point()):
            continue
        if x.shape != y.shape:
            return False
        finite = x.isfinite() & y.isfinite()
        old, new = (tensor.detach()[finite].double() for tensor in (x, y))
        if float((old - new).norm()) > (0.01 if torch.finfo(x.dtype).bits > 16 else 0.1) * float(old.norm()):
            return False
    return True


def without_graph(x: Any) -> Any:
    """The same with every tensor detached."""
    return x.detach() if isinstance(x, Tensor) else _mapped(x, without_graph)


def _mapped(x: Any, function: Any) -> Any:
    """A mapping (an output of Transformers too), dataclass, tuple or list with a function applied to its parts."""
    if isinstance(x, Mapping):
        return type(x)(**{key: function(part) for key, part in x.items()})
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{field.name: function(getattr(x, field.name)) for field in fields(x) if field.init})
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(function(part) for part in x))
    return type(x)(function(part) for part in x) if isinstance(x, tuple | list) else x
