"""Sentences in, translations out: in batches, in order, as they come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import torch

from ..data.batch import END, PAD
from ..models import Writer
from .hypothesis import Hypothesis
from .search import search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Unpack

    from jaxtyping import Float
    from torch import Tensor

    from ..data import Tokenizers
    from .search import Settings

LONGEST = 2048  # tokens of a sentence; what is longer is a text, or an attack
ON_CPU, ON_GPU = 2048, 16384  # source tokens of a batch


@dataclass
class Translation:
    """A sentence, and what it may be in the other language, best first."""

    source: str
    source_tokens: list[int]  # with </s>, which the encoder reads too
    texts: list[str]
    hypotheses: list[Hypothesis]
    tokenizers: Tokenizers

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def tokens(self) -> list[int]:
        """Of the best, with </s>: one for each row of `weights`."""
        return [*self.hypotheses[0].tokens, END]

    @property
    def pieces(self) -> list[str]:
        pieces: list[str] = self.tokenizers.target.pieces(self.tokens)
        return pieces

    @property
    def source_pieces(self) -> list[str]:
        pieces: list[str] = self.tokenizers.source.pieces(self.source_tokens)
        return pieces

    @property
    def weights(self) -> Float[Tensor, "maps target places"] | None:
        return self.hypotheses[0].weights


class Engine(Protocol):
    """Whatever can search: our own models, or another library's copy of one."""

    def __call__(self, sources: list[list[int]], **how: Unpack[Settings]) -> list[list[Hypothesis]]:
        """For each source, ids that end in </s>, its best hypotheses."""


@dataclass
class Own:
    """The engine that runs a model of ours, on whatever device it lies."""

    model: Writer

    def __call__(self, sources: list[list[int]], **how: Unpack[Settings]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        lengths = torch.tensor([len(source) for source in sources])
        padded = torch.full((len(sources), int(lengths.max())), PAD)
        padded[torch.arange(padded.shape[1]) < lengths[:, None]] = torch.tensor([i for s in sources for i in s])
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                annotations = self.model.encode(padded.to(device), lengths.to(device))
            return search(self.model, annotations, **how)
        finally:
            self.model.train(training)


def translate(
    engine: Writer | Engine,
    tokenizers: Tokenizers,
    sentences: Iterable[str],
    *,
    tokens: int | None = None,
    window: int = 4096,
    refused: Callable[[int, str], None] | None = None,
    **how: Unpack[Settings],
) -> Iterator[Translation]:
    """Translates sentences, in their order, reading no further ahead than `window` of them.

    Within a window, sentences of like length share a batch of at most `tokens` source tokens, padding counted; unless
    given, as many as suit a CPU's caches, or fill a GPU. `how` are the keywords of `search`. An empty line becomes an
    empty line.

    A sentence that is too long or no text is an error; with `refused` that function is told its number (from 1) and
    the reason instead, and it becomes an empty line.
    """
    run: Engine = Own(engine) if isinstance(engine, Writer) else engine
    if tokens is None:
        tokens = ON_GPU if isinstance(engine, Writer) and next(engine.parameters()).is_cuda else ON_CPU
    if tokens < 1 or window < 1:
        raise ValueError(f"translate needs tokens ≥ 1 and window ≥ 1, got {tokens} and {window}")
    sentences, before = iter(sentences), 0
    while texts := list(islice(sentences, window)):
        reasons = {i: why for i, text in enumerate(texts) if (why := _no_text(text))}
        readable = ["" if i in reasons else text for i, text in enumerate(texts)]
        encoded = zip(readable, tokenizers.source.encode_batch(readable), strict=True)
        sources = [[*ids, END] if text.strip() else [END] for text, ids in encoded]
        for i, source in enumerate(sources):
            if len(source) > LONGEST:
                reasons[i] = f"has {len(source):,} tokens; at most {LONGEST:,} fit: split it"
                sources[i] = [END]
        for i, why in sorted(reasons.items()):
            if refused is None:
                raise ValueError(f"sentence {before + i + 1} {why}")
            refused(before + i + 1, why)
        before += len(texts)

        def made(
            i: int, several: list[Hypothesis], texts: list[str] = texts, sources: list[list[int]] = sources
        ) -> Translation:
            decoded = [tokenizers.target.decode(hypothesis.tokens) for hypothesis in several]
            return Translation(texts[i], sources[i], decoded, several, tokenizers)

        found: dict[int, list[Hypothesis]] = {}
        written = 0
        for batch in _batches(sources, tokens):
            found.update(zip(batch, run([sources[i] for i in batch], **how), strict=True))
            # All that is ready and next in order goes out now, not when the window is through.
            while written < len(texts) and (written in found or len(sources[written]) == 1):
                yield made(written, found.pop(written) if written in found else _nothing())
                written += 1
        for i in range(written, len(texts)):  # nothing but empty lines are left
            yield made(i, _nothing())


def _no_text(text: str) -> str | None:
    """Bytes that are not UTF-8 become halves of surrogate pairs on a command line; no tokenizer reads these."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"is not UTF-8: character {error.start + 1} is {text[error.start]!r}"
    return None


def _nothing() -> list[Hypothesis]:
    """What an empty line becomes, with certainty."""
    return [Hypothesis([], 0.0, 0.0)]


def _batches(sources: list[list[int]], tokens: int) -> list[list[int]]:
    """Batches of like length, of at most so many padded tokens (or one sentence); the first in order come first."""
    order = sorted((i for i, source in enumerate(sources) if len(source) > 1), key=lambda i: len(sources[i]))
    batches: list[list[int]] = []
    for i in order:  # the longest of a batch is its last
        if batches and len(sources[i]) * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return sorted(batches, key=min)
