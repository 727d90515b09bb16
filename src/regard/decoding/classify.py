"""Texts or sounds in, labels out, with how sure the model is and where it looked."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.batch import END, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Float, Shaped
    from torch import Tensor

    from ..data import Tokenizers
    from ..models.classifier import Classifier

LONGEST = 2048  # tokens of a text; what is longer is a book, or an attack
ON_CPU, ON_GPU = 4096, 65536  # tokens of a batch; of sound, hundredths of a second


@dataclass
class Classification:
    """A source and what it is called. `probabilities` are by label, likeliest first; none where it was refused.

    `weights` has one number per place (a token, </s> included, or a stretch of sound), where it was asked for and
    the model's pooling gives places weights; `static` the TF-IDF weights of the same tokens.
    """

    source: str
    numbers: Shaped[np.ndarray, "length"]  # ids, or samples
    probabilities: dict[str, float] = field(default_factory=dict)
    weights: Float[Tensor, "places"] | None = None
    static: Float[Tensor, "places"] | None = None

    @property
    def label(self) -> str:
        return next(iter(self.probabilities), "")

    @property
    def unknown(self) -> bool:
        """A text of which the model knows not one word."""
        words = self.numbers[:-1]
        return self.static is not None and len(words) > 0 and bool((words == UNKNOWN).all())


def classify(
    model: Classifier,
    tokenizers: Tokenizers,
    sources: Iterable[str],
    *,
    tokens: int | None = None,
    window: int = 4096,
    weights: bool = False,
    refused: Callable[[int, str], None] | None = None,
) -> Iterator[Classification]:
    """Names each source, in their order, reading no further ahead than `window` of them.

    Sources of like length share a batch of at most `tokens`, padding counted. One that cannot be read, is empty or too
    long is an error; with `refused` that function is told its number (from 1) and the reason instead, and it gets no
    label.
    """
    if tokens is None:
        tokens = ON_GPU if next(model.parameters()).is_cuda else ON_CPU
    if tokens < 1 or window < 1:
        raise ValueError(f"classify needs tokens ≥ 1 and window ≥ 1, got {tokens} and {window}")
    sources, before = iter(sources), 0
    while names := list(islice(sources, window)):
        read, reasons = _read(tokenizers.source, names)
        for i, why in sorted(reasons.items()):
            if refused is None:
                raise ValueError(f"source {before + i + 1} {why}" if len(names) > 1 else f"this source {why}")
            refused(before + i + 1, why)
        found = [Classification(name, numbers) for name, numbers in zip(names, read, strict=True)]
        chosen = [i for i in range(len(names)) if i not in reasons]
        for batch in _batches([-(-len(one) // tokenizers.source.stride) for one in read], chosen, tokens):
            _run(model, tokenizers.target.names, [found[i] for i in batch], weights)
        before += len(names)
        yield from found


def _read(reader: Any, names: Sequence[str]) -> tuple[list[Shaped[np.ndarray, "length"]], dict[int, str]]:
    """The numbers of each source, and why some have none."""
    read, reasons = [np.zeros(1, np.int64)] * len(names), {}
    for i, name in enumerate(names):
        try:
            if reader.kind == "text":
                read[i] = np.array([*_words(reader, name), END])
            else:
                read[i] = reader.encode_batch([name])[0]
        except ValueError as error:
            reasons[i] = str(error) if reader.kind == "text" else f"cannot be heard: {error}"
    return read, reasons


def _words(reader: Any, text: str) -> list[int]:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # bytes of a command line that were none
        raise ValueError(f"is not UTF-8: character {error.start + 1} is {text[error.start]!r}") from None
    if not text.strip():
        raise ValueError("is empty: there is nothing to name")
    ids: list[int] = reader.encode_batch([text])[0]
    if len(ids) >= LONGEST:
        raise ValueError(f"has {len(ids):,} tokens; at most {LONGEST - 1:,} fit: split it")
    return ids


def _batches(widths: list[int], chosen: list[int], tokens: int) -> list[list[int]]:
    """Batches of like width, of at most so many padded tokens, or one source."""
    batches: list[list[int]] = []
    for i in sorted(chosen, key=lambda i: widths[i]):  # the longest of a batch is its last
        if batches and widths[i] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@torch.no_grad()
def _run(model: Classifier, labels: list[str], batch: list[Classification], weights: bool) -> None:
    """Fill in what the model says of these."""
    device = next(model.parameters()).device
    lengths = np.array([len(one.numbers) for one in batch])
    padded = np.zeros((len(batch), lengths.max()), batch[0].numbers.dtype)
    for row, one in zip(padded, batch, strict=True):
        row[: len(one.numbers)] = one.numbers
    source, long = torch.from_numpy(padded).to(device), torch.from_numpy(lengths).to(device)
    training = model.training
    model.eval()
    try:
        said = model(source, long, weights=weights)
        static = model.rarity(source, long) if weights else None
    finally:
        model.train(training)
    sure, places = torch.softmax(said.logits.double(), -1).cpu(), said.places.tolist()
    for i, one in enumerate(batch):
        order = sure[i].argsort(descending=True, stable=True).tolist()
        one.probabilities = {labels[n]: float(sure[i, n]) for n in order}
        if said.weights is not None:
            one.weights = said.weights[i, : places[i]].float().cpu()
        if static is not None:
            one.static = static[i, : len(one.numbers)].float().cpu()
