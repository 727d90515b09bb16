"""Head patterns as published: what each head of a model does, as scores, labels and how likely chance would do it.

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
    related                 another token there, of a like embedding          above 0.5 (ours)
    duplicate               the same token before                             above 0.5 (ours; score of TransformerLens)
    induction               the token after an earlier occurrence             above 0.5 (ours; score of TransformerLens)

Gu et al.: arXiv 2410.10781. Everything comes of one pass over queries and keys per layer; nothing of size T × T is
stored. Clark smooths weights before taking entropies to keep the logarithm finite; here 0·log 0 is 0, and nothing is
smoothed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .equal_tokens import KINDS, Matches, PairMass
from .even_sample import spread
from .layer_stack import stack
from .random_baseline import ROWS, drawn, open_keys, p_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Stats, Weights
    from ..capture.call import Call
    from ..capture.seen import Seen
    from .token_kinds import Text

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
"""A head gets the label where its score is above this (for "positional": at least this)."""
ALL = (*THRESHOLDS, "confidence")


@dataclass(frozen=True, slots=True)
class Head:
    """One head: where it is, its scores, and for those with keys of their own how likely chance is."""

    layer: int
    head: int
    scores: dict[str, float]
    p: dict[str, float]

    @property
    def labels(self) -> list[str]:
        """The patterns whose threshold it passes, the most decided first. A "first" is a "sink" too, and says more."""
        found = [name for name, least in THRESHOLDS.items() if self._passes(name, least)]
        if "first" in found:
            found.remove("sink")
        return sorted(found, key=lambda name: -self.scores[name] / THRESHOLDS[name])

    def _passes(self, name: str, least: float) -> bool:
        score = self.scores.get(name, 0.0)
        return score >= least if name == "positional" else score > least


class Patterns:
    """Scores of every head, text by text: `patterns.add(seen, text)`, then `patterns.heads()`."""

    def __init__(self, seed: int = 0, rows: int | None = None) -> None:
        """`rows`: take the patterns of equal tokens from so many queries, evenly spread, instead of from all.

        A token of a long text has thousands of others of its kind, and a GPU looks each up.
        """
        self.rows = rows
        self.names: list[str] = []
        self.texts = 0
        self._sums: dict[str, dict[str, Tensor]] = {}  # layer's name → pattern → Σ over texts of the score, [heads]
        self._draws: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[str, int] = {}  # texts in which a pattern could occur
        self._generator = torch.Generator().manual_seed(seed)

    def add(self, seen: Seen, text: Text, entry: int = 0, top: int = 1) -> dict[str, Stats]:
        """One text, which the model was given as this entry of the batch. Only self-attention is looked at.

        What the pass over each layer found comes back too: entropies, the `top` best keys of every row, what each key
        received, and the weights on the next, the previous and the same place.
        """
        square = [call for call in seen if call.kind == "self" and call.shape[-2] == call.shape[-1] >= len(text)]
        calls = stack(square)
        if not calls:
            raise ValueError(
                f"no self-attention over {len(text)} tokens was seen, so there are no patterns to look for: {seen!r}"
            )
        matches, queries = Matches(text), spread(len(text), ROWS)
        sets = _key_sets(text, queries, matches)
        found: dict[str, Stats] = {}
        for call in calls:
            weights = _heads(call, entry, len(text))
            _check_place(call.name, weights)
            pairs = PairMass(matches, weights.shape[0])
            # On a GPU kernels answer the rest in one go, and show nobody their blocks.
            apart = weights.energies.a.is_cuda or self.rows is not None
            stats = weights.stats(
                entropy=True,
                top=min(top, weights.shape[-1]),
                received=True,
                offsets=[1, -1, 0],
                also=[] if apart else [pairs],
            )
            if apart:
                pairs.look_up(weights, None if self.rows is None else spread(len(text), self.rows))
            # A module that is several layers (ALBERT) is told apart by how often it has been called.
            layer = call.name if call.name not in found else f"{call.name}, again {len(found)}"
            scores, found[layer] = _scores(stats, pairs, text), stats
            mine = self._sums.setdefault(layer, {})
            chance = self._draws.setdefault(layer, {})
            for name, score in scores.items():
                mine[name] = mine.get(name, 0) + score
            for name, sums in drawn(weights, queries, sets, self._generator).items():
                chance[name] = chance.get(name, 0) + sums
            call.forget()
        self.names = list(self._sums)
        self.texts += 1
        for name in ALL:
            self._counts[name] = self._counts.get(name, 0) + (name in scores)
        return found

    # The answers

    def scores(self, pattern: str) -> Float[Tensor, "layers heads"]:
        """The mean over texts of one pattern's score, every head of every layer."""
        _check(pattern)
        if not self._counts.get(pattern):
            raise ValueError("no text was a pair of sentences" if self.texts else "no text was added yet")
        return torch.stack([self._sums[name][pattern] for name in self.names]) / self._counts[pattern]

    def p(self, pattern: str) -> Float[Tensor, "layers heads"] | None:
        """How often random keys get as much weight; None for patterns that do not name keys."""
        key = "first" if pattern == "sink" else pattern
        if any(key not in self._draws[name] for name in self.names):
            return None
        return torch.stack([p_values(self._draws[name][key]) for name in self.names])

    def heads(self) -> list[Head]:
        """Every head of every layer, in order."""
        known = [name for name in ALL if self._counts.get(name)]
        scores = {name: self.scores(name).tolist() for name in known}
        chance = {name: found.tolist() for name in known if (found := self.p(name)) is not None}
        return [
            Head(
                layer,
                head,
                {name: scores[name][layer][head] for name in known},
                {name: chance[name][layer][head] for name in chance},
            )
            for layer in range(len(self.names))
            for head in range(len(scores["self"][layer]))
        ]

    def strongest(self, pattern: str, count: int = 5) -> list[Head]:
        """The heads that score highest on a pattern."""
        _check(pattern)
        return sorted(self.heads(), key=lambda head: -head.scores.get(pattern, 0.0))[:count]

    def sink_share(self) -> float:
        """The share of all heads whose mean weight on the first token is above 0.3 (Gu et al. 2024)."""
        return float((self.scores("sink") > THRESHOLDS["sink"]).float().mean())


def _check(pattern: str) -> None:
    if pattern not in ALL:
        raise ValueError(f"no pattern is called {pattern!r}; there are {', '.join(ALL)}")


def _scores(found: Stats, pairs: PairMass, text: Text) -> dict[str, Float[Tensor, " heads"]]:
    n = len(text)
    assert found.offsets is not None
    assert found.received is not None
    assert found.entropy is not None
    assert found.top is not None
    near = found.offsets.mean(-2).cpu()  # [heads, 3]
    received = found.received[:, :n].cpu() / n
    scores = {
        "next": near[:, 0],
        "previous": near[:, 1],
        "self": near[:, 2],
        "first": received[:, 0],
        "sink": received[:, 0],
        "delimiter": received[:, text.delimiters].sum(-1),
        "punctuation": received[:, text.punctuation].sum(-1),
        "broad": found.entropy.mean(-1).cpu(),
        "confidence": found.top.values[..., 0].mean(-1).cpu(),
        "positional": _one_offset(found.top.indices[..., 0].cpu()),
    }
    absent = {"other sentence": text.segments is None, "related": text.segments is None or text.vectors is None}
    for kind in KINDS:
        if not absent.get(kind, False):
            scores[kind] = pairs.total[kind] / n
    return {key: value.float() for key, value in scores.items()}


def _heads(call: Call, entry: int, length: int) -> Weights:
    """[heads, length, T_k] of one entry of the batch."""
    weights = call.weights
    lead = len(weights.shape) - 2
    part = weights[entry] if lead > 1 else weights
    return part.rows(slice(0, length))


def _check_place(name: str, weights: Weights) -> None:
    """Refuse a text that is padded on the left, or whose filling is seen: row i must be token i and see tokens only."""
    rows, keys = weights.shape[-2:]
    if rows == keys:
        return
    seen = open_keys(weights, torch.tensor([0, rows - 1]))
    if not bool(seen[0, 0]) or bool(seen[:, rows:].any()):
        raise ValueError(
            f"{name} attended over {keys} places, and the text's {rows} tokens are not the first of them, or see what "
            "is after them. Pad on the right and give the mask, or give the text alone"
        )


def _one_offset(best: Int[Tensor, "heads t"]) -> Float[Tensor, " heads"]:
    """The largest share of queries whose best key is at one and the same offset."""
    heads, length = best.shape
    offset = best - torch.arange(length) + length  # ≥ 1
    counts = torch.zeros(heads, int(offset.max()) + 1, dtype=torch.float32)  # bfloat16 cannot count past 256
    counts.scatter_add_(1, offset, torch.ones_like(offset, dtype=counts.dtype))
    return counts.amax(-1) / length


def _key_sets(
    text: Text, queries: Int[Tensor, " rows"], matches: Matches
) -> dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]]:
    """The keys each pattern names for these queries, as pairs (which query, key)."""
    n, rows = len(text), torch.arange(len(queries))
    found = {}
    for name, offset in (("next", 1), ("previous", -1), ("self", 0)):
        key = queries + offset
        there = (key >= 0) & (key < n)
        found[name] = rows[there], key[there]
    found["first"] = rows, torch.zeros_like(rows)
    for name, columns in (("delimiter", text.delimiters), ("punctuation", text.punctuation)):
        key = columns.nonzero().flatten()
        found[name] = rows.repeat_interleave(len(key)), key.repeat(len(rows))
    return found | matches.of(queries)


def sequence(vocabulary: int, length: int, seed: int = 0, avoid: Sequence[int] = ()) -> Int[Tensor, " twice"]:
    """Random tokens and the same again: what induction heads are found on (Olsson et al. 2022)."""
    allowed = torch.tensor([x for x in range(vocabulary) if x not in set(avoid)])
    half = allowed[torch.randint(len(allowed), (length,), generator=torch.Generator().manual_seed(seed))]
    return torch.cat([half, half])


def induction(seen: Seen, length: int) -> Float[Tensor, "layers heads"]:
    """On `sequence(…, length)`: mean weight from the second half to the token after the same one in the first.

    The diagonal at offset 1 − length (TransformerLens).
    """
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] >= 2 * length]
    if not calls:
        raise ValueError(f"no self-attention over a sequence of twice {length} tokens was seen")
    rows = slice(calls[0].shape[-2] - length, None)
    found = []
    for call in stack(calls):
        offsets = _heads(call, 0, call.shape[-2]).rows(rows).stats(offsets=[1 - length]).offsets
        assert offsets is not None
        found.append(offsets[..., 0].mean(-1).cpu())
        call.forget()
    return torch.stack(found)
