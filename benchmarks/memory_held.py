"""How the memory that a watch holds grows with the length, of tiny models of architectures in bfloat16.

growth(name) runs an architecture at two lengths and compares the bytes that `seen` keeps alive.
"""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import torch

from regard import watch
from tests.support import tiny_architectures
from tests.support.tiny_architectures import Lengths

LENGTHS = (Lengths(192, 128, 2, torch.bfloat16), Lengths(384, 256, 4, torch.bfloat16))
LINEAR = 1.25
"""The largest exponent that counts as linear: memory grows as size ** exponent. A square has 2."""


def growth(name: str) -> str:
    """ "linear", or what grows otherwise: the exponent, and what holds the matrices."""
    gc.freeze()  # what exists already need not be searched for tensors: that takes 20 times longer
    try:
        first, second = (_held(name, lengths) for lengths in LENGTHS)
    except tiny_architectures.CannotBuildError as error:
        return f"not run: {' '.join(str(error).split())[:100]}"
    (bytes_before, size_before, _), (bytes_after, size_after, seen) = first, second
    if not size_before or size_after == size_before:
        return "no attention" if not size_before else "fixed length"
    exponent = math.log(bytes_after / bytes_before) / math.log(size_after / size_before)
    if exponent <= LINEAR:
        return "linear"
    return f"exponent {exponent:.2f}: {'; '.join(sorted(_square(seen))) or 'not known'}"


@torch.no_grad()
def _held(name: str, lengths: Lengths) -> tuple[int, int, Any]:
    """The bytes that a watch keeps alive, the queries and keys of all its matrices, and what was seen."""
    model, inputs = tiny_architectures.build(name, lengths)
    model(**copy.deepcopy(inputs))  # fills caches of the model
    before = _bytes()
    with watch(model) as seen:
        model(**inputs)
    len(seen)  # makes the calls: a mask of up to 64 MB is shortened when somebody asks
    held = _bytes() - before
    shapes = [call.shape for call in seen]
    size = sum(math.prod(shape[:-2]) * (shape[-2] + shape[-1]) for shape in shapes)
    return held, size, seen


def _bytes() -> int:
    """The bytes of all tensors that are alive."""
    gc.collect()
    storages = {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout == torch.strided:
            storage = x.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _square(seen: Any) -> set[str]:
    """What holds as many numbers as one matrix has: the origin of the call, the shape, and what it is."""
    held = set()
    for call in seen:
        shape = call.shape[-2:]
        energies = call.energies
        biases = [(x.added, call.matrix or "a bias of its own") for x in energies.modifiers if x.added is not None]
        if energies.mask is not None and energies.mask.seen is not None:
            biases.append((energies.mask.seen, "a mask that is no interval of keys"))
        held |= {
            f"{call.origin} {list(x.shape)}, {what}" for x, what in biases if x.shape[-2:] == shape and min(shape) > 1
        }
    return held
