"""Decoding: what a key/value cache saves, and what a beam costs. `python -m benchmarks.decoding` prints the table.

CPU seconds of one thread, which other work on the machine does not change.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.timing import Row, alternate, row, write
from regard.decoding import search
from regard.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.special_tokens import BEGIN, END

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard.models import Annotations

SENTENCES, PLACES, VOCABULARY = 8, 32, 8000


def rows() -> Iterator[Row]:
    yield from lengths()
    yield from beams()


def lengths() -> Iterator[Row]:
    """Greedy, always to the end: with a cache the cost grows with the length, without one with its square."""
    model = _transformer()
    annotations = _annotations(model)
    for steps in (32, 64, 128, 256):
        functions = {
            "regard": partial(search, model, annotations, beams=1, longest=steps),
            "every prefix read again": partial(_without_cache, model, annotations, steps),
        }
        times = alternate(functions, 3, clock=time.process_time)
        yield from (row(f"greedy, {SENTENCES} sentences, {steps} tokens each", by, t) for by, t in times.items())


def beams() -> Iterator[Row]:
    """Beams of a sentence share its keys and values, so five cost less than five times one."""
    for name, model in (("Transformer", _transformer()), ("Bahdanau", _bahdanau())):
        annotations = _annotations(model)
        functions = {f"regard, {n} beams": partial(search, model, annotations, beams=n, longest=32) for n in (1, 5)}
        times = alternate(functions, 5, clock=time.process_time)
        yield from (row(f"{name}, {SENTENCES} sentences, 32 tokens each", by, t) for by, t in times.items())


@torch.no_grad()
def _without_cache(model: EncoderDecoder, annotations: Annotations, steps: int) -> None:
    tokens = torch.full((SENTENCES, 1), BEGIN)
    for _ in range(steps + 1):
        features = model.decoder(tokens, annotations).features[:, -1]
        tokens = torch.cat([tokens, model.readout(features).argmax(-1, keepdim=True)], 1)


def _transformer() -> EncoderDecoder:
    part = {"width": 128, "heads": 4, "hidden": 512, "layers": 4}
    return _endless(TransformerEncoderConfig(**part), TransformerDecoderConfig(**part))


def _bahdanau() -> EncoderDecoder:
    return _endless(RecurrentEncoderConfig(), RecurrentDecoderConfig())


def _endless(encoder: EncoderConfig, decoder: DecoderConfig) -> EncoderDecoder:
    """Untrained, and never ending of itself, so that all write as long as they may."""
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, encoder, decoder)).eval()
    readout = model.decoder.readout

    def never(features: torch.Tensor) -> torch.Tensor:
        logits = readout(features)
        logits[..., END] = -1e4
        return logits

    model.decoder.readout = never  # type: ignore[method-assign]
    return model


@torch.no_grad()
def _annotations(model: EncoderDecoder) -> Annotations:
    return model.encode(torch.randint(4, VOCABULARY, (SENTENCES, PLACES)), torch.full((SENTENCES,), PLACES))


def main() -> None:
    from rich.console import Console

    from benchmarks.__main__ import table

    torch.set_num_threads(1)
    measured = list(rows())
    write(measured)
    Console().print(table(measured))


if __name__ == "__main__":
    main()
