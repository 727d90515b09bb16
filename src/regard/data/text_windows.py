"""Windows of running text: what a language model learns from, and what it is measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from ..noun_count import count_of
from .batch import END, PAD, Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Int64

    from .encoded_corpus import EncodedCorpus


class _Windows(Dataset[Batch]):
    """Windows of a corpus as one stream of tokens: the targets of its pairs, with </s> and <s> between them."""

    def __init__(self, encoded: EncodedCorpus, block: int, rows: int) -> None:
        if block < 1 or rows < 1:
            raise ValueError(
                f"a batch holds at least one window of one token, got rows={rows}, block={block}; raise "
                "training.tokens or lower data.longest"
            )
        if len(encoded.target) < 4:
            raise ValueError("a language model needs a text of at least two tokens")
        self.encoded, self.block, self.rows = encoded, block, rows
        self.tokens = len(encoded.target) - 2  # without the first <s> and the last </s>

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def _batch(self, starts: Int64[np.ndarray, "rows"]) -> Batch:
        """The windows that begin here; one at the end of the text is shorter. The source is one unused </s>."""
        lengths = np.minimum(self.block + 1, self.tokens - starts)
        places = np.arange(lengths.max())
        inside = places < lengths[:, None]  # [rows, places]
        target = np.full(inside.shape, PAD, np.int64)
        target[inside] = self.encoded.target[(starts[:, None] + places + 1)[inside]]
        source = torch.full((len(starts), 1), END)
        ones = torch.ones(len(starts), dtype=torch.int64)
        return Batch(source, ones, *(torch.from_numpy(x) for x in (target, lengths, starts)))


class RandomWindows(_Windows):
    """Batches of `rows` windows that begin anywhere in the text, at random; all of one shape.

    A window is `block` + 1 consecutive tokens; each but the last is an input, each but the first a prediction (as in
    nanoGPT): its first token takes the place of <s>. Only (seed, epoch, i) decides where the windows of batch i begin,
    so that a run can be resumed at any update. An epoch has as many tokens as the text; some occur in it twice, some
    not at all.

    `world` processes share a step: together they draw what one process with as many windows draws.
    """

    def __init__(
        self,
        encoded: EncodedCorpus,
        *,
        block: int,
        rows: int,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(encoded, block, rows)
        if self.tokens <= block:
            raise ValueError(
                f"the text has {count_of(self.tokens, 'token')}, and a window takes {block + 1:,}; give more text, or "
                "lower data.longest"
            )
        self.rank, self.world, self._seeds = rank, world, (seed, epoch)

    def __len__(self) -> int:
        return -(-self.tokens // (self.block * self.rows * self.world))

    def __getitem__(self, i: int) -> Batch:
        random = np.random.default_rng([*self._seeds, range(len(self))[i]])
        starts = random.integers(0, self.tokens - self.block, size=(self.world, self.rows))
        return self._batch(starts[self.rank])


class AdjacentWindows(_Windows):
    """The text in adjacent windows: every token but the first is predicted exactly once, over all ranks.

    Each is predicted from the tokens before it in its window, as in training; so the mean loss over all of them is what
    nanoGPT estimates from random windows.
    """

    def __init__(self, encoded: EncodedCorpus, *, block: int, rows: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(encoded, block, rows)
        self._starts = np.arange(0, self.tokens - 1, block)[rank::world]

    def __len__(self) -> int:
        return -(-len(self._starts) // self.rows)

    def __getitem__(self, i: int) -> Batch:
        first = range(len(self))[i] * self.rows
        return self._batch(self._starts[first : first + self.rows])
