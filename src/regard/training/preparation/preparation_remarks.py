"""What is said about a split that was prepared: its size, and what was left out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...data.batch import END, UNKNOWN
from ...data.label_set import FIRST, quoted
from ...data.pair_reader import skipped_rows
from ...data.tokenizer import Tokenizer
from ...noun_count import count_of
from ..recipe.data_section import FilesData, StreamData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...data import EncodedCorpus, TokenizerPair
    from ...data.preparation.split_preparation import PartReport
    from ..recipe.data_section import Data
    from ..recipe.recipe import Recipe
    from ..tasks.task import Task


UNKNOWN_SHARE = 0.01
"""Of the tokens of a side; where more are <unk>, it is said."""
BLOCK = 1 << 22
"""Tokens that are counted at a time: a corpus may be larger than the memory."""


def longest_side(data: Data) -> int | None:
    """`data.longest`; None for running text, which is cut into windows later."""
    return None if data.kind in ("text", "phrases") else data.longest


def split_remarks(
    task: Task, name: str, encoded: EncodedCorpus, reports: list[PartReport], every: int
) -> Iterator[str]:
    """How large a split is and what was left out of it; then an error where nothing is left.

    `every` is data.hold_out of a validation set that is held out, else 0.
    """
    data = task.recipe.data
    unreadable, longest = encoded.about.unreadable, longest_side(data)
    skipped = sum(report.reasons.total() for report in reports) + len(unreadable)
    left_out = (
        f"; {count_of(skipped, 'bad row')} skipped, "
        f"{encoded.about.dropped:,} longer than {_length(task, longest)} left out"
    )
    yield f"{name}: {task.amount(encoded)}{'' if longest is None else left_out}"
    for problem in unreadable[:5]:
        yield f"  {problem}"
    for report in reports:
        if report.reasons:
            yield f"  {skipped_rows(report.reasons)}; the first of each kind:"
            for place in report.first.values():
                yield f"  {place}"
    if len(encoded):
        return
    if every and not encoded.about.dropped + len(unreadable):
        raise ValueError(
            f"data.hold_out = {every} holds out one row of each {every} to validate on, and there are too few "
            "rows for one: lower it, or name a file in data.valid"
        )
    raise ValueError(
        f"{split_name(data, name)} holds no usable rows: {count_of(skipped, 'bad row')} skipped, "
        f"and {count_of(encoded.about.dropped, 'row')} longer than data.longest = {_length(task, longest)}"
        + (f"; the first: {unreadable[0]}" if unreadable else "")
    )


def _length(task: Task, longest: int | None) -> str:
    """`data.longest` with its unit; of sounds both sides count, and a label or a spelling is always the shorter one."""
    count = longest or 0
    return f"{count_of(count, 'frame')} of 10 ms" if task.recipe.source.kind == "sound" else count_of(count, "token")


def rare_label_remarks(data: Data, names: list[str], encoded: EncodedCorpus) -> Iterator[str]:
    """Labels with a single row: often an error, perhaps the header of the file."""
    rows = np.bincount(encoded.target, minlength=FIRST + len(names))[FIRST:]
    rare = [quoted(names[n]) for n in np.flatnonzero(rows == 1)]
    if not rare:
        return
    named = ", ".join(rare[:5]) + (f" and {len(rare) - 5:,} more" if len(rare) > 5 else "")
    message = f"label {named} has one row" if len(rare) == 1 else f"labels {named} have one row each"
    if isinstance(data, FilesData) and isinstance(data.columns[0], int):
        message += '; if the first line is a header, name the columns: data.columns = ["text", "label"], say'
    yield f"  {message}"


def unknown_token_remarks(
    recipe: Recipe, tokenizers: TokenizerPair, split: str, encoded: EncodedCorpus
) -> Iterator[str]:
    """How many tokens of a side are <unk>, where these are more than `UNKNOWN_SHARE`, and what to do about it."""
    sides = {"source": (tokenizers.source, encoded.source), "target": (tokenizers.target, encoded.target)}
    advice = "a larger tokenizer.size has more words, and the kinds bpe and unigram split unknown ones into pieces"
    if recipe.training.init and recipe.training.init_vocabulary == "keep":
        advice = (
            'the vocabulary is that of training.init; training.init_vocabulary = "extend" adds what it lacks '
            "(docs/training.md, Start from another model)"
        )
    elif recipe.tokenizer.kind != "word":
        advice = "they are of letters that the rows which the vocabulary was learned from do not have"
    for side, (tokenizer, tokens) in sides.items():
        if not isinstance(tokenizer, Tokenizer):
            continue
        unknown = words = 0
        for begin in range(0, len(tokens), BLOCK):
            block = tokens[begin : begin + BLOCK]
            unknown += int(np.count_nonzero(block == UNKNOWN))
            words += int(np.count_nonzero(block > END))
        if unknown > UNKNOWN_SHARE * words:
            yield f"  {split}: {unknown / words:.1%} of the {side} tokens are <unk>: {advice}"


def split_name(data: Data, split: str) -> str:
    """A split and its files, as the recipe names them."""
    if split == "valid" and isinstance(data, FilesData) and data.hold_out:
        return f"what data.hold_out = {data.hold_out} holds out of data.train"
    if split == "valid" and isinstance(data, StreamData) and not data.valid:
        return f"data.train (its first {count_of(data.valid_pairs, 'pair')}, by data.valid_pairs)"
    files = getattr(data, split, None)
    if not isinstance(files, list):
        return f"data.{split}"
    names = [" and ".join([file] if isinstance(file, str) else file) for file in files]
    return f"data.{split} ({', '.join(names)})"
