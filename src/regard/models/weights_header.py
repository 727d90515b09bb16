"""The header of model.safetensors: whether it holds the weights that config.json describes, before any is built.

config.json may come from anybody. A width of 8,000 or a million layers would take minutes and gigabytes to build. So
the model is built on PyTorch's meta device first, where tensors have no memory, and only up to the tensors of the file.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

SPARE = 64
"""Parameters that a model may register beyond twice those in its file: tied ones are registered and then replaced."""
TABLES = 1 << 28
"""Numbers in tables that a model computes when it is built, such as positions, which are not in its file."""


class WeightsMismatch(ValueError):
    """The weights are not those that the configuration describes."""


def check_header(file: Path, build: Callable[[], nn.Module]) -> None:
    """Raise an error where `build` would not make the tensors that the file has. Allocates none of them."""
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:  # reads the header alone
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    try:
        with torch.device("meta"), _at_most(2 * len(shapes) + SPARE):
            model = build()
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise WeightsMismatch(f"its sizes are impossible: {' '.join(str(error).split())[:200]}") from None
    described = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in shapes.items():
        if name not in described:
            raise WeightsMismatch(f"the file has {name}, which the model has not")
        if described[name] != shape:
            raise WeightsMismatch(f"{name} is {list(shape)} in the file, and the model has {list(described[name])}")
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    tables = sum(tensor.numel() for tensor in model.buffers() if id(tensor) not in stored)
    if tables > TABLES:
        raise WeightsMismatch(f"the model would compute tables of {tables:,} numbers; at most {TABLES:,} are allowed")


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Stop a model that registers more parameters than this."""
    thread, left = threading.get_ident(), count

    def register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal left
        if threading.get_ident() == thread:
            left -= 1
            if left < 0:
                raise WeightsMismatch(f"the model has far more than the {(count - SPARE) // 2:,} tensors of the file")

    hook = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()
