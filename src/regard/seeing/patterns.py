"""Head patterns from the literature: scores, labels and p values of every head of a model.

    A head's score for a pattern is Σ_ij w_ij M_ij / n, the weight an average query gives to the keys the pattern names
    (Clark et al. 2019, "What does BERT look at?", section 3), averaged over texts.

    next, previous, self    j = i + 1, i − 1, i                               label above 0.5 (Clark)
    first                   j = 0: [CLS], or the attention sink               above 0.6 (Clark)
    sink                    the same of any model                             above 0.3 (Gu et al. 2024)
    delimiter, punctuation  [SEP]; "." and ","                                above 0.6 (Clark)
    same word               the largest mean weight on one other key          above 0.5 (ours)
    broad                   entropy in nats                                   above 3.8 (Clark)
    positional              share of best keys at one offset                  at least 0.9 (Voita et al. 2019)
    confidence              mean of the largest weight of a row               no label (Voita et al. 2019)
    identical               the same token elsewhere                          above 0.5 (ours)
    other sentence          the same token in the other sentence of a pair    above 0.5 (ours)
    related                 another token there with a similar embedding     above 0.5 (ours)
    duplicate               the same token before                             above 0.5 (ours)
    induction               the token after an earlier occurrence             above 0.5 (ours)

The last two are averaged over the queries that have such a key, those whose token occurred before: on a random
sequence said twice they are the scores of Olsson et al. 2022, and 1 is reached. `repeated_sequence_scores` measures
them there, beside a control. A head has every label whose threshold it passes.

Gu et al.: arXiv 2410.10781. Each layer takes one pass over queries and keys; nothing of size T × T is stored. Clark
et al. smooth weights before taking entropies to keep the logarithm finite; here 0·log 0 is 0 without smoothing.

A randomization test gives p: on some queries of a text the pattern's keys are replaced by as many keys drawn uniformly
from those the query can see, `DRAWS` times; p = (1 + draws with at least the pattern's weight) / (1 + draws), never
below 1 / (1 + draws). q corrects it for the number of heads (Benjamini & Hochberg 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from ..attention.parts import span
from ..wording import count_of
from .corpus import Sums, benjamini_hochberg
from .habit import Habits, visible_keys
from .rollout_and_distances import entry_weights, evenly_spaced, layer_stack
from .terminal import ResultTable, Tabular, heatmap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from rich.console import RenderableType
    from torch import Tensor

    from ..attention.statistics import Block, Stats
    from ..attention.weights import Weights
    from .call import Call
    from .text_models import TokenizedText
    from .trace import Seen

DRAWS = 99
ROWS = 64
"""Queries of a text that are tested, evenly spaced."""


def random_key_sums(
    weights: Weights,
    queries: Int[Tensor, " rows"],
    patterns: dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]],
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "n draws_1"]]:
    """For each pattern the sum of its weights on these queries, then that of `DRAWS` random choices of as many keys.

    `weights` are [heads, T_q, T_k]; a pattern is a list of pairs (index into `queries`, key).
    """
    keys, visible = weights.shape[-1], visible_keys(weights, queries)
    count = visible.sum(-1)
    listed, begin = visible.nonzero()[:, 1], count.cumsum(0) - count  # the keys each row sees, row after row
    picks = []
    for row, key in patterns.values():
        inside = visible[row, key]
        row, key = row[inside], key[inside]
        which = (torch.rand(DRAWS, len(row), generator=generator) * count[row]).long().clamp_max(count[row] - 1)
        # The pattern's own keys first, then the draws: [1 + DRAWS, pairs], as indices into the flattened rows.
        picks.append(row * keys + torch.cat([key[None], listed[begin[row] + which]]))
    each = torch.tensor([at.shape[1] for at in picks]).repeat_interleave(1 + DRAWS)
    every, starts = (x.to(weights.device) for x in (torch.cat([at.flatten() for at in picks]), each.cumsum(0) - each))
    part, found = weights.rows(queries.tolist()), []
    at_once = max(1, GATHERED // (len(queries) * keys))
    for first in range(0, weights.shape[0], at_once):
        tile = part[first : first + at_once].tile(slice(None), slice(None))
        cells = tile.flatten(1).T.contiguous()  # heads side by side: one gather for all of them
        found.append(torch.nn.functional.embedding_bag(every, cells, starts, mode="sum").T.cpu())
    return dict(zip(patterns, torch.cat(found).unflatten(1, (len(picks), -1)).unbind(1), strict=True))


KINDS = ("identical", "duplicate", "induction", "other sentence", "related")
RELATED_COSINE = 0.5
"""The cosine of two tokens' embeddings above which they count as related. Our choice; the papers give no number."""
REPEATED = ("duplicate", "induction")
"""Patterns of queries whose token occurred before; their score is the mean over these."""
GATHERED = 1 << 24
"""Weights of the tested queries, of several heads, that are held at once."""
CHUNK = 1 << 20
"""Pairs, of all heads together, whose weights are computed at once."""
MASKED = 1 << 22
"""Queries × keys up to which the pairs of each kind are kept as a mask, for all layers; of more they are listed."""


class TokenPairs:
    """For each kind of pair, the keys that queries of a text are paired with.

    Positions are sorted by token, so that the matches of a query are one slice of the list. Only the pairs of the
    current block of rows are listed.
    """

    def __init__(self, text: TokenizedText) -> None:
        self.ids, self.segments = text.ids, text.segments
        self.vectors = None if text.vectors is None else torch.nn.functional.normalize(text.vectors.float(), dim=-1)
        self.length = len(text)
        _, kinds, counts = self.ids.unique(return_inverse=True, return_counts=True)
        self.order = kinds.argsort(stable=True)  # positions, equal tokens side by side
        stops = counts.cumsum(0)
        self.start, self.count = (stops - counts)[kinds], counts[kinds]
        self.repeats = self.length - len(counts)
        """Queries whose token occurred before."""
        self._masks: dict[tuple[int, ...], tuple[list[str], Float[Tensor, "cells kinds"]]] = {}

    def masks(self, queries: Int[Tensor, " rows"], width: int) -> tuple[list[str], Float[Tensor, "cells kinds"]]:
        """1 where a query and a key, row by row, are a pair of each kind; made once for all layers."""
        block = (width, *queries.tolist())
        if block not in self._masks:
            pairs = self.of(queries)
            masks = torch.zeros(len(queries) * width, len(pairs))
            for number, (row, key) in enumerate(pairs.values()):
                inside = key < width
                masks[row[inside] * width + key[inside], number] = 1
            self._masks[block] = [*pairs], masks
        return self._masks[block]

    def of(self, queries: Int[Tensor, " rows"]) -> dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]]:
        """For each kind the pairs (index into `queries`, key)."""
        queries = queries.cpu()
        counts = self.count[queries]
        row = torch.arange(len(queries)).repeat_interleave(counts)
        within = torch.arange(len(row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        key = self.order[self.start[queries].repeat_interleave(counts) + within]
        query = queries[row]
        other, before = key != query, key < query
        pairs = {
            "identical": (row[other], key[other]),
            "duplicate": (row[before], key[before]),
            # The key after an earlier occurrence.
            "induction": (row[before], key[before] + 1),
        }
        if self.segments is not None:
            side = self.segments
            across = (side[key] >= 0) & (side[query] >= 0) & (side[key] != side[query])
            pairs["other sentence"] = row[across], key[across]
            if self.vectors is not None:
                pairs["related"] = self._related(queries, side)
        return pairs

    def _related(self, queries: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """Different tokens of the other sentence with a similar embedding."""
        assert self.vectors is not None
        near = self.vectors[queries] @ self.vectors.T > RELATED_COSINE  # [rows, t]
        across = (side[queries, None] >= 0) & (side >= 0) & (side[queries, None] != side)
        row, key = (near & across & (self.ids[queries, None] != self.ids)).nonzero(as_tuple=True)
        return row, key


class PairSums:
    """Σ w_ij over the pairs of each kind, for each head: a statistic for `Weights.stats(also=…)`."""

    def __init__(self, pairs: TokenPairs, heads: int) -> None:
        self.pairs = pairs
        self.total: dict[str, Float[Tensor, " heads"]] = {kind: torch.zeros(heads) for kind in KINDS}

    def add(self, block: Block) -> None:
        n, rows, width = block.w.shape
        flat = block.w.reshape(n, rows * width)
        if self.pairs.length**2 <= MASKED:
            kinds, masks = self.pairs.masks(block.queries, width)
            sums = flat @ masks.to(flat)
            for kind, total in zip(kinds, sums.to("cpu", torch.float32).T, strict=True):
                self.total[kind][block.n] += total
            return
        for kind, (row, key) in self.pairs.of(block.queries).items():
            inside = key < width  # keys beyond are masked for all rows of the block
            at = (row[inside] * width + key[inside]).to(flat.device)
            self.total[kind][block.n] += flat[:, at].sum(-1).to("cpu", torch.float32)

    def add_pairwise(self, weights: Weights, queries: Int[Tensor, " rows"] | None = None) -> None:
        """The same from single weights, for a GPU, where the kernels of `Weights.stats` expose no blocks.

        With `queries`, an estimate from these: their sum, scaled to all queries.
        """
        sample = torch.arange(weights.shape[-2]) if queries is None else queries
        scale = weights.shape[-2] / len(sample)
        # Computing a pair takes two vectors of every head.
        pairs_per_query = float(self.pairs.count[sample].float().mean()) * weights.shape[0]
        for chunk in sample.split(max(1, int(CHUNK / pairs_per_query))):
            for kind, (row, key) in self.pairs.of(chunk).items():
                inside = key < weights.shape[-1]
                total = pair_weights(weights, chunk[row[inside]], key[inside]).sum(-1)
                self.total[kind] += scale * total.to("cpu", torch.float32)


@torch.no_grad()
def pair_weights(weights: Weights, i: Int[Tensor, " pairs"], j: Int[Tensor, " pairs"]) -> Float[Tensor, "n pairs"]:
    """w_ij of chosen pairs, for softmax over dot products: exp(q_i·k_j·scale, modified and masked, − lse_i)."""
    scores, normalize = weights.flat(), weights.normalize
    if scores.form.kernel != "dot" or normalize.kernel != "softmax":
        raise TypeError("weights of single pairs are computed for softmax over dot products only")
    device = scores.a.device
    entries, i, j = span(weights.entries, device), i.to(device), j.to(device)
    a, b = (x[entries][:, at].to(scores.precision) for x, at in ((scores.a, i), (scores.b, j)))
    e = ((a * b).sum(-1) * scores.form.scale)[..., None]  # [n, pairs, 1]: as a block of one column each
    e = scores.finished(e, entries, i, j[:, None], normalize.absent)
    return normalize.weigh_rows(e, weights.row_state().map(lambda x: x[:, i]), j)[..., 0]


THRESHOLDS = {
    "next": 0.5,
    "previous": 0.5,
    "self": 0.5,
    "first": 0.6,
    "sink": 0.3,
    "delimiter": 0.6,
    "punctuation": 0.6,
    "same word": 0.5,
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


class Patterns(Tabular):
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
            reason = "in no text a token was repeated" if pattern in REPEATED else "no text was a pair of sentences"
            raise ValueError(reason if self.texts else "no text was added yet")
        return torch.stack([self.sums.mean(name) for name in names]).float()

    def standard_error(self, pattern: str) -> Float[Tensor, "layers heads"]:
        """Of the mean over texts; NaN for one text."""
        self.scores(pattern)
        return torch.stack([self.sums.standard_error(name) for name in self._names(SCORE, pattern)]).float()

    def q(self, pattern: str) -> Float[Tensor, "layers heads"] | None:
        """The p values corrected for the number of heads (Benjamini–Hochberg): the false discovery rate."""
        p = self.p(pattern)
        return None if p is None else benjamini_hochberg(p)

    def p(self, pattern: str) -> Float[Tensor, "layers heads"] | None:
        """The p values of the randomization test; None for patterns that do not name keys."""
        _check(pattern)
        key = "first" if pattern == "sink" else pattern
        names = self._names(DRAW, key)
        if not names:
            return None
        sums = torch.stack([self.sums.sum(name) for name in names])  # [layers, heads, 1 + draws]
        return (1 + (sums[..., 1:] >= sums[..., :1]).sum(-1)) / sums.shape[-1]

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

    def __repr__(self) -> str:
        if not self.texts:
            return "Patterns of no text yet"
        lines = [f"Patterns of {len(self.heads())} heads over {count_of(self.texts, 'text')}; layer.head score"]
        for name in PATTERNS:
            best = [x for x in self.strongest(name, 4) if name in x.scores]
            if best:
                found = "  ".join(f"{x.layer}.{x.head} {x.scores[name]:.2f}" for x in best)
                lines.append(f"  {name:15} {found}" + (f"  p {best[0].p[name]:.2f}" if name in best[0].p else ""))
        return "\n".join(lines)

    def table(self) -> ResultTable:
        """One row per head: its scores with their standard errors over texts, its labels, p and q of named keys."""
        heads, names = self.heads(), self.names
        columns: dict[str, list[object]] = {
            "layer": [head.layer for head in heads],
            "head": [head.head for head in heads],
            "module": [names[head.layer] for head in heads],
        }
        columns |= {name: [head.scores[name] for head in heads] for name in heads[0].scores}
        if self.texts > 1:
            errors = {name: self.standard_error(name).flatten().tolist() for name in heads[0].scores}
            columns |= {f"standard error of {name}": error for name, error in errors.items()}
        columns |= {f"p of {name}": [head.p[name] for head in heads] for name in heads[0].p}
        corrected = {name: self.q(name) for name in heads[0].p}
        columns |= {f"q of {name}": q.flatten().tolist() for name, q in corrected.items() if q is not None}
        columns["labels"] = [" ".join(label.replace(" ", "_") for label in head.labels) for head in heads]
        return ResultTable(columns)

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
        "same word": _favourite(received, text),
        "broad": stats.entropy.mean(-1).cpu(),
        "confidence": stats.top.values[..., 0].mean(-1).cpu(),
        "positional": _one_offset(stats.top.indices[..., 0].cpu()),
    }
    repeats = pairs.pairs.repeats
    absent = {"other sentence": text.segments is None, "related": text.segments is None or text.vectors is None}
    absent |= dict.fromkeys(REPEATED, repeats == 0)
    for kind in KINDS:
        if not absent.get(kind, False):
            scores[kind] = pairs.total[kind] / (repeats if kind in REPEATED else n)
    return {key: value.float() for key, value in scores.items()}


def _favourite(received: Float[Tensor, "heads t"], text: TokenizedText) -> Float[Tensor, " heads"]:
    """The mean weight of a head's favourite word: not the first token, not [SEP], no punctuation."""
    words = ~(text.delimiters | text.punctuation)
    words[0] = False
    return received[:, words].amax(-1) if words.any() else torch.zeros(len(received))


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


MAX_TOKENS = 120
"""Tokens up to which a head is drawn in the terminal."""
LABELS = {
    "next": ("n", "cyan"),
    "previous": ("p", "green"),
    "self": ("s", "yellow"),
    "first": ("F", "blue"),
    "sink": ("f", "blue"),
    "delimiter": ("d", ""),
    "punctuation": (".", ""),
    "same word": ("w", "yellow"),
    "broad": ("b", "bright_black"),
    "positional": ("o", ""),
    "identical": ("=", "red"),
    "other sentence": ("≈", ""),
    "related": ("~", ""),
    "duplicate": ("u", "red"),
    "induction": ("i", "magenta"),
}
"""The letter and the colour of each label."""


class TokenLink(NamedTuple):
    """A query token, a key token, and what the head gives this key, or this distance, from other words (habit.py)."""

    surplus: float
    weight: float
    habit: float
    layer: int
    head: int
    query: int
    key: int


def label_table(patterns: Patterns) -> Table:
    """Layers × heads, with a letter for each label of a head; · for none."""
    heads = patterns.heads()
    width = max(head.head for head in heads) + 1
    table = Table("layer", *(str(n) for n in range(width)), box=None, title="what each head does", padding=(0, 1))
    for layer, _ in enumerate(patterns.names):
        row = [head for head in heads if head.layer == layer]
        table.add_row(str(layer), *(_letters(head) for head in row))
    used = dict.fromkeys(label for head in heads for label in head.labels)
    table.caption = "  ".join(f"{LABELS[name][0]} {name}" for name in THRESHOLDS if name in used) or "no label"
    table.caption += "\none cell a head: what it does to most words here, by its two clearest habits; · for none"
    return table


def _letters(head: HeadScores) -> Text:
    return Text.assemble(*(LABELS[name] for name in head.labels[:2])) if head.labels else Text("·", style="dim")


def best_heads_table(patterns: Patterns, count: int = 3) -> Table:
    """For each pattern the heads with the highest scores, p of the first, and q: p corrected for all heads."""
    table = Table("pattern", "label above", "heads that score highest (layer.head score)", "p", "q", box=None)
    for name in PATTERNS:
        heads = patterns.strongest(name, count)
        if not heads or name not in heads[0].scores or name == "sink":
            continue
        scores = "  ".join(f"{x.layer}.{x.head} {x.scores[name]:.2f}" for x in heads)
        q, first = patterns.q(name), heads[0]
        chance = ("", "") if q is None else (f"{first.p[name]:.2f}", f"{float(q[first.layer, first.head]):.2f}")
        table.add_row(name, f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else "", scores, *chance)
    return table


def strongest_links(seen: Seen, count: int = 12, entry: int = 0) -> list[TokenLink]:
    """The weights that stand out most from what their head does from other words, one link for each pair of tokens.

    Each head and query contributes its best key. In self-attention the first token and [SEP] are left out on both
    sides.
    """
    links: dict[tuple[str, int, int], TokenLink] = {}
    for layer, call in enumerate(seen):
        own = call.kind == "self"
        left = torch.tensor([own and _ends(seen, at, call.shape[-1]) for at in range(call.shape[-1])])
        for i, w, habit in Habits.of(entry_weights(call, entry), distances=own).blocks():
            out = left | left[i, None] if own else left
            surplus, keys = (w - habit).masked_fill(out, 0).max(-1)  # [heads, rows]
            largest = surplus.flatten().topk(min(count, surplus.numel()))
            for value, at in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
                head, row = divmod(at, len(i))
                query, key = int(i[row]), int(keys[head, row])
                weight = float(w[head, row, key])
                link = TokenLink(value, weight, weight - value, layer, head, query, key)
                pair = call.kind, query, key
                if value > 0 and (pair not in links or links[pair].surplus < value):
                    links[pair] = link
        call.forget()
    return sorted(links.values(), reverse=True)[:count]


def _ends(seen: Seen, at: int, length: int) -> bool:
    text = seen.text
    return at == 0 or (text is not None and len(text) == length and bool(text.delimiters[at]))


def link_table(seen: Seen, count: int = 12) -> Table:
    """The strongest links: query token, key token, weight, what other words give, and head."""
    titles = "looks at", "", "weight", "from any word here", "layer.head"
    table = Table(*titles, box=None, title="strongest links", caption=LINKS)
    for link in strongest_links(seen, count):
        rows, cols = row_and_column_tokens(seen, seen[link.layer])
        query = rows[link.query] if link.query < len(rows) else str(link.query)
        key = cols[link.key] if link.key < len(cols) else str(link.key)
        figures = f"{link.weight:.2f}", f"{link.habit:.2f}", f"{link.layer}.{link.head}"
        table.add_row(Text(query), Text(f"→ {key}"), *figures)
    return table


LINKS = (
    "“from any word here”: what the head gives this word, or this distance, from the others. Ranked by the difference."
)


def row_and_column_tokens(seen: Seen, call: Call) -> tuple[list[str], list[str]]:
    """The tokens of a call's rows and columns; a row of a decoder is labelled by the token it generates.

    Where each token attends to those before it, as in an LSTMN, the first token has no row and the last no column.
    """
    if seen.sides and call.kind == "cross":
        return seen.sides["target"], seen.sides["source"]
    if seen.sides and "decoder" in call.name:
        return seen.sides["target"], seen.sides["read"]
    tokens = seen.sides["source"] if seen.sides else (seen.tokens or [[]])[0]
    *_, queries, keys = call.shape
    if queries == keys == len(tokens) - 1:
        return tokens[1:], tokens[:-1]
    return tokens, tokens


def check_head(seen: Seen, layer: int, head: int) -> None:
    """Refuse a head that does not exist, or one too wide for a terminal."""
    if layer >= len(seen) or head >= seen[layer].heads:
        raise ValueError(f"there are {len(seen)} layers of {seen[0].heads} heads; there is no {layer}.{head}")
    longest = max(seen[layer].shape[-2:])
    if longest > MAX_TOKENS:
        raise ValueError(
            f"a head is drawn up to {MAX_TOKENS} tokens, there are {longest}; leave --layer out, and keep all with "
            "--save"
        )


def report(seen: Seen, layer: int | None, head: int, links: int) -> Iterator[RenderableType]:
    """The table of calls, the head patterns if the model read one text, the strongest links, and one head drawn.

    Calls that do not reproduce the model's output are in the table only.
    """
    yield seen
    wrong = [call.name for call in seen if call.fidelity().faithful is False]
    if wrong:
        yield Text(f"\n{', '.join(wrong)}: not what the model computed, so no pattern or link is shown", style="red")
    if seen.text is not None and not wrong:
        patterns = Patterns()
        patterns.add(seen, seen.text)
        yield ""
        yield label_table(patterns)
        yield ""
        yield best_heads_table(patterns)
    if links and not wrong:
        yield ""
        yield link_table(seen, links)
    if layer is not None:
        call = seen[layer]
        if call.name in wrong:
            yield Text(f"{call.name} is not drawn", style="red")
            return
        *_, queries, keys = call.shape
        rows, cols = row_and_column_tokens(seen, call)
        yield ""
        yield heatmap(call.head(head).tile(slice(None), slice(None)).cpu(), _pad(rows, queries), _pad(cols, keys))


def _pad(names: list[str], count: int) -> list[str]:
    """Exactly `count` labels; a search may run one step further than it keeps."""
    return [*names[:count], *("" for _ in range(count - len(names)))]
