"""Batches of pairs as tensors, the batches of an epoch, and windows of a running text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from ..special_tokens import BEGIN, END, PAD
from ..wording import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Int, Int64, Shaped
    from torch import Tensor

    from .encoding import EncodedCorpus


@dataclass
class Batch:
    """`source` ends in </s>; `target` begins with <s> and ends in </s>; both are padded with <pad> on the right.

    Where the source is no text, `source` holds samples of sound [B, N], padded with silence, or pictures [B, H, W, 3].
    `rows` says which row of the corpus each sentence is. A row that only fills the batch up to a fixed shape has
    rows = −1, source length 1 and target length 1 (<s> alone, so it predicts nothing and adds nothing to a loss).
    """

    source: Shaped[Tensor, "batch *source"]
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]
    rows: Int[Tensor, "batch"]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(getattr(self, each.name).to(device) for each in fields(self)))


# The widths of `fixed_shapes`: padding costs at most 7 tokens where most sentences are, a third where few are.
LADDER = [*range(8, 65, 8), 80, 96, 128, 160, 192, 256, 384, 512, *(2**n for n in range(10, 31))]
EMPTY = -1  # the row of a pair that only fills up a batch


class BatchSlice(NamedTuple):
    """What the ranks do at one time: the pairs begin ≤ i < end in the order of the epoch, dealt out in turn."""

    begin: int
    end: int
    rows: int  # of each rank's batch; 0 where it has as many as it is dealt
    width: int  # of the tensors; 0 where the longest pair decides


class Batches(Dataset[Batch]):
    """The batches of one epoch, for one of `world` processes.

    Every pair comes exactly once per epoch over all ranks. The width of a pair is the number of tokens that the encoder
    reads or the decoder predicts, whichever is larger (`EncodedCorpus.widths`). A batch holds at most `tokens` tokens,
    padding included.

    (seed, epoch) decides the order and nothing else does. All epochs and ranks have equally many batches; those of one
    step hold pairs of like width over the ranks, and a rank for which no pair is left gets a batch of one empty row.

    With `fixed_shapes`, widths are rounded up to the next W of `LADDER` and all batches of one W have the same number
    of rows B, filled with empty ones (see `Batch`), so that few shapes occur: source [B, W] (sound: [B, W · stride];
    pictures have one shape) and target [B, W + 1]. The pairs of each width are spread evenly, so that few rows are
    empty. With fixed_shapes="full", B is `tokens // W` instead, whatever the pairs: the buffers of a stream then have
    the same shapes.

    It is a map-style dataset: `DataLoader(batches, batch_size=None, num_workers=n)` keeps the order. It splits over
    ranks by itself, so no DistributedSampler may split it again.
    """

    def __init__(
        self,
        encoded: EncodedCorpus,
        *,
        tokens: int,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        fixed_shapes: bool | Literal["full"] = False,
    ) -> None:
        if tokens < 1:
            raise ValueError(f"a batch holds at least one token, got tokens={tokens}")
        if not 0 <= rank < world:
            raise ValueError(f"ranks go from 0 to world − 1, got rank {rank} of {world}")
        self.encoded, self.rank, self.world = encoded, rank, world
        random = np.random.default_rng([seed, epoch])
        width = encoded.widths
        if fixed_shapes:
            width = np.array(LADDER)[np.searchsorted(LADDER, width)]
        shuffled = random.permutation(len(encoded))
        self._order = shuffled[np.argsort(width[shuffled], kind="stable")]  # within a width, still shuffled
        width = width[self._order]
        if len(width) and width[-1] > tokens:
            long = encoded.rows[self._order[-1]]
            raise ValueError(
                f"row {long} takes {count_of(int(width[-1]), 'token')}, tokens={tokens}; raise it or drop such rows "
                "(longest=)"
            )
        most = tokens // width  # rows of a batch this wide
        steps = (
            _fixed_width_steps(width, most, world, full=fixed_shapes == "full") if fixed_shapes else _cut(most, world)
        )
        self._steps = [steps[i] for i in random.permutation(len(steps))]

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Batch:
        step = self._steps[i]
        pairs = self._order[step.begin : step.end][self.rank :: self.world]
        rows = np.full(step.rows or max(len(pairs), 1), EMPTY, np.int64)
        rows[: len(pairs)] = pairs
        return collate(self.encoded, rows, step.width)


def collate(encoded: EncodedCorpus, pairs: Int64[np.ndarray, "batch"], width: int = 0) -> Batch:
    """These pairs (by their index in `encoded`; EMPTY for none) as tensors, `width` wide or as wide as need be."""
    empty = pairs == EMPTY
    source_lengths = np.where(empty, 1, encoded.source_lengths[pairs])
    target_lengths = np.where(empty, 1, encoded.target_lengths[pairs])
    source: np.ndarray[Any, Any]
    if encoded.about.shape is not None:  # pictures, all alike
        every = encoded.source.reshape(-1, *encoded.about.shape)
        source = every[np.where(empty, 0, encoded.source_starts[pairs] // every[0].size)]
        source_lengths = np.where(empty, 1, every[0].size)
    else:
        source = _pad(encoded.source, encoded.source_starts[pairs], source_lengths, width * encoded.about.stride)
        source[empty, 0] = END if source.dtype == np.int64 else 0
    target = _pad(encoded.target, encoded.target_starts[pairs], target_lengths, width + 1 if width else 0)
    target[empty, 0] = BEGIN
    rows = np.where(empty, EMPTY, encoded.rows[pairs])
    arrays = (source, source_lengths, target, target_lengths, rows)
    return Batch(*(torch.from_numpy(array) for array in arrays))


def _pad(
    flat: Shaped[np.ndarray, "tokens"],
    starts: Int64[np.ndarray, "batch"],
    lengths: Int64[np.ndarray, "batch"],
    width: int,
) -> Shaped[np.ndarray, "batch width"]:
    """Ids as PyTorch wants them, int64; samples as they are."""
    # At least two places: a batch of empty rows alone still has a step to compute and parts to give no gradient to.
    places = np.arange(width or max(int(lengths.max()), 2))
    real = places < lengths[:, None]  # [batch, width]
    padded = np.zeros(real.shape, np.int64 if flat.dtype == np.int32 else flat.dtype)  # <pad> is 0, silence too
    padded[real] = flat[(starts[:, None] + places)[real]]
    return padded


def _cut(most: Int64[np.ndarray, "pairs"], world: int) -> list[BatchSlice]:
    """As many pairs to a step as fit; `most` falls, as the pairs get wider."""
    steps, begin, fits = [], 0, (most * world).tolist()
    while begin < len(fits):
        # The widest pair, the last, decides how many fit: the largest end with end − begin ≤ fits[end − 1].
        low, high = begin + 1, min(begin + fits[begin], len(fits))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle - begin <= fits[middle - 1] else (low, middle - 1)
        steps.append(BatchSlice(begin, low, 0, 0))
        begin = low
    return steps


def _fixed_width_steps(
    width: Int64[np.ndarray, "pairs"], most: Int64[np.ndarray, "pairs"], world: int, *, full: bool
) -> list[BatchSlice]:
    """The pairs of each width over as few steps as can be; evenly, or with `full` as many in each as fit."""
    steps = []
    for wide in np.unique(width).tolist():
        begin, end = np.searchsorted(width, [wide, wide + 1]).tolist()
        count = -(-(end - begin) // (int(most[begin]) * world))
        rows = int(most[begin]) if full else -(-(end - begin) // (count * world))
        steps += [BatchSlice(i, min(i + rows * world, end), rows, wide) for i in range(begin, end, rows * world)]
    return steps


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
