"""Windows of running text: what a language model learns from, and what it is measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from .batch import END, PAD, Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Int64

    from .encoded_corpus import EncodedCorpus


class RandomWindows(Dataset[Batch]):
    """Batches of `rows` windows that begin anywhere in the text, at random; all of one shape.

    A window is `block` + 1 tokens in a row; each but the last is given, each but the first predicted (as nanoGPT
    does): its first token stands where <s> stands in a sentence. (seed, epoch, i) decides where the windows of batch i
    begin and nothing else does, so a run can be gone on with at any update. An epoch is as many tokens as the text
    has; some come twice in it, and some not at all.

    `world` processes share a step: what they draw together is what one would that draws as many windows.
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
        _check(encoded, block, rows)
        self.text = _TokenStream(encoded)
        if len(self.text) <= block:
            raise ValueError(
                f"the text has {len(self.text):,} tokens, and a window takes {block + 1:,}; give more text, or lower "
                "data.longest"
            )
        self.block, self.rows, self.rank, self.world = block, rows, rank, world
        self._chance = (seed, epoch)

    def __len__(self) -> int:
        return -(-len(self.text) // (self.block * self.rows * self.world))

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Batch:
        random = np.random.default_rng([*self._chance, range(len(self))[i]])
        starts = random.integers(0, len(self.text) - self.block, size=(self.world, self.rows))
        return self.text.windows(starts[self.rank], self.block)


class AdjacentWindows(Dataset[Batch]):
    """The text in windows side by side: every token but the first is predicted exactly once, over all ranks.

    Each is predicted from those before it in its window alone, as in training; so the mean loss over all of them is
    what nanoGPT estimates from windows at random.
    """

    def __init__(self, encoded: EncodedCorpus, *, block: int, rows: int, rank: int = 0, world: int = 1) -> None:
        _check(encoded, block, rows)
        self.text, self.block, self.rows = _TokenStream(encoded), block, rows
        self._starts = np.arange(0, len(self.text) - 1, block)[rank::world]

    def __len__(self) -> int:
        return -(-len(self._starts) // self.rows)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Batch:
        first = range(len(self))[i] * self.rows
        return self.text.windows(self._starts[first : first + self.rows], self.block)


class _TokenStream:
    """A corpus as one row of tokens: the targets of its pairs, one after the other, </s> and <s> between them."""

    def __init__(self, encoded: EncodedCorpus) -> None:
        self.encoded = encoded

    def __len__(self) -> int:
        return len(self.encoded.target) - 2  # without the first <s> and the last </s>

    def windows(self, starts: Int64[np.ndarray, "rows"], block: int) -> Batch:
        """Those that begin here, the text's last as long as it is; the source is one </s>, which nobody reads."""
        lengths = np.minimum(block + 1, len(self) - starts)
        places = np.arange(lengths.max())
        inside = places < lengths[:, None]  # [rows, places]
        target = np.full(inside.shape, PAD, np.int64)
        target[inside] = self.encoded.target[(starts[:, None] + places + 1)[inside]]
        source = torch.full((len(starts), 1), END)
        ones = torch.ones(len(starts), dtype=torch.int64)
        return Batch(source, ones, *(torch.from_numpy(x) for x in (target, lengths, starts)))


def _check(encoded: EncodedCorpus, block: int, rows: int) -> None:
    if block < 1 or rows < 1:
        raise ValueError(
            f"a batch holds at least one window of one token, got rows={rows}, block={block}; raise training.tokens or "
            "lower data.longest"
        )
    if len(encoded.target) < 4:
        raise ValueError("a language model needs a text of at least two tokens")
