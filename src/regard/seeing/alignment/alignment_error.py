"""Alignments: from soft weights between pieces to hard links between words, and how wrong the links are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float
    from torch import Tensor

Links = set[tuple[int, int]]  # (word of the source, word of the target), both from 0


def parse(text: str | None) -> Links:
    """Links written "0-0 1-2"."""
    links = set()
    for link in (text or "").split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise ValueError(f"{link!r} is no alignment link; links look like 0-0 1-2")
        links.add((int(source), int(target)))
    return links


def words(
    weights: Float[Tensor, "*maps target source"], target: Sequence[int], source: Sequence[int]
) -> Float[Tensor, "*maps target_words source_words"]:
    """Weights between pieces as weights between words; `target[t]` is the word of piece t, `source` likewise.

    What pieces of a word receive adds up, what they give is averaged (Clark et al. 2019): rows still sum to what they
    summed to. Pieces past the given ones (</s>) are left out.
    """
    rows, columns = torch.tensor(target), torch.tensor(source)
    to = torch.zeros(*weights.shape[:-2], len(target), int(columns.max()) + 1, dtype=weights.dtype)
    to.index_add_(-1, columns, weights[..., : len(target), : len(source)])
    whole = torch.zeros(*weights.shape[:-2], int(rows.max()) + 1, to.shape[-1], dtype=weights.dtype)
    whole.index_add_(-2, rows, to)
    return whole / torch.bincount(rows).clamp(min=1)[:, None]


def link(weights: Float[Tensor, "target source"]) -> Links:
    """Each target word to the source word it looks at most; one that looks at none is left alone."""
    best, where = weights.max(-1)
    return {(source, target) for target, source in enumerate(where.tolist()) if best[target] > 0}


def error(found: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links]) -> float:
    """The alignment error rate of a corpus (Och & Ney 2003), P ⊇ S:

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
    """
    hits = total = 0
    for a, s, p in zip(found, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        total += len(a) + len(s)
    if not total:
        raise ValueError("there is not one link, found or sure, so no error rate")
    return 1 - hits / total
