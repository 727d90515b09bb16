"""The header of model.safetensors: what it says of the weights, before anything is built, and the file's SHA-256.

config.json may come from anybody. A width of 8,000 or a million layers would take minutes and gigabytes to build. So
the model is built on PyTorch's meta device first, where tensors have no memory, and only up to the tensors of the file.
"""

from __future__ import annotations

import hashlib
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..checksums import sha256
from ..json_file import DamagedFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

SPARE = 64
"""Parameters that a model may register beyond twice those in its file: tied ones are registered and then replaced."""
TABLES = 1 << 28
"""Numbers in tables that a model computes when it is built, such as positions, which are not in its file."""


UNSEALED = {"sha256": "0" * 64}
"""Metadata of a file to be sealed: `seal` writes the SHA-256 of the file, computed with these zeros, in their place."""
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_HEADER = 1 << 20  # bytes in which the seal is looked for; the metadata come first


class WeightsMismatch(ValueError):
    """The weights are not those that the configuration describes."""


def seal(file: Path) -> None:
    """Write the SHA-256 of a file into its header."""
    place, digest = _digest(file)
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(digest)


def check_seal(file: Path) -> None:
    """Raise an error that names the file where it is not the one that was sealed. One without a seal is not checked."""
    with file.open("rb") as opened:
        sealed = _SEAL.search(opened.read(_HEADER))
    if sealed is not None and _digest(file)[1] != sealed[1]:
        raise DamagedFileError(f"{file} is damaged: its SHA-256 is not the one that was written; get it again")


def weights_sha256(file: Path) -> str:
    """What tells the weights of a file from others: its seal, or the SHA-256 of one without a seal."""
    with file.open("rb") as opened:
        sealed = _SEAL.search(opened.read(_HEADER))
    return sha256(file) if sealed is None else sealed[1].decode()


def _digest(file: Path) -> tuple[int, bytes]:
    """Where the seal is, and the SHA-256 of the file with zeros in its place."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        head = opened.read(_HEADER)
        sealed = _SEAL.search(head)
        assert sealed is not None
        digest.update(head[: sealed.start(1)] + b"0" * 64 + head[sealed.end(1) :])
        while block := opened.read(_HEADER):
            digest.update(block)
    return sealed.start(1), digest.hexdigest().encode()


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
