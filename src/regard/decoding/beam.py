"""Greedy and beam search, and sampling: from annotations to the best hypotheses of every sentence."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch

from ..layers.kernels.packed_products import packed_weights
from ..models.decoder import Decoder
from ..special_tokens import BEGIN, END, PAD, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..models.configurations import Annotations
    from ..models.decoder import State
    from ..models.encoder_decoder import EncoderDecoder
    from .ensemble import Ensemble

LONGEST = 256  # tokens of a hypothesis, unless the caller says otherwise
NEVER = -torch.inf
GROUP = 16  # entries of a group in `topk`
STEPS = 8  # of a search on a GPU, after which the host asks whether all sentences have ended
BEFORE_STEP: ContextVar[Callable[[], None]] = ContextVar("BEFORE_STEP")


@contextmanager
def before_each_step(check: Callable[[], None]) -> Iterator[None]:
    """Inside the block, `check` is called before each step of this thread's searches: by raising, it ends them."""
    token = BEFORE_STEP.set(check)
    try:
        yield
    finally:
        BEFORE_STEP.reset(token)


def check_step() -> None:
    """Before each step: what `before_each_step` was given."""
    if (check := BEFORE_STEP.get(None)) is not None:
        check()


class SearchSettings(TypedDict, total=False):
    """The keyword arguments of `search`."""

    beams: int
    length_penalty: float
    coverage_penalty: float
    longest: int | None
    best: int
    sample: Sample | None
    weights: bool | Literal["first"]
    prefixes: Sequence[Sequence[int]] | None


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
        logits = decoder.readout(features).unflatten(0, beam.tokens.shape)  # [batch, beams, vocabulary]
        advanced = advance(
            beam, logits, weights, self.at, self._ranking, self._sample, self._generator, unknown=self._unknown
        )
        self.beam, self.at = advanced.beam, self.at + 1
        self._parents = advanced.parents if beams > 1 and self._sample is None else None
        return advanced

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
    values, tokens = torch.where(last, only, values), torch.where(last, END, tokens)
    beams, choices = values.shape[1:]
    columns = torch.arange(beams, device=values.device)
    totals = beam.logprobs[..., None] + values  # [batch, beams, choices]
    if sample is not None:  # each column goes its own way
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


@torch.no_grad()
def search(
    model: EncoderDecoder | Ensemble | Decoder[Any],
    annotations: Annotations,
    *,
    beams: int = 5,
    length_penalty: float = 1.0,
    coverage_penalty: float = 0.0,
    longest: int | None = None,
    best: int = 1,
    sample: Sample | None = None,
    weights: bool | Literal["first"] = False,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """argmax_y log p(y | x) / lp(y) + cp(x, y), as far as a beam finds it: for every sentence its `best`, best first.

    - `beams`: hypotheses kept alive per sentence; 1 is greedy search. With `sample`, how many are drawn.
    - `length_penalty`, `coverage_penalty`: α and β of Wu et al. 2016, see `Ranking`.
    - `longest`: tokens a hypothesis may have before </s>; unless given, twice the source's places and ten, up to 256.
      One that gets there is ended. Never more than the decoder has positions for.
    - `weights=True` also gives each hypothesis the weights over the source it was made with; "first" gives them to the
      best of each sentence alone, with as much less memory.
    - `prefixes`: for each sentence, the tokens that every hypothesis begins with. They count in its score.

    What a sentence gets does not depend on the others in the batch. The model must be in evaluation mode.
    """
    decoder: Decoder[Any] = model if isinstance(model, Decoder) else model.decoder
    if beams < 1 or not 1 <= best <= beams:
        raise ValueError(f"a search needs beams ≥ 1 and 1 ≤ best ≤ beams, got beams={beams} and best={best}")
    if decoder.training:
        raise ValueError("search needs the model in evaluation mode (dropout is random): call model.eval() first")
    if len(annotations.lengths) == 0:
        return []
    from .search_cuda_graphs import graphs_of, recordable

    most, device, places = limits(annotations.lengths, longest, decoder.most_steps), annotations.vectors.device, None
    starts = _checked_prefixes(prefixes, len(most), decoder)
    most = torch.maximum(most, most.new_tensor([len(start) for start in starts]))
    if coverage_penalty:
        places = torch.arange(annotations.vectors.shape[1], device=device) < annotations.lengths[:, None]
    ranking = Ranking(length_penalty, coverage_penalty)
    steps = int(most.max()) + 1  # </s> is a step too
    if sample is None and not any(starts) and recordable(decoder):
        hypotheses = graphs_of(decoder).search(decoder, annotations, most, steps, ranking, beams=beams, best=best)
    else:
        beam = Beam.start(most, beams, best, places, apart=sample is not None)
        if any(starts):
            rows = [[*start, *[-1] * (steps - len(start))] for start in starts]
            beam = replace(beam, forced=torch.tensor(rows, device=device))
        history = History(steps, len(most), beams, device)
        state = decoder.start(annotations, beams=beams, steps=steps)
        generator = None if sample is None else sample.generator(device)
        with packed_weights():
            for at, alive, advanced in decode_steps(decoder, state, beam, steps, ranking, sample, generator):
                history.write(at, alive, advanced)
        hypotheses = history.best(best)
    if weights:
        _add_weights(decoder, annotations, hypotheses, first=weights == "first")
    return hypotheses


def _checked_prefixes(
    prefixes: Sequence[Sequence[int]] | None, sentences: int, decoder: Decoder[Any]
) -> Sequence[Sequence[int]]:
    """A prefix for each sentence, which may be empty."""
    if prefixes is None:
        return [[]] * sentences
    if len(prefixes) != sentences:
        raise ValueError(f"there are {sentences} sentences, and {len(prefixes)} prefixes")
    for prefix in prefixes:
        if min(prefix, default=UNKNOWN) <= END:
            raise ValueError("a prefix has words only; <s> and </s> are added by the search")
        if (largest := max(prefix, default=0)) >= decoder.vocabulary_size:
            raise ValueError(
                f"a prefix has the id {largest}, and the vocabulary of this decoder has {decoder.vocabulary_size} "
                "tokens; encode it with the target tokenizer of the model"
            )
    if decoder.most_steps is not None and (longest := max(map(len, prefixes))) >= decoder.most_steps:
        raise ValueError(f"a prefix has {longest} tokens, and this decoder has {decoder.most_steps} positions")
    return prefixes


def limits(places: Int[Tensor, "batch"], longest: int | None, steps: int | None = None) -> Int[Tensor, "batch"]:
    """How many tokens the translation of each sentence may have before </s>, for a decoder of at most `steps` steps."""
    if longest is not None and longest < 0:
        raise ValueError(f"longest is a number of tokens, got {longest}")
    most = (2 * places + 10).clamp(max=LONGEST) if longest is None else torch.full_like(places, longest)
    return most if steps is None else most.clamp(max=steps - 1)  # </s> is a step too


def decode_steps(
    decoder: Decoder[Any],
    state: State,
    beam: Beam,
    steps: int,
    ranking: Ranking,
    sample: Sample | None,
    generator: torch.Generator | None,
    *,
    unknown: bool = True,
) -> Iterator[tuple[Int[Tensor, "1"], Int[Tensor, "rows"], BeamStep]]:
    """Decode token by token, from a state and the next input tokens, until all have ended or `steps` are done.

    Yields the number of each step, the sentences that the rows of the beam belong to, and the step's result. `unknown`
    allows <unk>.
    """
    loop, device = BeamLoop(decoder, state, beam, ranking, sample, generator, unknown=unknown), beam.tokens.device
    for step in range(steps):
        check_step()
        at, sentences = loop.at, loop.sentences
        yield at, sentences, loop.step()
        if device.type == "cpu":
            # A finished sentence costs as much as any other; removing it costs a copy of the state.
            done = loop.done()
            finished = int(done.sum())
            if finished == len(sentences):
                return
            if finished * 8 >= len(sentences):
                loop.keep((~done).nonzero().squeeze(1))
        elif step % STEPS == STEPS - 1 and bool(loop.done().all()):  # the only synchronisation with the GPU
            return


def _add_weights(
    decoder: Decoder[Any], annotations: Annotations, hypotheses: list[list[Hypothesis]], *, first: bool
) -> None:
    """Sets the weights of every hypothesis, or of each sentence's first: one teacher-forced pass over all steps."""
    wanted = [several[:1] if first else several for several in hypotheses]
    rows = [(sentence, hypothesis) for sentence, several in enumerate(wanted) for hypothesis in several]
    device = annotations.vectors.device
    longest = max(len(hypothesis.tokens) for _, hypothesis in rows)
    tokens = torch.tensor(
        [[BEGIN, *hypothesis.tokens] + [PAD] * (longest - len(hypothesis.tokens)) for _, hypothesis in rows],
        device=device,
    )
    sentences = torch.tensor([sentence for sentence, _ in rows], device=device)
    decoded = decoder(tokens, annotations.select(sentences), weights=True)
    if decoded.weights is None:
        return
    lengths = annotations.lengths.tolist()
    for row, (sentence, hypothesis) in enumerate(rows):
        steps = len(hypothesis.tokens) + 1
        hypothesis.weights = decoded.weights[row, :, :steps, : lengths[sentence]].float().cpu().clone()
        if decoded.generation is not None:
            hypothesis.generation = decoded.generation[row, :steps].float().cpu().clone()


@torch.no_grad()
def beam_history(
    decoder: Decoder[Any],
    annotations: Annotations,
    *,
    beams: int,
    length_penalty: float = 1.0,
    longest: int | None = None,
) -> list[list[Hypothesis]]:
    """For one sentence the hypotheses after every step of `search`, likeliest first; a finished one ends in </s>."""
    if len(annotations.lengths) != 1:
        raise ValueError(f"a beam history is of one sentence, got {len(annotations.lengths)}")
    most, ranking = limits(annotations.lengths, longest, decoder.most_steps), Ranking(length_penalty)
    beam = Beam.start(most, beams, 1, None, apart=False)
    count = int(most) + 1  # </s> is a step too
    state = decoder.start(annotations, beams=beams, steps=count)
    written: list[list[int]] = [[] for _ in range(beams)]
    steps: list[list[Hypothesis]] = []
    for at, _, done in decode_steps(decoder, state, beam, count, ranking, None, None):
        parents, tokens = done.parents[0].tolist(), done.tokens[0].tolist()
        written = [[*written[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        scores = ranking(done.logprobs, at + 1)[0].tolist()
        hypotheses = zip(written, scores, done.logprobs[0].tolist(), strict=True)
        steps.append([Hypothesis(list(ids), score, logprob) for ids, score, logprob in hypotheses if logprob > NEVER])
        if bool(done.beam.done(ranking, prune=True)):  # on a GPU, `decode_steps` checks this only every few steps
            break
    return steps


@dataclass(frozen=True)
class Sample:
    """y_t ~ softmax(logits / temperature), over the likeliest tokens alone where asked.

    `top_k` keeps that many of them (Fan et al. 2018); `top_p` the fewest whose probabilities reach p together
    (Holtzman et al. 2020, nucleus sampling). 0 and 1.0 keep all. With a `seed` the same batch gives the same draw.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"a temperature is a finite number > 0, got {self.temperature}; the likeliest need no Sample"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k keeps that many tokens, or all when 0; got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability, 0 < p ≤ 1; got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"a seed is a whole number from 0 to 2⁶³ − 1, got {self.seed}")

    def generator(self, device: torch.device) -> torch.Generator | None:
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def draw(self, logprobs: Float[Tensor, "... vocabulary"], generator: torch.Generator | None) -> Int[Tensor, "..."]:
        scores = logprobs / self.temperature
        if self.top_k:
            kth = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < kth, -torch.inf)
        if self.top_p < 1:
            best, order = scores.softmax(-1).sort(-1, descending=True)
            # A token stays if those before it do not reach p yet: the first always does.
            beyond = best.cumsum(-1) - best >= self.top_p
            scores = scores.masked_fill(torch.empty_like(beyond).scatter(-1, order, beyond), -torch.inf)
        # The Gumbel-max trick: s_j − log(E_j), E_j ~ Exp(1), is largest with probability softmax(s)_j.
        return (scores - torch.empty_like(scores).exponential_(generator=generator).log()).argmax(-1)
