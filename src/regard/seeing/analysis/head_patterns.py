"""Head patterns from the literature: scores, labels and p values of every head of a model.

    A head's score for a pattern is Σ_ij w_ij M_ij / n, the weight an average query gives to the keys the pattern names
    (Clark et al. 2019, "What does BERT look at?", section 3), averaged over texts.

    next, previous, self    j = i + 1, i − 1, i                               label above 0.5 (Clark)
    first                   j = 0: [CLS], or the attention sink               above 0.6 (Clark)
    sink                    the same of any model                             above 0.3 (Gu et al. 2024)
    delimiter, punctuation  [SEP]; "." and ","                                above 0.6 (Clark)
    broad                   entropy in nats                                   above 3.8 (Clark)
    positional              share of best keys at one offset                  at least 0.9 (Voita et al. 2019)
    confidence              mean of the largest weight of a row               no label (Voita et al. 2019)
    identical               the same token elsewhere                          above 0.5 (ours)
    other sentence          the same token in the other sentence of a pair    above 0.5 (ours)
    related                 another token there with a similar embedding     above 0.5 (ours)
    duplicate               the same token before                             above 0.5 (ours; score of TransformerLens)
    induction               the token after an earlier occurrence             above 0.5 (ours; score of TransformerLens)

Gu et al.: arXiv 2410.10781. Each layer takes one pass over queries and keys; nothing of size T × T is stored. Clark
et al. smooth weights before taking entropies to keep the logarithm finite; here 0·log 0 is 0 without smoothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..capture.call_inputs_and_output import evenly_spaced
from ..corpus import Sums
from ..result_table import ResultTable
from .equal_tokens import KINDS, PairSums, TokenPairs
from .layer_stack import entry_weights, layer_stack
from .pattern_p_values import ROWS, p_values, random_key_sums, visible_keys

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Stats, Weights
    from ..capture.recorded_calls import Seen
    from ..capture.tokenized_text import TokenizedText

THRESHOLDS = {
    "next": 0.5,
    "previous": 0.5,
    "self": 0.5,
    "first": 0.6,
    "sink": 0.3,
    "delimiter": 0.6,
    "punctuation": 0.6,
    "broad": 3.8,
    "positional": 0.9,
    "identical": 0.5,
    "other sentence": 0.5,
    "related": 0.5,
    "duplicate": 0.5,
    "induction": 0.5,
}
"""A head gets the label if its score is above this (for "positional": at least this)."""
PATTERNS = (*THRESHOLDS, "confidence")
SCORE, DRAW = "score", "draw"
"""Kinds of sums: of a pattern's score, [heads]; of the weights of its keys and of random keys, [heads, 1 + draws]."""


@dataclass(frozen=True, slots=True)
class HeadScores:
    """The scores of one head, and the p values of patterns that name keys."""

    layer: int
    head: int
    scores: dict[str, float]
    p: dict[str, float]

    @property
    def labels(self) -> list[str]:
        """The patterns whose threshold it passes, the clearest first. "first" implies "sink", which is left out."""
        labels = [name for name, least in THRESHOLDS.items() if self._passes(name, least)]
        if "first" in labels:
            labels.remove("sink")
        return sorted(labels, key=lambda name: -self.scores[name] / THRESHOLDS[name])

    def _passes(self, name: str, least: float) -> bool:
        score = self.scores.get(name, 0.0)
        return score >= least if name == "positional" else score > least


class Patterns:
    """Scores of every head, text by text: `patterns.add(seen, text)`, then `patterns.heads()`."""

    def __init__(self, seed: int = 0, rows: int | None = None, sums: Sums | None = None) -> None:
        """`rows`: estimate the patterns of equal tokens from this many queries, evenly spaced, instead of from all.

        A token of a long text may occur thousands of times, and a GPU computes every pair. `sums`: those of texts that
        were added before, of any part of a corpus.
        """
        self.rows, self.seed = rows, seed
        self.sums = Sums() if sums is None else sums

    def add(
        self, seen: Seen, text: TokenizedText, entry: int = 0, top: int = 1, number: int | None = None
    ) -> dict[str, Stats]:
        """Add the self-attention of one text, which the model read as this entry of the batch.

        `number` is the text's place in a corpus, by default the number of texts so far. The random keys of the p values
        depend on it, so that they are the same for any division of the corpus.

        Returns the statistics of each layer: entropies, the `top` keys of every row, what each key received, and the
        weights on the next, the previous and the same position.
        """
        square = [call for call in seen if call.kind == "self" and call.shape[-2] == call.shape[-1] >= len(text)]
        calls = layer_stack(square)
        if not calls:
            raise ValueError(
                f"no self-attention over {len(text)} tokens was seen, so there are no patterns to score: {seen!r}"
            )
        token_pairs, queries = TokenPairs(text), evenly_spaced(len(text), ROWS)
        pattern_keys = _pattern_keys(text, queries, token_pairs)
        stats_by_layer: dict[str, Stats] = {}
        generator = torch.Generator().manual_seed((self.seed << 32) + (self.texts if number is None else number))
        for call in calls:
            weights = entry_weights(call, entry).rows(slice(0, len(text)))
            _check_padding(call.name, weights)
            pairs = PairSums(token_pairs, weights.shape[0])
            # The statistics kernels of a GPU do not expose their blocks.
            pairwise = weights.energies.a.is_cuda or self.rows is not None
            stats = weights.stats(
                entropy=True,
                top=min(top, weights.shape[-1]),
                received=True,
                offsets=[1, -1, 0],
                also=[] if pairwise else [pairs],
            )
            if pairwise:
                pairs.add_pairwise(weights, None if self.rows is None else evenly_spaced(len(text), self.rows))
            # A module called as several layers (ALBERT) gets one name per call.
            layer = call.name if call.name not in stats_by_layer else f"{call.name}, again {len(stats_by_layer)}"
            depth = f"{len(stats_by_layer):06d}"  # names are sorted by it
            for name, score in _scores(stats, pairs, text).items():
                self.sums.add((SCORE, depth, layer, name), score)
            for name, draws in random_key_sums(weights, queries, pattern_keys, generator).items():
                self.sums.add((DRAW, depth, layer, name), draws)
            stats_by_layer[layer] = stats
            call.forget()
        return stats_by_layer

    def _names(self, kind: str, pattern: str) -> list[tuple[str, ...]]:
        """The names of a pattern's sums, one per layer, in the order of the layers."""
        return sorted(name for name in self.sums.names if name[0] == kind and name[-1] == pattern)

    @property
    def names(self) -> list[str]:
        """The modules' names, layer by layer."""
        return [name[2] for name in self._names(SCORE, "self")]

    @property
    def texts(self) -> int:
        return max((self.sums.count(name) for name in self._names(SCORE, "self")), default=0)

    def scores(self, pattern: str) -> Float[Tensor, "layers heads"]:
        """The mean over texts of one pattern's score, every head of every layer."""
        _check(pattern)
        names = self._names(SCORE, pattern)
        if not names:
            raise ValueError("no text was a pair of sentences" if self.texts else "no text was added yet")
        return torch.stack([self.sums.mean(name) for name in names]).float()

    def p(self, pattern: str) -> Float[Tensor, "layers heads"] | None:
        """The p values of the randomization test; None for patterns that do not name keys."""
        key = "first" if pattern == "sink" else pattern
        names = self._names(DRAW, key)
        return torch.stack([p_values(self.sums.sum(name)) for name in names]) if names else None

    def heads(self) -> list[HeadScores]:
        """All heads, ordered by layer, then head."""
        known = [name for name in PATTERNS if self._names(SCORE, name)]
        scores = {name: self.scores(name).tolist() for name in known}
        p_by_name = {name: p.tolist() for name in known if (p := self.p(name)) is not None}
        return [
            HeadScores(
                layer,
                head,
                {name: scores[name][layer][head] for name in known},
                {name: p_by_name[name][layer][head] for name in p_by_name},
            )
            for layer in range(len(self.names))
            for head in range(len(scores["self"][layer]))
        ]

    def strongest(self, pattern: str, count: int = 5) -> list[HeadScores]:
        """The heads that score highest on a pattern."""
        _check(pattern)
        return sorted(self.heads(), key=lambda head: -head.scores.get(pattern, 0.0))[:count]

    def table(self) -> ResultTable:
        """One row per head: its scores, its labels, and p of patterns that name keys."""
        heads, names = self.heads(), self.names
        columns: dict[str, list[object]] = {
            "layer": [head.layer for head in heads],
            "head": [head.head for head in heads],
            "module": [names[head.layer] for head in heads],
        }
        columns |= {name: [head.scores[name] for head in heads] for name in heads[0].scores}
        columns |= {f"p of {name}": [head.p[name] for head in heads] for name in heads[0].p}
        columns["labels"] = [" ".join(label.replace(" ", "_") for label in head.labels) for head in heads]
        return ResultTable(columns)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def sink_share(self) -> float:
        """The share of all heads whose mean weight on the first token is above 0.3 (Gu et al. 2024)."""
        return float((self.scores("sink") > THRESHOLDS["sink"]).float().mean())


def _check(pattern: str) -> None:
    if pattern not in PATTERNS:
        raise ValueError(f"no pattern is called {pattern!r}; there are {', '.join(PATTERNS)}")


def _scores(stats: Stats, pairs: PairSums, text: TokenizedText) -> dict[str, Float[Tensor, " heads"]]:
    n = len(text)
    assert stats.offsets is not None
    assert stats.received is not None
    assert stats.entropy is not None
    assert stats.top is not None
    near = stats.offsets.mean(-2).cpu()  # [heads, 3]
    received = stats.received[:, :n].cpu() / n
    scores = {
        "next": near[:, 0],
        "previous": near[:, 1],
        "self": near[:, 2],
        "first": received[:, 0],
        "sink": received[:, 0],
        "delimiter": received[:, text.delimiters].sum(-1),
        "punctuation": received[:, text.punctuation].sum(-1),
        "broad": stats.entropy.mean(-1).cpu(),
        "confidence": stats.top.values[..., 0].mean(-1).cpu(),
        "positional": _one_offset(stats.top.indices[..., 0].cpu()),
    }
    absent = {"other sentence": text.segments is None, "related": text.segments is None or text.vectors is None}
    for kind in KINDS:
        if not absent.get(kind, False):
            scores[kind] = pairs.total[kind] / n
    return {key: value.float() for key, value in scores.items()}


def _check_padding(name: str, weights: Weights) -> None:
    """Refuse a text that is padded on the left or whose padding is not masked: row i must be token i."""
    rows, keys = weights.shape[-2:]
    if rows == keys:
        return
    visible = visible_keys(weights, torch.tensor([0, rows - 1]))
    if not bool(visible[0, 0]) or bool(visible[:, rows:].any()):
        raise ValueError(
            f"{name} attended over {keys} positions, and the text's {rows} tokens are not the first of them, or can "
            "see those after them. Pad on the right and give the mask, or give the text alone"
        )


def _one_offset(best: Int[Tensor, "heads t"]) -> Float[Tensor, " heads"]:
    """The largest share of queries whose best key is at the same offset."""
    heads, length = best.shape
    offset = best - torch.arange(length) + length  # ≥ 1
    counts = torch.zeros(heads, int(offset.max()) + 1, dtype=torch.float32)  # bfloat16 cannot count past 256
    counts.scatter_add_(1, offset, torch.ones_like(offset, dtype=counts.dtype))
    return counts.amax(-1) / length


def _pattern_keys(
    text: TokenizedText, queries: Int[Tensor, " rows"], token_pairs: TokenPairs
) -> dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]]:
    """The keys of each pattern for these queries, as pairs (index into `queries`, key)."""
    n, rows = len(text), torch.arange(len(queries))
    pairs = {}
    for name, offset in (("next", 1), ("previous", -1), ("self", 0)):
        key = queries + offset
        inside = (key >= 0) & (key < n)
        pairs[name] = rows[inside], key[inside]
    pairs["first"] = rows, torch.zeros_like(rows)
    for name, columns in (("delimiter", text.delimiters), ("punctuation", text.punctuation)):
        key = columns.nonzero().flatten()
        pairs[name] = rows.repeat_interleave(len(key)), key.repeat(len(rows))
    return pairs | token_pairs.of(queries)
