"""Search, held to what it promises: every sequence enumerated, a beam written with plain lists, batches of one."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.decoding import Hypothesis, Sample, search
from regard.decoding.beam import Beam, History, Ranking, advance, topk
from regard.models import EncoderDecoder, EncoderDecoderConfig
from regard.models.configurations import Annotations
from regard.models.decoder import Decoder, DecoderOutput, State
from tests.support.small_models import DECODERS, ENCODERS, batch
from tests.support.small_models import VOCABULARY as TOKENS

BEGIN, END = 1, 2
VOCABULARY = 6  # <pad>, <s>, </s>, <unk> and two words


@dataclass
class EncoderMemory(State):
    """`beams` rows per sentence; `calls` counts what the search does with them, for all its states together."""

    h: Tensor
    annotations: Annotations
    beams: int
    calls: dict[str, int]

    def reorder(self, rows: Tensor) -> EncoderMemory:
        assert torch.equal(rows // self.beams, torch.arange(len(self.h), device=rows.device) // self.beams), (
            "a row left its sentence"
        )
        self.calls["reorder"] += 1
        return EncoderMemory(self.h[rows], self.annotations, self.beams, self.calls)

    def keep(self, sentences: Tensor) -> EncoderMemory:
        self.calls["keep"] += 1
        rows = (sentences[:, None] * self.beams + torch.arange(self.beams)).flatten()
        return EncoderMemory(self.h[rows], self.annotations.select(sentences), self.beams, self.calls)


class Small(Decoder[EncoderMemory]):
    """A recurrent decoder with dot-product attention, random, sharp enough that beams disagree with one another."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 8, *, ending: float = 0.0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(2 * width, vocabulary)
        with torch.no_grad():
            for weight in (self.mix.weight, self.out.weight):
                weight.mul_(4)
            self.out.bias[END] += ending
        self.calls = {"step": 0, "reorder": 0, "keep": 0, "rows": 0}

    def _once(self, h: Tensor, tokens: Tensor, a: Annotations) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.mix(torch.cat([h, self.embedding(tokens)], -1)))
        e = torch.einsum("nd,nsd->ns", h, a.vectors)
        e = e.masked_fill(torch.arange(a.vectors.shape[1], device=e.device) >= a.lengths[:, None], -torch.inf)
        return h, e.softmax(-1)

    def forward(self, tokens: Tensor, annotations: Annotations, *, weights: bool = False) -> DecoderOutput:
        h, features, seen = annotations.summary, [], []
        for t in range(tokens.shape[1]):
            h, w = self._once(h, tokens[:, t], annotations)
            features.append(torch.cat([h, torch.einsum("ns,nsd->nd", w, annotations.vectors)], -1))
            seen.append(w)
        return DecoderOutput(torch.stack(features, 1), torch.stack(seen, 1)[:, None] if weights else None)

    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> EncoderMemory:
        return EncoderMemory(annotations.summary.repeat_interleave(beams, 0), annotations, beams, self.calls)

    def step(
        self, tokens: Tensor, state: EncoderMemory, *, weights: bool = False
    ) -> tuple[Tensor, EncoderMemory, Tensor | None]:
        self.calls["step"] += 1
        self.calls["rows"] += len(tokens)
        rows = torch.arange(len(state.annotations.lengths), device=tokens.device).repeat_interleave(state.beams)
        a = state.annotations.select(rows)
        h, w = self._once(state.h, tokens, a)
        features = torch.cat([h, torch.einsum("ns,nsd->nd", w, a.vectors)], -1)
        return features, EncoderMemory(h, state.annotations, state.beams, self.calls), w[:, None] if weights else None

    def readout(self, features: Tensor) -> Tensor:
        return self.out(features)


def annotations(batch: int = 3, places: int = 4, width: int = 8) -> Annotations:
    lengths = torch.tensor([places, *torch.randint(1, places + 1, (batch - 1,)).tolist()])
    return Annotations(torch.randn(batch, places, width), lengths, torch.randn(batch, width).tanh())


def decoder(**how: float) -> Small:
    return Small(**how).eval()  # type: ignore[arg-type]


def logprob(model: Small, a: Annotations, sentence: int, tokens: list[int]) -> tuple[float, Tensor]:
    """log p(tokens </s>) by teacher forcing, and the coverage Σ_t w_t."""
    one = a.select(torch.tensor([sentence]))
    decoded = model(torch.tensor([[BEGIN, *tokens]]), one, weights=True)
    logprobs = model.readout(decoded.features)[0].log_softmax(-1)
    picked = logprobs[torch.arange(len(tokens) + 1), torch.tensor([*tokens, END])]
    return picked.sum().item(), decoded.weights[0, 0, :, : one.lengths[0]].sum(0)


def score(model: Small, a: Annotations, sentence: int, tokens: list[int], alpha: float, beta: float) -> float:
    value, coverage = logprob(model, a, sentence, tokens)
    penalty = sum(math.log(min(c, 1.0)) for c in coverage.tolist())
    return value / ((5 + len(tokens) + 1) / 6) ** alpha + beta * penalty


def test_weights_of_the_first_hypothesis_alone() -> None:
    model, a = decoder(), annotations()
    both: dict[str, Any] = {"beams": 3, "best": 3, "longest": 3}
    for some, every in zip(
        search(model, a, weights="first", **both), search(model, a, weights=True, **both), strict=True
    ):
        assert [h.tokens for h in some] == [h.tokens for h in every]
        assert [h.weights is None for h in some] == [False] + [True] * (len(every) - 1)
        assert some[0].weights is not None
        assert every[0].weights is not None
        torch.testing.assert_close(some[0].weights, every[0].weights)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 0.0), (0.6, 0.3), (2.0, 1.0)])
@torch.no_grad()
def test_a_beam_wide_enough_finds_what_enumeration_finds(alpha: float, beta: float) -> None:
    model, a, longest = decoder(), annotations(), 4
    everything = [list(s) for n in range(longest + 1) for s in itertools.product(range(3, VOCABULARY), repeat=n)]
    assert len(everything) == 121
    results = search(
        model, a, beams=121, best=121, longest=longest, length_penalty=alpha, coverage_penalty=beta, weights=True
    )
    for sentence, hypotheses in enumerate(results):
        truth = sorted(((score(model, a, sentence, s, alpha, beta), s) for s in everything), reverse=True)
        assert [h.score for h in hypotheses] == pytest.approx([value for value, _ in truth], rel=1e-4)
        assert hypotheses[0].tokens == truth[0][1]
        for h in hypotheses[:5]:
            value, coverage = logprob(model, a, sentence, h.tokens)
            assert h.logprob == pytest.approx(value, rel=1e-4)
            assert h.weights is not None
            torch.testing.assert_close(h.weights[0].sum(0), coverage)


def plain(model: Small, a: Annotations, sentence: int, beams: int, longest: int, alpha: float) -> list[tuple]:
    """Beam search as one would write it first: lists, no cache, no early stop."""
    one = a.select(torch.tensor([sentence]))
    alive, ended = [(0.0, [])], []
    for _ in range(longest + 1):
        extended = []
        for value, tokens in alive:
            decoded = model(torch.tensor([[BEGIN, *tokens]]), one)
            logprobs = model.readout(decoded.features[0, -1]).log_softmax(-1).tolist()
            words = [END] if len(tokens) == longest else range(END, VOCABULARY)
            extended += [(value + logprobs[word], [*tokens, word]) for word in words]
        best = sorted(extended, reverse=True)[: beams - len(ended)]
        alive = [(value, tokens) for value, tokens in best if tokens[-1] != END]
        ended += [(v / ((5 + len(t)) / 6) ** alpha, t[:-1]) for v, t in best if t[-1] == END]
    return sorted(ended, reverse=True)


@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_beam_is_the_beam_one_would_write_first(beams: int, alpha: float, seed: int) -> None:
    torch.manual_seed(seed)
    model, a = decoder(), annotations(batch=4)
    for best in {1, beams}:
        results = search(model, a, beams=beams, best=best, longest=6, length_penalty=alpha)
        for sentence, hypotheses in enumerate(results):
            expected = plain(model, a, sentence, beams, 6, alpha)[:best]
            assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
            assert [h.score for h in hypotheses] == pytest.approx([value for value, _ in expected], rel=1e-4)
    assert beams > 1 or model.calls["reorder"] == 0, "one hypothesis per sentence has nothing to be reordered"


def test_a_sentence_is_translated_alike_in_any_company() -> None:
    model, a = decoder(ending=1.5), annotations(batch=12, places=9)
    together = search(model, a, beams=3, best=3)
    for sentence, several in enumerate(together):
        length = int(a.lengths[sentence])
        one = a.select(torch.tensor([sentence]))
        alone = search(model, Annotations(one.vectors[:, :length], one.lengths, one.summary), beams=3, best=3)[0]
        assert [h.tokens for h in several] == [h.tokens for h in alone]
        assert [h.score for h in several] == pytest.approx([h.score for h in alone], rel=1e-4)


def test_the_early_stop_and_what_is_dropped_save_steps() -> None:
    model, a = decoder(ending=1.0), annotations(batch=16)
    search(model, a, beams=4, longest=200, length_penalty=0.0)
    assert model.calls["step"] < 60
    assert model.calls["keep"] > 0
    assert model.calls["rows"] < model.calls["step"] * 16 * 4


def test_the_default_limit_grows_with_the_source() -> None:
    model, a = decoder(ending=-50.0), annotations(batch=5, places=6)  # never ends of itself
    results = search(model, a, beams=2)
    assert [len(h[0].tokens) for h in results] == (2 * a.lengths + 10).tolist()
    assert [len(h[0].tokens) for h in search(model, a, beams=2, longest=0)] == [0] * 5


@pytest.mark.gpu
@pytest.mark.parametrize(("beams", "beta"), [(1, 0.0), (4, 0.0), (4, 0.2)])
def test_a_gpu_finds_the_same(beams: int, beta: float) -> None:
    model, a = decoder(ending=1.0).double(), annotations(batch=6)
    a = Annotations(a.vectors.double(), a.lengths, a.summary.double())
    on_cpu = search(model, a, beams=beams, best=beams, coverage_penalty=beta)
    there = Annotations(a.vectors.cuda(), a.lengths.cuda(), a.summary.cuda())
    on_gpu = search(model.cuda(), there, beams=beams, best=beams, coverage_penalty=beta)
    assert [[h.tokens for h in several] for several in on_gpu] == [[h.tokens for h in several] for several in on_cpu]


@pytest.mark.gpu
@torch.no_grad()
def test_a_gpu_is_asked_nothing_in_a_step() -> None:
    limits = torch.full((3,), 5, device="cuda")
    beam = Beam.start(limits, 4, 2, None, apart=False)
    history = History(6, 3, 4, limits.device)
    at, rows = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.arange(3, device="cuda")
    logits = torch.randn(3, 4, 500, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            advanced = advance(beam, logits, None, at, Ranking())
            history.write(at, rows, advanced)
            beam, at = advanced.beam, at + 1
            beam.done(Ranking(), prune=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class TestSampling:
    @torch.no_grad()
    def test_draws_as_often_as_the_model_says(self) -> None:
        model, a = decoder(), annotations(batch=1)
        drawn = search(model, a, beams=4000, best=4000, longest=1, sample=Sample(temperature=1.5, seed=1))[0]
        decoded = model(torch.tensor([[BEGIN]]), a)
        expected = (model.readout(decoded.features[0, 0]).log_softmax(-1)[END:] / 1.5).softmax(-1)
        counts = torch.zeros(VOCABULARY - END)
        for h in drawn:
            counts[(h.tokens or [END])[0] - END] += 1
        # Six standard deviations of a share of 4,000 draws.
        assert ((counts / 4000 - expected).abs() < 6 * (expected * (1 - expected) / 4000).sqrt() + 1e-9).all()
        assert len({h.logprob for h in drawn}) > 1

    def test_top_k_of_one_and_a_tiny_nucleus_are_greedy(self) -> None:
        model, a = decoder(), annotations()
        greedy = [h[0].tokens for h in search(model, a, beams=1)]
        for narrow in (Sample(top_k=1), Sample(top_p=1e-6)):
            assert [h[0].tokens for h in search(model, a, beams=1, sample=narrow)] == greedy

    def test_the_nucleus_is_the_smallest_that_reaches_p(self) -> None:
        logprobs = torch.tensor([0.5, 0.1, 0.3, 0.1]).log().expand(2000, 4)
        drawn = Sample(top_p=0.75).draw(logprobs, None)
        assert set(drawn.tolist()) == {0, 2}
        assert set(Sample(top_p=0.45).draw(logprobs, None).tolist()) == {0}
        assert set(Sample(top_k=2).draw(logprobs, None).tolist()) == {0, 2}

    def test_a_seed_repeats_and_the_samples_differ(self) -> None:
        model, a = decoder(), annotations()
        first, second = (search(model, a, beams=8, best=8, sample=Sample(seed=3)) for _ in range(2))
        assert [[h.tokens for h in s] for s in first] == [[h.tokens for h in s] for s in second]
        assert len({tuple(h.tokens) for h in first[0]}) > 1
        for h in first[0]:
            assert h.logprob == pytest.approx(logprob(model, annotations_again(a), 0, h.tokens)[0], rel=1e-4)

    @pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
    def test_settings_that_mean_nothing_are_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="got"):
            Sample(**wrong)  # type: ignore[arg-type]


def annotations_again(a: Annotations) -> Annotations:
    """A search must not have changed what it read."""
    return Annotations(a.vectors.clone(), a.lengths.clone(), a.summary.clone())


@pytest.mark.parametrize(("n", "count"), [(1000, 1), (1003, 5), (640, 10), (64, 5), (7, 7), (10_000, 5)])
def test_the_largest_are_those_of_topk(n: int, count: int) -> None:
    x = torch.randn(3, 4, n)
    x[0, 0, -1] = x[0, 1, 0] = 10  # at the very ends
    x[1, 0, :: max(n // 16, 1)] += 20  # several in one group
    x[2, 0] = -torch.inf
    x[2, 0, n // 2] = 0
    values, indices = topk(x, count)
    assert torch.equal(values, x.topk(count).values)
    assert torch.equal(x.gather(-1, indices), values)
    assert all(len(set(row)) == count for row in indices.flatten(0, 1).tolist())


def test_nothing_in_gives_nothing_out() -> None:
    a = annotations(batch=2).select(torch.empty(0, dtype=torch.int64))
    assert search(decoder(), a) == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"beams": 0}, "beams=0"),
        ({"beams": 2, "best": 3}, "best=3"),
        ({"longest": -1}, "-1"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"coverage_penalty": float("nan")}, "coverage_penalty"),
    ],
)
def test_settings_that_mean_nothing_are_refused(how: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(decoder(), annotations(), **how)  # type: ignore[arg-type]


def test_a_model_in_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        search(Small().train(), annotations())


def test_a_broken_model_is_an_error_not_an_empty_answer() -> None:
    model = decoder()
    nn.init.constant_(model.out.bias, torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        search(model, annotations())


class Blind(Small):
    """Without attention there is nothing to look at."""

    def forward(self, tokens: Tensor, annotations: Annotations, *, weights: bool = False) -> DecoderOutput:
        return DecoderOutput(super().forward(tokens, annotations).features, None)

    def step(
        self, tokens: Tensor, state: EncoderMemory, *, weights: bool = False
    ) -> tuple[Tensor, EncoderMemory, Tensor | None]:
        return super().step(tokens, state)


def test_without_attention_there_are_no_weights_and_no_coverage() -> None:
    model, a = Blind().eval(), annotations()
    assert all(isinstance(h, Hypothesis) and h.weights is None for s in search(model, a, weights=True) for h in s)
    with pytest.raises(ValueError, match="this one has none"):
        search(model, a, coverage_penalty=0.2)


def _small_translator(encoder: str, decoder: str) -> EncoderDecoder:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(TOKENS, TOKENS, ENCODERS[encoder], DECODERS[decoder], longest=64)
    return EncoderDecoder(config).eval().float()


@torch.no_grad()
@pytest.mark.parametrize("way", ["autocast", "bfloat16"])
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [(encoder, "Bahdanau") for encoder in ENCODERS] + [("bidirectional GRU", decoder) for decoder in DECODERS],
)
def test_a_search_in_bfloat16_scores_as_float32_does(encoder: str, decoder: str, way: str) -> None:
    """Under autocast and with a model in bfloat16: the score of what it finds is the model's, but for the rounding."""
    model, pairs = _small_translator(encoder, decoder), batch()
    annotations = model.encode(pairs.source, pairs.source_lengths)
    half = copy.deepcopy(model).bfloat16() if way == "bfloat16" else model
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        found = search(half, half.encode(pairs.source, pairs.source_lengths), beams=3, longest=6)
    tokens = [several[0].tokens for several in found]
    again = search(model, annotations, beams=3, longest=6, prefixes=tokens)
    for (hypothesis, *_), (exact, *_) in zip(found, again, strict=True):
        if exact.tokens == hypothesis.tokens:  # a prefix that could go on may do so
            assert hypothesis.score == pytest.approx(exact.score, rel=2**-6)
    assert any(a[0].tokens == b[0].tokens for a, b in zip(found, again, strict=True))
