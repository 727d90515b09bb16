"""Sentences, pictures or sounds in, what a writer makes of them out: in batches, in order, as they come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
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

    Source = list[int] | np.ndarray[Any, Any]
    """Ids that end in </s>; or samples of a sound, or a picture's pixels."""

LONGEST = 2048  # tokens of a sentence; what is longer is a text, or an attack
ON_CPU, ON_GPU = 2048, 16384  # source tokens of a batch
PICTURE = 64  # tokens that a picture counts for


@dataclass
class Translation:
    """A sentence, and what it may be in the other language, best first."""

    source: str
    source_tokens: list[int]  # with </s>, which the encoder reads too; empty where the source is no text
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

    def __call__(self, sources: list[Any], **how: Unpack[Settings]) -> list[list[Hypothesis]]:
        """For each source, its best hypotheses; a text is ids that end in </s>."""


@dataclass
class Own:
    """The engine that runs a model of ours, on whatever device it lies."""

    model: Writer

    def __call__(self, sources: list[Source], **how: Unpack[Settings]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        padded, lengths = stacked(sources)
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

    Where the source is no text (`tokenizers.source` says so), `sentences` are the names of pictures or sounds, and what
    is written are captions or spellings.

    Within a window, sentences of like length share a batch of at most `tokens` source tokens, padding counted; unless
    given, as many as suit a CPU's caches, or fill a GPU. `how` are the keywords of `search`. An empty line becomes an
    empty line.

    A sentence that is too long or no text, or a file that cannot be read, is an error; with `refused` that function is
    told its number (from 1) and the reason instead, and it becomes an empty line.
    """
    run: Engine = Own(engine) if isinstance(engine, Writer) else engine
    if tokens is None:
        tokens = ON_GPU if isinstance(engine, Writer) and next(engine.parameters()).is_cuda else ON_CPU
    if tokens < 1 or window < 1:
        raise ValueError(f"translate needs tokens ≥ 1 and window ≥ 1, got {tokens} and {window}")
    sentences, before = iter(sentences), 0
    while texts := list(islice(sentences, window)):
        sources, reasons = _read(tokenizers.source, texts)
        for i, why in sorted(reasons.items()):
            if refused is None:
                raise ValueError(why if tokenizers.source.kind != "text" else f"sentence {before + i + 1} {why}")
            refused(before + i + 1, why)
        before += len(texts)

        def made(
            i: int, several: list[Hypothesis], texts: list[str] = texts, sources: list[Source | None] = sources
        ) -> Translation:
            decoded = [tokenizers.target.decode(hypothesis.tokens) for hypothesis in several]
            source = sources[i]
            ids = source if isinstance(source, list) else [END] if tokenizers.source.kind == "text" else []
            return Translation(texts[i], ids, decoded, several, tokenizers)

        found: dict[int, list[Hypothesis]] = {}
        written = 0
        for batch in _batches(sources, tokens, tokenizers.source):
            read = [source for i in batch if (source := sources[i]) is not None]
            found.update(zip(batch, run(read, **how), strict=True))
            # All that is ready and next in order goes out now, not when the window is through.
            while written < len(texts) and (written in found or sources[written] is None):
                yield made(written, found.pop(written) if written in found else _nothing())
                written += 1
        for i in range(written, len(texts)):  # nothing but empty lines are left
            yield made(i, _nothing())


def stacked(sources: list[Source]) -> tuple[Tensor, Tensor]:
    """Sources as one tensor, padded with <pad> or silence, and their lengths; pictures have one shape already."""
    if isinstance(sources[0], np.ndarray) and sources[0].ndim > 1:
        return torch.from_numpy(np.stack(sources)), torch.full((len(sources),), sources[0].size)
    lengths = torch.tensor([len(source) for source in sources])
    flat = torch.from_numpy(np.concatenate([np.asarray(source) for source in sources]))
    padded = torch.full((len(sources), int(lengths.max())), PAD, dtype=flat.dtype)
    padded[torch.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded, lengths


def _read(reader: Any, texts: list[str]) -> tuple[list[Source | None], dict[int, str]]:
    """Each source as numbers, None for one that is empty or cannot be read; and why it cannot."""
    sources: list[Source | None] = [None] * len(texts)
    if reader.kind != "text":
        reasons = {}
        for i, name in enumerate(texts):
            try:
                sources[i] = reader.encode_batch([name])[0]
            except ValueError as error:
                reasons[i] = str(error)
        return sources, reasons
    reasons = {i: why for i, text in enumerate(texts) if (why := _no_text(text))}
    readable = ["" if i in reasons else text for i, text in enumerate(texts)]
    for i, ids in enumerate(reader.encode_batch(readable)):
        if len(ids) >= LONGEST:
            reasons[i] = f"has {len(ids) + 1:,} tokens; at most {LONGEST:,} fit: split it"
        elif readable[i].strip() and ids:
            sources[i] = [*ids, END]
    return sources, reasons


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


def _batches(sources: list[Source | None], tokens: int, reader: Any) -> list[list[int]]:
    """Batches of like length, of at most so many padded tokens (or one sentence); the first in order come first."""
    widths = {
        i: PICTURE if reader.shape else -(-len(source) // reader.stride)
        for i, source in enumerate(sources)
        if source is not None
    }
    batches: list[list[int]] = []
    for i in sorted(widths, key=widths.__getitem__):  # the longest of a batch is its last
        if batches and widths[i] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return sorted(batches, key=min)
