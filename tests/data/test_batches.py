"""Encoded corpora and batches: every row once, the same order every time, limits held, few shapes."""

from __future__ import annotations

import os
import pickle
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from regard.data import BEGIN, END, PAD, Batch, Batches, EncodedCorpus, Pair, PairReader, TokenizerPair
from regard.data.batches import LADDER
from regard.data.corpora import phrasebook
from regard.data.encoding import CorpusInfo
from tests.support.paths import SHARED

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tokenizers")

DATA = SHARED / "data"
EXAMPLES = int(os.environ.get("REGARD_EXAMPLES", "60"))


@cache
def book() -> tuple[list[Pair], TokenizerPair]:
    pairs = list(phrasebook.pairs(600, seed=9))
    return pairs, TokenizerPair.train("bpe", 400, pairs)


@cache
def encoded() -> EncodedCorpus:
    return EncodedCorpus.build(*book())


def made_up(lengths: list[tuple[int, int]]) -> EncodedCorpus:
    """Pairs of these lengths, whose ids say which pair they are of; row n of the corpus is pair n, times ten."""
    source = [np.array([*[4 + i] * (s - 1), END]) for i, (s, _) in enumerate(lengths)]
    target = [np.array([BEGIN, *[4 + i] * (t - 2), END]) for i, (_, t) in enumerate(lengths)]
    arrays = {
        "source": np.concatenate([*source, []]).astype(np.int32),
        "target": np.concatenate([*target, []]).astype(np.int32),
        "source_starts": np.cumsum([0, *(s for s, _ in lengths)], dtype=np.int64)[:-1],
        "source_lengths": np.array([s for s, _ in lengths], np.int32),
        "target_lengths": np.array([t for _, t in lengths], np.int32),
        "rows": np.arange(len(lengths), dtype=np.int64) * 10,
    }
    return EncodedCorpus(arrays, CorpusInfo())


def same(one: Batch, two: Batch) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in vars(one))


# --- Encoded


def test_encoded_holds_every_pair_with_its_specials() -> None:
    pairs, tokenizers = book()
    assert len(encoded()) == len(pairs)
    assert encoded().about.dropped == 0
    for i in (0, 17, -1):
        source, target = encoded()[i]
        assert source.tolist() == [*tokenizers.source.encode(pairs[i].source), END]
        assert target.tolist() == [BEGIN, *tokenizers.target.encode(pairs[i].target), END]
    with pytest.raises(IndexError):
        encoded()[len(pairs)]


def test_long_pairs_are_dropped_and_counted() -> None:
    pairs, tokenizers = book()
    widths = np.maximum(encoded().source_lengths, encoded().target_lengths - 1)
    short = EncodedCorpus.build(pairs, tokenizers, longest=20)
    assert short.about.dropped == (widths > 20).sum() > 0
    assert short.rows.tolist() == np.flatnonzero(widths <= 20).tolist()
    assert max(short.source_lengths.max(), short.target_lengths.max() - 1) == 20


def test_encoded_on_disk_is_the_same_and_mapped(tmp_path: Path) -> None:
    pairs, tokenizers = book()
    stored = EncodedCorpus.build(PairReader(pairs), tokenizers, longest=30, folder=tmp_path / "corpus")
    held = EncodedCorpus.build(pairs, tokenizers, longest=30)
    assert isinstance(stored.source, np.memmap)
    assert stored.about.dropped == held.about.dropped
    for name in ("source", "target", "source_lengths", "target_lengths", "rows"):
        assert np.array_equal(getattr(stored, name), getattr(held, name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    with pytest.raises(ValueError, match="exists; load it"):
        EncodedCorpus.build(pairs, tokenizers, folder=tmp_path / "corpus")
    sent = pickle.dumps(stored)
    assert len(sent) < 1000, "a worker process is sent the folder's name, not the corpus"
    for copy in (pickle.loads(sent), pickle.loads(pickle.dumps(held))):
        assert len(copy) == len(held)
        assert same(next(iter(Batches(copy, tokens=500))), next(iter(Batches(held, tokens=500))))


def test_a_build_that_fails_leaves_nothing_that_loads(tmp_path: Path) -> None:
    pairs, tokenizers = book()
    bad = [*pairs[:5], Pair("", "x")]
    with pytest.raises(ValueError, match="source side is empty"):
        EncodedCorpus.build(PairReader(bad), tokenizers, folder=tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(ValueError, match=r"holds no encoded corpus \(encoded.json is missing\)"):
        EncodedCorpus.load(tmp_path / "corpus")
    whole = EncodedCorpus.build(pairs, tokenizers, folder=tmp_path / "corpus")
    assert len(whole) == len(pairs)
    target = tmp_path / "corpus" / "target.bin"
    target.write_bytes(target.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"target.bin should have [\d,]+ bytes; remove .*corpus and encode"):
        EncodedCorpus.load(tmp_path / "corpus")


# --- Batches

lengths = st.lists(st.tuples(st.integers(1, 70), st.integers(2, 70)), min_size=1, max_size=120)
plans = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "epoch": st.integers(0, 1000),
        "fixed_shapes": st.booleans(),
        "tokens": st.just(200),
    }
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(lengths, plans, st.integers(1, 4))
def test_every_row_exactly_once_over_all_ranks(
    lengths: list[tuple[int, int]], plan: dict[str, int], world: int
) -> None:
    corpus = made_up(lengths)
    ranks = [list(Batches(corpus, rank=rank, world=world, **plan)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1, "every rank has as many batches"
    other = {**plan, "seed": 1, "epoch": 7}
    assert len(Batches(corpus, world=world, **other)) == len(ranks[0]), "and so has every epoch"
    rows = torch.cat([batch.rows for batches in ranks for batch in batches])
    assert sorted(rows[rows >= 0].tolist()) == [10 * i for i in range(len(lengths))]


@settings(max_examples=EXAMPLES, deadline=None)
@given(lengths, plans, st.integers(1, 3))
def test_batches_hold_their_limits_and_their_pairs(
    lengths: list[tuple[int, int]], plan: dict[str, int], world: int
) -> None:
    for rank in range(world):
        for batch in Batches(made_up(lengths), rank=rank, world=world, **plan):
            rows, width = batch.source.shape
            assert rows * max(width, batch.target.shape[1] - 1) <= plan["tokens"]
            for i, row in enumerate((batch.rows // 10).tolist()):
                empty = row < 0
                s, t = (1, 1) if empty else lengths[row]
                source = [END] if empty else [*[4 + row] * (s - 1), END]
                target = [BEGIN] if empty else [BEGIN, *[4 + row] * (t - 2), END]
                assert (batch.source_lengths[i], batch.target_lengths[i]) == (s, t)
                assert batch.source[i].tolist() == source + [PAD] * (width - s)
                assert batch.target[i].tolist() == target + [PAD] * (batch.target.shape[1] - t)


@settings(max_examples=EXAMPLES, deadline=None)
@given(lengths, st.integers(0, 100), st.integers(1, 3))
def test_fixed_shapes_are_few(lengths: list[tuple[int, int]], seed: int, world: int) -> None:
    corpus = made_up(lengths)
    shapes = set()
    for epoch in (0, 1):
        for rank in range(world):
            for batch in Batches(corpus, tokens=200, seed=seed, epoch=epoch, rank=rank, world=world, fixed_shapes=True):
                shapes.add((*batch.source.shape, batch.target.shape[1]))
    rungs = {min(rung for rung in LADDER if rung >= max(s, t - 1)) for s, t in lengths}
    assert {width for _, width, _ in shapes} == rungs
    assert len(shapes) == len(rungs), "one shape for each width, in every epoch and on every rank"
    assert all(target == width + 1 for _, width, target in shapes)


@settings(max_examples=EXAMPLES, deadline=None)
@given(lengths, lengths, st.integers(1, 3))
def test_full_shapes_do_not_depend_on_the_pairs(
    first: list[tuple[int, int]], second: list[tuple[int, int]], world: int
) -> None:
    """The buffers of a stream have one shape for each width, all of them together."""
    rows: dict[int, set[int]] = {}
    for part in (first, second):
        ranks = [
            Batches(made_up(part), tokens=200, rank=rank, world=world, fixed_shapes="full") for rank in range(world)
        ]
        given_rows = torch.cat([batch.rows for batches in ranks for batch in batches])
        assert sorted(given_rows[given_rows >= 0].tolist()) == [10 * i for i in range(len(part))]
        for batch in (batch for batches in ranks for batch in batches):
            rows.setdefault(batch.source.shape[1], set()).add(batch.source.shape[0])
    assert rows == {width: {200 // width} for width in rows}


def test_empty_rows_are_few() -> None:
    """Rows are spread evenly over the batches of a width, so less than one row a batch is empty."""
    batches = Batches(encoded(), tokens=300, fixed_shapes=True)
    empty = sum(int((batch.rows < 0).sum()) for batch in batches)
    assert empty < len(batches)


def test_little_is_padding() -> None:
    real = padded = 0
    for batch in Batches(encoded(), tokens=400):
        real += int(batch.target_lengths.sum())
        padded += batch.target.numel()
    assert real / padded > 0.85


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def rows(**plan: int) -> list[list[int]]:
        return [batch.rows.tolist() for batch in Batches(encoded(), tokens=400, **plan)]

    assert rows(seed=1, epoch=2) == rows(seed=1, epoch=2)
    assert rows(seed=1, epoch=2) != rows(seed=1, epoch=3)
    assert rows(seed=1, epoch=2) != rows(seed=2, epoch=2)
    one, two = ({frozenset(batch) for batch in rows(seed=seed)} for seed in (1, 2))
    assert len(one & two) < len(one) / 4, "other epochs put other pairs together, but for the rare long ones"
    widths = [batch.source.shape[1] for batch in Batches(encoded(), tokens=400)]
    assert widths != sorted(widths), "short and long batches come mixed"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_gives_the_same_batches(workers: int) -> None:
    batches = Batches(encoded(), tokens=800, seed=4)
    loader = DataLoader(batches, batch_size=None, num_workers=workers)
    assert len(loader) == len(batches)
    assert all(same(one, two) for one, two in zip(loader, batches, strict=True))


def test_bad_requests() -> None:
    corpus = made_up([(5, 5), (30, 12)])
    with pytest.raises(ValueError, match="at least one token, got tokens=0"):
        Batches(corpus, tokens=0)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        Batches(corpus, tokens=100, rank=2, world=2)
    with pytest.raises(ValueError, match="row 10 takes 30 tokens, tokens=20"):
        Batches(corpus, tokens=20)
    with pytest.raises(IndexError):
        Batches(corpus, tokens=30)[2]


@pytest.mark.skipif(
    not (DATA / "multi30k").exists(), reason="needs ../shared/data/multi30k, which is not in the repository"
)
def test_a_real_corpus_comes_back() -> None:
    pairs = list(PairReader(DATA / "multi30k" / "val.lc.norm.tok.en-de-fr.tsv.xz", columns=(0, 2)))
    tokenizers = TokenizerPair.train("bpe", 2000, pairs)
    corpus = EncodedCorpus.build(pairs, tokenizers)
    back = [tokenizers.target.decode(corpus[i][1].tolist()) for i in range(len(pairs))]
    assert back == [pair.target for pair in pairs]
    batches = Batches(corpus, tokens=2048)
    assert sum(len(batch.rows) for batch in batches) == len(pairs)
