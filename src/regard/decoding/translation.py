"""Batches of sources for decoding: texts, or files of pictures and sounds, as arrays of similar length."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ..layers.kernels.packed_products import packed_weights
from ..models.encoder_decoder import EncoderDecoder
from ..special_tokens import END, PAD, UNKNOWN
from .beam import Hypothesis, search
from .ensemble import Ensemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Unpack

    from jaxtyping import Float
    from torch import Tensor

    from ..data.tokenizer_pair import TokenizerPair
    from ..layers.kernels.packed_products import Copies
    from .beam import SearchSettings

    Source = list[int] | np.ndarray[Any, Any]
    """Ids that end in </s>; or samples of a sound, or a picture's pixels."""

LONGEST = 2048  # tokens of a sentence; longer ones are refused
PICTURE = 64  # tokens that a picture counts for


def stacked(sources: list[Source]) -> tuple[Tensor, Tensor]:
    """Sources as one tensor, padded with <pad> or silence, and their lengths; pictures have one shape already."""
    if isinstance(sources[0], np.ndarray) and sources[0].ndim > 1:
        return torch.from_numpy(np.stack(sources)), torch.full((len(sources),), sources[0].size)
    lengths = torch.tensor([len(source) for source in sources])
    flat = torch.from_numpy(np.concatenate([np.asarray(source) for source in sources]))
    padded = torch.full((len(sources), int(lengths.max())), PAD, dtype=flat.dtype)
    padded[torch.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded, lengths


def read(reader: Any, texts: list[str]) -> tuple[list[Source | None], dict[int, str]]:
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
    reasons = {i: why for i, text in enumerate(texts) if (why := no_text(text))}
    readable = ["" if i in reasons else text for i, text in enumerate(texts)]
    for i, ids in enumerate(reader.encode_batch(readable)):
        if len(ids) >= LONGEST:
            reasons[i] = f"has {len(ids) + 1:,} tokens; at most {LONGEST:,} fit: split it"
        elif readable[i].strip() and ids:
            sources[i] = [*ids, END]
    return sources, reasons


def windows(
    reader: Any,
    texts: Iterable[str],
    window: int,
    refused: Callable[[int, str], None] | None,
    *,
    noun: str,
    empty: str = "",
) -> Iterator[tuple[list[str], list[Source | None]]]:
    """The sources, `window` of them at a time, as they are and as numbers.

    One that cannot be read is an error, or is passed to `refused` by its number (from 1) with the reason. So is an
    empty one, where `empty` is a reason.
    """
    texts, before = iter(texts), 0
    while names := list(islice(texts, window)):
        sources, reasons = read(reader, names)
        if empty:
            reasons = {**{i: empty for i, source in enumerate(sources) if source is None}, **reasons}
        for i, why in sorted(reasons.items()):
            if refused is None:
                raise ValueError(why if reader.kind != "text" else f"{noun} {before + i + 1} {why}")
            refused(before + i + 1, why)
        before += len(names)
        yield names, sources


def no_text(text: str) -> str | None:
    """Why this is not text: on a command line, bytes that are not UTF-8 become lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"is not UTF-8: character {error.start + 1} is {text[error.start]!r}"
    return None


def batches(sources: list[Source | None], tokens: int, reader: Any) -> list[list[int]]:
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


ON_CPU, ON_GPU = 2048, 16384  # source tokens of a batch


@dataclass
class Translation:
    """A source and its translations, best first."""

    source: str
    source_tokens: list[int]  # with </s>, which the encoder reads too; empty where the source is no text
    texts: list[str]
    hypotheses: list[Hypothesis]
    tokenizers: TokenizerPair

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def tokens(self) -> list[int]:
        """Of the best, with </s>: one for each row of `weights`."""
        return [*self.hypotheses[0].tokens, END]

    @property
    def pieces(self) -> list[str]:
        """Of the best, with </s>; a copied word as the source has it."""
        return self.target_pieces(self.tokens)

    @property
    def source_pieces(self) -> list[str]:
        return self._pieces(self.tokenizers.source, self.source_tokens)

    def target_pieces(self, tokens: list[int]) -> list[str]:
        """Pieces of the target vocabulary; a word that is copied as the source has it."""
        return self._pieces(self.tokenizers.target, tokens)

    def decode(self, tokens: list[int]) -> str:
        """The text of target tokens; a word that is copied as the source has it."""
        return _text(self.tokenizers.target, tokens, self.tokenizers.words_to_copy(self.source))

    def _pieces(self, tokenizer: Any, tokens: list[int]) -> list[str]:
        copied = self.tokenizers.words_to_copy(self.source)
        pieces: list[str] = tokenizer.pieces(tokens, copied) if copied else tokenizer.pieces(tokens)
        return pieces

    @property
    def generation(self) -> Float[Tensor, "target"] | None:
        """p_gen of each token of the best, of a decoder that copies; with `weights`."""
        return self.hypotheses[0].generation

    @property
    def weights(self) -> Float[Tensor, "maps target places"] | None:
        return self.hypotheses[0].weights


class Engine(Protocol):
    """Anything that can search: a model of regard, or its copy for another library."""

    def __call__(self, sources: list[Any], **how: Unpack[SearchSettings]) -> list[list[Hypothesis]]:
        """For each source, its best hypotheses; a text is ids that end in </s>."""


@dataclass
class ModelEngine:
    """The engine that runs a model of regard, on its device; it holds packed copies of the weights for all searches."""

    model: EncoderDecoder | Ensemble
    packed: Copies = field(default_factory=dict, repr=False)

    def __call__(self, sources: list[Source], **how: Unpack[SearchSettings]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        padded, lengths = stacked(sources)
        training = self.model.training
        if training:  # asked first: all modules are told, which takes as long as two steps of a search
            self.model.eval()
        try:
            with torch.no_grad(), packed_weights(self.packed):
                annotations = self.model.encode(padded.to(device), lengths.to(device))
                return search(self.model, annotations, **how)
        finally:
            if training:
                self.model.train()


def translate(
    engine: EncoderDecoder | Ensemble | Engine,
    tokenizers: TokenizerPair,
    sentences: Iterable[str],
    *,
    prefix: Iterable[str] | None = None,
    tokens: int | None = None,
    window: int = 4096,
    refused: Callable[[int, str], None] | None = None,
    **how: Unpack[SearchSettings],
) -> Iterator[Translation]:
    """Translates sentences, in their order, reading no further ahead than `window` of them.

    Where the source is not text (`tokenizers.source.kind`), `sentences` are the names of pictures or sounds, and the
    results are captions or spellings.

    Within a window, sentences of like length share a batch of at most `tokens` source tokens, padding counted; unless
    given, as many as suit a CPU's caches, or fill a GPU. `how` are the keywords of `search`. An empty line becomes an
    empty line.

    `prefix` has, for each sentence, the text that its translation begins with: `itertools.repeat(x)` for one text.

    A sentence that is too long or not text, or a file that cannot be read, is an error; with `refused` that function is
    called with its number (from 1) and the reason, and it becomes an empty line.
    """
    own = engine if isinstance(engine, EncoderDecoder | Ensemble) else None
    run: Engine = engine if own is None else ModelEngine(own)
    if own is None and prefix is not None:
        raise ValueError("prefix is for the engine torch")
    tokens = batch_tokens(engine) if tokens is None else tokens
    prefixes = None if prefix is None else iter(prefix)
    if tokens < 1 or window < 1:
        raise ValueError(f"translate needs tokens ≥ 1 and window ≥ 1, got {tokens} and {window}")
    for texts, sources in windows(tokenizers.source, sentences, window, refused, noun="sentence"):

        def translation(
            i: int, several: list[Hypothesis], texts: list[str] = texts, sources: list[Source | None] = sources
        ) -> Translation:
            copied = tokenizers.words_to_copy(texts[i])
            decoded = [_text(tokenizers.target, hypothesis.tokens, copied) for hypothesis in several]
            source = sources[i]
            ids = source if isinstance(source, list) else [END] if tokenizers.source.kind == "text" else []
            return Translation(texts[i], ids, decoded, several, tokenizers)

        starts = None if prefixes is None else _starts(tokenizers, texts, sources, prefixes)
        results: dict[int, list[Hypothesis]] = {}
        written = 0
        for batch in batches(sources, tokens, tokenizers.source):
            ready = [source for i in batch if (source := sources[i]) is not None]
            if starts is not None:
                how["prefixes"] = [starts[i] for i in batch]
            results.update(zip(batch, run(ready, **how), strict=True))
            # Results are yielded as soon as they are next in order, not at the end of the window.
            while written < len(texts) and (written in results or sources[written] is None):
                yield translation(written, results.pop(written) if written in results else _empty_hypotheses())
                written += 1
        for i in range(written, len(texts)):  # only empty lines are left
            yield translation(i, _empty_hypotheses())


def batch_tokens(engine: EncoderDecoder | Ensemble | Engine) -> int:
    """The source tokens of a batch, padding counted, that suit the caches of a CPU or fill a GPU."""
    if isinstance(engine, EncoderDecoder | Ensemble) and next(engine.parameters()).is_cuda:
        return ON_GPU
    return ON_CPU


def _text(tokenizer: Any, tokens: list[int], copied: dict[int, str]) -> str:
    text: str = tokenizer.decode(tokens, copied) if copied else tokenizer.decode(tokens)
    return text


def _starts(
    tokenizers: TokenizerPair, texts: list[str], sources: list[Source | None], prefixes: Iterator[str]
) -> list[list[int]]:
    """The prefix of each sentence as tokens; none where the line is empty."""
    own = list(islice(prefixes, len(texts)))
    if len(own) < len(texts):
        raise ValueError("prefix needs one entry for each sentence; itertools.repeat(x) is the same for all")
    starts: list[list[int]] = tokenizers.target.encode_batch(own)
    for n, (source, prefix) in enumerate(zip(texts, own, strict=True)):
        if sources[n] is None:
            starts[n] = []
            continue
        if UNKNOWN in starts[n]:
            raise ValueError(f"{prefix!r} cannot be written: the target vocabulary lacks it, or a part of it")
        if absent := tokenizers.target.words_not_copied(prefix, tokenizers.words_to_copy(source)):
            raise ValueError(
                f"{prefix!r} cannot be written: {absent[0]!r} is not in the target vocabulary, and cannot be copied "
                f"from {source!r}"
            )
    return starts


def _empty_hypotheses() -> list[Hypothesis]:
    """The hypotheses of an empty line."""
    return [Hypothesis([], 0.0, 0.0)]
