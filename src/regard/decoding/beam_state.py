"""The beam: the live hypotheses of every sentence of a batch, and the history they are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..data.batch import BEGIN

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .beam_step import BeamStep

NEVER = -torch.inf


@dataclass
class Hypothesis:
    """The tokens between <s> and </s>; the score it was ranked by; and log p(y | x), </s> included.

    `logprob` is NaN where an engine does not give it, see `CTranslate2`.

    `weights`, where requested, has one row more than there are tokens: the last belongs to </s>. A Transformer has one
    map per layer and head, an RNN one. `generation` is p_gen of the same steps, of a decoder that copies.
    """

    tokens: list[int]
    score: float
    logprob: float
    weights: Float[Tensor, "maps target places"] | None = None
    generation: Float[Tensor, "target"] | None = None


@dataclass(frozen=True)
class Ranking:
    """How finished hypotheses are ranked (Wu et al. 2016, section 7): log p(y | x) / lp(y) + cp(x, y), with

    lp = ((5 + |y|) / 6)^α     and     cp = β Σ_i log(min(Σ_t w_ti, 1)).

    |y| counts </s>, whose probability is in p too. w_ti is the weight of source place i in step t, the mean over all
    maps where there are several; a place without weight counts as e⁻¹⁶ instead of 0, which would give −∞.
    """

    length: float = 1.0  # α
    coverage: float = 0.0  # β

    def __post_init__(self) -> None:
        # With both ≥ 0 scores cannot rise as a hypothesis grows, so a search can stop early without loss.
        for name, value in (("length_penalty", self.length), ("coverage_penalty", self.coverage)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a number ≥ 0, got {value}")

    def __call__(
        self,
        logprobs: Float[Tensor, "batch beams"],
        lengths: Int[Tensor, "..."],
        coverage: Float[Tensor, "batch beams places"] | None = None,
    ) -> Float[Tensor, "batch beams"]:
        scores = logprobs / ((5 + lengths) / 6) ** self.length
        if coverage is None:
            return scores
        return scores + self.coverage * coverage.clamp(min=torch.e**-16, max=1).log().sum(-1)


@dataclass
class Beam:
    """Row b is a sentence, column k a hypothesis of it; one whose logprob is −∞ is none.

    A hypothesis that ends takes its place in the beam with it (Sutskever et al. 2014, section 3.2): `free` places are
    left to those alive, and a beam of one is greedy search. `coverage` is Σ_t w_t so far, 1 at padding.
    """

    tokens: Int[Tensor, "batch beams"]
    logprobs: Float[Tensor, "batch beams"]
    free: Int[Tensor, "batch"]
    leaders: Float[Tensor, "batch best"]  # the scores of the best that ended, best first
    limits: Int[Tensor, "batch"]  # tokens a hypothesis may have before it must end
    coverage: Float[Tensor, "batch beams places"] | None
    forced: Int[Tensor, "batch steps"] | None = None  # the tokens that every hypothesis begins with; −1 where free

    @classmethod
    def start(
        cls,
        limits: Int[Tensor, "batch"],
        beams: int,
        best: int,
        places: Bool[Tensor, "batch places"] | None,
        *,
        apart: bool,
    ) -> Beam:
        """Before the first token all hypotheses are the same one: a beam holds it once, samples start from it `apart`.

        `places` are those of the source that are no padding, given where coverage counts.
        """
        n, device = len(limits), limits.device
        logprobs = torch.zeros(n, beams, device=device)
        if not apart:
            logprobs[:, 1:] = NEVER
        return cls(
            tokens=torch.full((n, beams), BEGIN, device=device),
            logprobs=logprobs,
            free=torch.full((n,), beams, device=device),
            leaders=torch.full((n, best), NEVER, device=device),
            limits=limits,
            coverage=None if places is None else (~places).float()[:, None].repeat(1, beams, 1),
        )

    def select(self, rows: Int[Tensor, "kept"] | slice) -> Beam:
        return Beam(
            self.tokens[rows],
            self.logprobs[rows],
            self.free[rows],
            self.leaders[rows],
            self.limits[rows],
            None if self.coverage is None else self.coverage[rows],
            None if self.forced is None else self.forced[rows],
        )

    def done(self, ranking: Ranking, *, prune: bool) -> Bool[Tensor, "batch"]:
        """Sentences with nothing alive, and with `prune` those where nothing alive can still become one of the best.

        A logprob only falls and the divisor only grows, up to that of the longest hypothesis allowed.
        """
        alive = self.logprobs.amax(1)  # [batch]
        over = alive == NEVER
        return over | (self.leaders[:, -1] >= ranking(alive, self.limits + 1)) if prune else over


class History:
    """Every token of every step and the hypothesis it was added to; hypotheses are read from it backwards."""

    def __init__(self, steps: int, batch: int, beams: int, device: torch.device) -> None:
        shape = (steps, batch, beams)
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.parents = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.ended = torch.full(shape, NEVER, device=device)

    def write(self, at: Int[Tensor, "1"], alive: Int[Tensor, "rows"], advanced: BeamStep) -> None:
        self.tokens[at, alive] = advanced.tokens
        self.parents[at, alive] = advanced.parents
        self.logprobs[at, alive] = advanced.logprobs
        self.ended[at, alive] = advanced.ended

    def clear(self) -> None:
        self.ended.fill_(NEVER)

    def best(self, count: int) -> list[list[Hypothesis]]:
        """The `count` best of every sentence that ended, fewer where fewer did."""
        steps, batch, beams = self.ended.shape
        scores, which = self.ended.transpose(0, 1).flatten(1).topk(count)  # [batch, count]
        if bool((scores[:, 0] == NEVER).any()):
            raise ValueError("no hypothesis has a finite score: the model's logits are NaN or infinite")
        ends, column = (which // beams).cpu(), (which % beams).cpu()
        logprobs = self.logprobs.transpose(0, 1).flatten(1).gather(1, which).tolist()
        all_tokens, all_parents = self.tokens.cpu(), self.parents.cpu()
        tokens = torch.zeros(batch, count, steps, dtype=torch.int64)
        for step in range(int(ends.max()), -1, -1):
            step_tokens = all_tokens[step].gather(1, column)  # [batch, count]
            before = all_parents[step].gather(1, column)
            tokens[..., step] = step_tokens
            column = torch.where(step <= ends, before, column)
        return [
            [
                Hypothesis(row[:end], score, logprob)
                for row, end, score, logprob in zip(*sentence, strict=True)
                if score > NEVER
            ]
            for sentence in zip(tokens.tolist(), ends.tolist(), scores.tolist(), logprobs, strict=True)
        ]
