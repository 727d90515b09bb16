"""python -m benchmarks.watch_instructions: how much Python watching adds, counted: calls of functions and instructions.

These numbers depend on no clock and on no other work of the machine. A Llama of 8 layers is run and generates; each run
has a watch of its own, and modules are known from the runs before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from benchmarks.watch_overhead_gpu import llama
from regard import watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

LAYERS, TOKENS = 8, 16


class Count(NamedTuple):
    """What ran: functions of Python, functions in C, and instructions of Python's bytecode."""

    python: int
    c: int
    instructions: int


def count(work: Callable[[], object]) -> Count:
    """Run it twice: once to count calls, once to count instructions."""
    calls = {"call": 0, "c_call": 0, "instructions": 0}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event in calls:
            calls[event] += 1

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        calls["instructions"] += event == "opcode"
        return trace

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return Count(calls["call"], calls["c_call"], calls["instructions"])


@torch.no_grad()
def compare(name: str, model: Any, work: Callable[[], object], parts: int = 1) -> None:
    """Print what a watch adds to each of so many parts of the work, and how much of the plain work that is."""

    def watched() -> None:
        with watch(model):
            work()

    for _ in range(3):
        watched()
    plain, more = count(work), count(watched)
    added = [(b - a) / parts for a, b in zip(plain, more, strict=True)]
    share = f", {more.instructions / plain.instructions:.3f} ×" if plain.instructions > 100 else ""
    print(
        f"{name:52} {added[0]:6.1f} functions of Python, {added[1]:6.1f} in C, {added[2]:7.0f} instructions{share}",
        flush=True,
    )


def main() -> None:
    model = llama(LAYERS, 64, "cpu").float()
    ids = torch.randint(0, 32000, (1, 16))
    compare("watch opened and closed", model, lambda: None)
    compare("forward, for each layer, with the opening", model, lambda: model.model(ids, use_cache=False), LAYERS)
    fixed = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    for cache in ("dynamic", "static"):
        options = {} if cache == "dynamic" else {"cache_implementation": cache, "disable_compile": True}

        def generate(options: dict[str, Any] = options) -> None:
            model.generate(ids, **fixed, **options)

        compare(f"generation, for each layer and token, {cache} cache", model, generate, LAYERS * TOKENS)


if __name__ == "__main__":
    main()
