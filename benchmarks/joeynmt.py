"""Training and translating beside JoeyNMT 2.3: the same architecture, batches, search and machine, in one run.

    PYTHONPATH=<folder with joeynmt 2.3.0 and importlib_metadata> python -m benchmarks.joeynmt [--device cuda]

JoeyNMT's models are built by its own `build_model`, trained with its own loss, and searched by its own `search`.

- On a GPU it runs in float32 and in its own mixed precision (float16 with a gradient scaler), regard in bf16-mixed.
- On a CPU both run in float32 and in bfloat16. JoeyNMT turns its `fp16` off on a CPU, so its own precision there is
  float32; bfloat16 is autocast around it, which its configuration cannot switch on, and has a ratio of its own.
  regard's is `training.precision = "bf16-mixed"`, and `regard translate --precision bfloat16`.

The fastest regard is compared with the fastest JoeyNMT as it comes. All take turns, and the median of the ratios is
printed. On a CPU it is CPU seconds, which other work on the machine changes less.
Sentences are random ids with the lengths of ordinary ones: what is timed does not depend on which words they are.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.joeynmt_models import batches, ours, sentences, their_batch, theirs
from regard.decoding import search
from regard.models import EncoderDecoder
from regard.training.devices import CudaGraphs
from regard.training.parameters import make_optimizer
from regard.training.recipe_sections import TrainingSection

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.data.batches import Batch
    from regard.decoding import Hypothesis


def our_update(model: EncoderDecoder, autocast: torch.dtype | None) -> Callable[[Batch], None]:
    """One update as `regard train` does it: on a GPU in CUDA graphs; `autocast` None: in float32."""
    device = next(model.parameters()).device.type
    graphs = CudaGraphs(model, smoothing=0.1, autocast=autocast) if device == "cuda" else None
    optimizer = make_optimizer([list(model.parameters())], TrainingSection(rate=1e-4))

    def update(batch: Batch) -> None:
        if graphs is not None:
            loss = graphs(batch)
        else:
            with torch.autocast(device, autocast, enabled=autocast is not None):
                loss = model.loss(batch, smoothing=0.1)
        loss.total.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, (1 / loss.tokens).to(gradients[0].dtype))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def their_update(model: Any, autocast: torch.dtype | None) -> Callable[[Any], None]:
    """One update as JoeyNMT does it, with a scaler in float16."""
    device = next(model.parameters()).device.type
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=autocast == torch.float16)

    def update(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, autocast, enabled=autocast is not None):
            total: torch.Tensor = model(return_type="loss", **vars(batch))[0]
        scaler.scale(total / batch.ntokens).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return update


@dataclass
class Work:
    """What is timed: a function and the inputs that it is called with, one after the other."""

    run: Callable[[Any], object]
    inputs: list[Any]

    def seconds(self, device: torch.device) -> float:
        """For all inputs, CPU seconds on a CPU."""
        on_gpu = device.type == "cuda"
        clock = time.perf_counter if on_gpu else time.process_time
        if on_gpu:
            torch.cuda.synchronize()
        start = clock()
        for x in self.inputs:
            self.run(x)
        if on_gpu:
            torch.cuda.synchronize()
        return clock() - start


def seconds_in_turns(works: dict[str, Work], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """The seconds of each, round by round, after some rounds that do not count: a GPU records graphs in them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + (3 if device.type == "cuda" else 1)):
        for name in list(seconds):
            try:
                seconds[name].append(works[name].seconds(device))
            except RuntimeError as error:  # JoeyNMT's recurrent decoder fails in float16
                print(f"{name}: {error}".splitlines()[0], flush=True)
                del seconds[name]
    return {name: each[-rounds:] for name, each in seconds.items()}


REGARD, JOEYNMT, BY_HAND = "regard", "JoeyNMT", "autocast around JoeyNMT"
"""How the names of works begin; BY_HAND is no option of JoeyNMT."""


def works_of(
    device: torch.device,
    ours: Callable[[torch.dtype | None], Work],
    theirs: Callable[[torch.dtype | None], Work],
    by_hand: bool,
) -> dict[str, Work]:
    """Both libraries in the precisions that they are compared in."""
    if device.type == "cuda":
        return {
            f"{REGARD} in bfloat16": ours(torch.bfloat16),
            f"{JOEYNMT} in float32": theirs(None),
            f"{JOEYNMT} in float16": theirs(torch.float16),
        }
    works = {
        f"{REGARD} in float32": ours(None),
        f"{REGARD} in bfloat16": ours(torch.bfloat16),
        f"{JOEYNMT} in float32": theirs(None),
    }
    return works | ({f"{BY_HAND} in bfloat16": theirs(torch.bfloat16)} if by_hand else {})


def speeds(tokens: int, seconds: dict[str, list[float]]) -> str:
    """Tokens per second of each, and the median of the ratios of the fastest JoeyNMT and the fastest regard."""
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    own, *others = (
        min((name for name in seconds if name.startswith(library)), key=middle.__getitem__, default=None)
        for library in (REGARD, JOEYNMT, BY_HAND)
    )
    line = f"{', '.join(f'{name} {tokens / middle[name]:,.0f}' for name in seconds)} tokens/s"
    for other in others:
        if own is not None and other is not None:
            ratios = [theirs / ours for theirs, ours in zip(seconds[other], seconds[own], strict=True)]
            line += f"; {own} ÷ {other}: {statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
    return line


def our_search(model: EncoderDecoder, batch: Batch, longest: int) -> list[list[Hypothesis]]:
    with torch.no_grad():
        return search(model, model.encode(batch.source, batch.source_lengths), beams=5, longest=longest)


def their_search(model: Any, batch: Any, longest: int, autocast: torch.dtype | None = None) -> Any:
    from joeynmt.search import search

    settings: dict[str, Any] = {"device_type": batch.src.device.type, "enabled": autocast is not None}
    if autocast is not None:
        settings["dtype"] = autocast
    with torch.no_grad():
        return search(model, batch, max_output_length=longest, beam_size=5, beam_alpha=1.0, autocast=settings)


def compare_training(kind: str, device: torch.device, data: list[Batch], rounds: int, by_hand: bool) -> str:
    config = ours(kind).config
    our_data, their_data = [b.to(device) for b in data], [their_batch(b, device) for b in data]
    works = works_of(
        device,
        lambda dtype: Work(our_update(EncoderDecoder(config).to(device).train(), dtype), our_data),
        lambda dtype: Work(their_update(theirs(config).to(device).train(), dtype), their_data),
        by_hand,
    )
    tokens = sum(int((b.target_lengths - 1).sum()) for b in data)
    return speeds(tokens, seconds_in_turns(works, device, rounds))


def compare_search(kind: str, device: torch.device, size: int, longest: int, rounds: int, by_hand: bool) -> str:
    """Models as they are made: trained for a few steps, they would end their sentences anywhere. These never do."""
    model, texts = ours(kind).to(device).eval(), sentences(size)
    their_model = theirs(model.config).to(device).eval()
    our_data, their_data = [b.to(device) for b in texts], [their_batch(b, device) for b in texts]

    def our_work(dtype: torch.dtype | None) -> Work:
        # On a GPU a search has the precision of the model, which is float32.
        model_in_dtype = model if dtype is None or device.type == "cuda" else copy.deepcopy(model).to(dtype)
        return Work(partial(our_search, model_in_dtype, longest=longest), our_data)

    def their_work(dtype: torch.dtype | None) -> Work:
        return Work(partial(their_search, their_model, longest=longest, autocast=dtype), their_data)

    works = works_of(device, our_work, their_work, by_hand)
    if device.type == "cuda":  # see above
        works = {name.replace(f"{REGARD} in bfloat16", f"{REGARD} in float32"): work for name, work in works.items()}
    return speeds(size * len(texts) * longest, seconds_in_turns(works, device, rounds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=30, help="tokens of each translation")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 32, 256], help="sentences translated at once")
    parser.add_argument("--search-only", action="store_true", help="no training")
    parser.add_argument("--own-precision", action="store_true", help="no autocast around JoeyNMT")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--models", nargs="+", default=["bahdanau", "transformer"])
    given = parser.parse_args()
    device, by_hand = torch.device(given.device), not given.own_precision
    if given.threads:
        torch.set_num_threads(given.threads)
    logging.disable(logging.INFO)  # its modules set the levels of their own loggers
    for kind in given.models:
        if not given.search_only:
            data = batches(given.batches, given.tokens)
            print(f"{kind} training: {compare_training(kind, device, data, given.rounds, by_hand)}", flush=True)
        for size in given.sizes:
            line = compare_search(kind, device, size, given.longest, given.rounds, by_hand)
            print(f"{kind} beam 5, {size} sentences: {line}", flush=True)


if __name__ == "__main__":
    main()
