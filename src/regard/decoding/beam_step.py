"""One step of a search: every hypothesis by every token, and the likeliest stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..data.batch import END, UNKNOWN
from .beam_state import NEVER

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..models.decoders.decoder import Decoder, State
    from .beam_state import Beam, Ranking
    from .sampling import Sample

GROUP = 16  # entries of a group in `topk`
LOGITS = 1 << 21  # that a CPU computes at once: more would not stay in its caches


@dataclass
class BeamStep:
    """One step: the beam after it, the hypothesis each column came from, and the scores of those that ended."""

    beam: Beam
    parents: Int[Tensor, "batch beams"]
    tokens: Int[Tensor, "batch beams"]
    logprobs: Float[Tensor, "batch beams"]
    ended: Float[Tensor, "batch beams"]  # −∞ where a hypothesis continues


class BeamLoop:
    """The loop of a search: call `step` for each token.

    `sentences` are those that the rows of the beam belong to, and `at` counts the steps.
    """

    def __init__(
        self,
        decoder: Decoder[Any],
        state: State,
        beam: Beam,
        ranking: Ranking,
        sample: Sample | None = None,
        generator: torch.Generator | None = None,
        *,
        unknown: bool = True,
    ) -> None:
        self._decoder, self._state, self._ranking = decoder, state, ranking
        self._sample, self._generator, self._unknown = sample, generator, unknown
        self.beam, device = beam, beam.tokens.device
        self.sentences = torch.arange(len(beam.tokens), device=device)
        # Counted on the device. A tensor without a dimension would be read back when it is used as an index.
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self._parents: Int[Tensor, "batch beams"] | None = None  # of the last step, where the state is not in order

    def step(self) -> BeamStep:
        """The decoder reads the last token of every hypothesis, and the beam advances by what it says.

        Fixed shapes and no number read back, so that a GPU never waits and a graph can hold it.
        """
        decoder, beam = self._decoder, self.beam
        beams = beam.tokens.shape[1]
        if self._parents is not None:
            first = torch.arange(0, beam.tokens.numel(), beams, device=beam.tokens.device)[:, None]
            self._state = self._state.reorder((first + self._parents).flatten())
        counts = beam.coverage is not None
        features, self._state, weights = decoder.step(beam.tokens.flatten(), self._state, weights=counts)
        if counts:
            if weights is None:
                raise ValueError("coverage_penalty needs a decoder with attention; this one has none: set it to 0")
            weights = weights.float().mean(1).unflatten(0, beam.tokens.shape)  # [batch, beams, places]
        values, tokens = self._choices(features.unflatten(0, beam.tokens.shape))
        apart = self._sample is not None
        advanced = _best(beam, values, tokens, weights, self.at, self._ranking, apart=apart)
        self.beam, self.at = advanced.beam, self.at + 1
        self._parents = advanced.parents if beams > 1 and not apart else None
        return advanced

    def _choices(
        self, features: Float[Tensor, "batch beams width"]
    ) -> tuple[Float[Tensor, "batch beams choices"], Int[Tensor, "batch beams choices"]]:
        """The likeliest tokens of every hypothesis, of a part of the sentences after the other on a CPU."""
        parts = 1
        if features.device.type == "cpu" and self._sample is None:
            parts = -(-features.shape[0] * features.shape[1] * self._decoder.vocabulary_size // LOGITS)
        size = -(-len(features) // max(parts, 1))
        chosen = []
        for first in range(0, len(features), size):
            rows = slice(first, first + size)
            logits = self._decoder.readout(features[rows].flatten(0, 1)).unflatten(0, (-1, features.shape[1]))
            beam = self.beam if parts == 1 else self.beam.select(rows)
            chosen.append(choices(beam, logits, self.at, self._sample, self._generator, unknown=self._unknown))
        if len(chosen) == 1:
            return chosen[0]
        return torch.cat([values for values, _ in chosen]), torch.cat([tokens for _, tokens in chosen])

    def done(self) -> Bool[Tensor, "batch"]:
        """Sentences that need no further step."""
        return self.beam.done(self._ranking, prune=self._sample is None)

    def keep(self, rows: Int[Tensor, "kept"]) -> None:
        """Only these rows of the beam continue."""
        self.sentences, self.beam, self._state = self.sentences[rows], self.beam.select(rows), self._state.keep(rows)
        self._parents = None if self._parents is None else self._parents[rows]


def advance(
    beam: Beam,
    logits: Float[Tensor, "batch beams vocabulary"],
    weights: Float[Tensor, "batch beams places"] | None,
    at: Int[Tensor, "1"],
    ranking: Ranking,
    sample: Sample | None = None,
    generator: torch.Generator | None = None,
    *,
    unknown: bool = True,
) -> BeamStep:
    """Every hypothesis by every token; the likeliest stay. `at` counts the tokens before this one, and `unknown` says
    whether <unk> may follow."""
    values, tokens = choices(beam, logits, at, sample, generator, unknown=unknown)
    return _best(beam, values, tokens, weights, at, ranking, apart=sample is not None)


def choices(
    beam: Beam,
    logits: Float[Tensor, "batch beams vocabulary"],
    at: Int[Tensor, "1"],
    sample: Sample | None = None,
    generator: torch.Generator | None = None,
    *,
    unknown: bool = True,
) -> tuple[Float[Tensor, "batch beams choices"], Int[Tensor, "batch beams choices"]]:
    """The likeliest tokens of every hypothesis and their log p, as many as there are beams; with `sample` one."""
    logprobs = logits.float().log_softmax(-1)
    logprobs[..., :END] = NEVER  # <pad> and <s> are no words
    if not unknown:
        logprobs[..., UNKNOWN] = NEVER
    if beam.forced is not None:
        token = beam.forced[:, at, None]  # [batch, 1, 1]
        other = torch.arange(logprobs.shape[-1], device=token.device) != token
        logprobs = logprobs.masked_fill(other & (token >= 0), NEVER)
    if sample is None:
        values, tokens = topk(logprobs, min(beam.tokens.shape[1], logprobs.shape[-1]))  # [batch, beams, choices]
    else:
        tokens = sample.draw(logprobs, generator)[..., None]  # [batch, beams, 1]
        values = logprobs.gather(-1, tokens)
    # At its limit a hypothesis can only end: its first choice is </s>, and it has no other.
    last = (at >= beam.limits)[:, None, None]
    only = torch.full_like(values, NEVER)
    only[..., 0] = logprobs[..., END]
    return torch.where(last, only, values), torch.where(last, END, tokens)


def _best(
    beam: Beam,
    values: Float[Tensor, "batch beams choices"],
    tokens: Int[Tensor, "batch beams choices"],
    weights: Float[Tensor, "batch beams places"] | None,
    at: Int[Tensor, "1"],
    ranking: Ranking,
    *,
    apart: bool,
) -> BeamStep:
    """The likeliest continuations; with `apart` each column goes its own way."""
    beams, choices = values.shape[1:]
    columns = torch.arange(beams, device=values.device)
    totals = beam.logprobs[..., None] + values  # [batch, beams, choices]
    if apart:
        logprobs, parents, tokens = totals[..., 0], columns.expand_as(beam.tokens), tokens[..., 0]
    else:
        logprobs, order = totals.flatten(1).topk(beams)  # [batch, beams], best first
        parents, tokens = order // choices, tokens.flatten(1).gather(1, order)
        logprobs = logprobs.masked_fill(columns >= beam.free[:, None], NEVER)
    coverage = beam.coverage
    if coverage is not None and weights is not None:
        coverage = (coverage + weights).gather(1, parents[..., None].expand_as(coverage))
    ends = (tokens == END) & (logprobs > NEVER)
    ended = torch.where(ends, ranking(logprobs, at + 1, coverage), NEVER)
    after = replace(
        beam,
        tokens=tokens,
        logprobs=logprobs.masked_fill(ends, NEVER),
        free=beam.free - ends.sum(1),
        leaders=torch.cat([beam.leaders, ended], 1).topk(beam.leaders.shape[1]).values,
        coverage=coverage,
    )
    return BeamStep(after, parents, tokens, logprobs, ended)


def topk(x: Float[Tensor, "*rows n"], count: int) -> tuple[Float[Tensor, "*rows count"], Int[Tensor, "*rows count"]]:
    """x.topk(count) and its indices, for rows as long as a vocabulary and a small count.

    Entries j, j + c, j + 2c, … make a group, c = n // 16. The largest `count` entries lie in the groups with the
    `count` largest maxima, so a row is read once for those, and only what lies in the best groups (and the rest that
    fills no group) is sorted. On rows of 10,000 a CPU takes less than half as long for it as for `topk`.
    """
    n = x.shape[-1]
    groups = n // GROUP
    if groups < 4 * count:
        return torch.topk(x, count)
    maxima = x[..., : GROUP * groups].unflatten(-1, (GROUP, groups)).amax(-2)
    best = maxima.topk(count, sorted=False).indices  # [*rows, count]
    members = torch.arange(0, GROUP * groups, groups, device=x.device)
    index = (best[..., None] + members).flatten(-2)  # [*rows, count · 16]
    rest = torch.arange(GROUP * groups, n, device=x.device).expand(*x.shape[:-1], -1)
    index = torch.cat([index, rest], -1)
    values, order = x.gather(-1, index).topk(count)
    return values, index.gather(-1, order)
