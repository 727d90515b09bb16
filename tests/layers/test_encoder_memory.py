"""Encoder memory against `attend`, local attention against Luong et al. 2015, and hard attention by enumeration.

The gradient that hard attention learns by is, on average, that of the expected log-likelihood.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from regard import Additive, Concat, Dot, General, attend, padding
from regard.attention import Hard
from regard.layers import EncoderMemory, LocalAttention, RecurrentCell
from regard.layers.encoder_memory import SoftHardAttention
from regard.models import Annotations, ShowAttendTellDecoderConfig, show_attend_tell_decoder
from regard.models.decoder import cross_entropy
from tests.support.gradients import grads, leaf

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    "energy", [Additive(4, 5, 6), Concat(4, 5, 6), General(4, 5), Dot()], ids=lambda e: type(e).__name__
)
def test_memory_says_what_attend_says(energy: nn.Module) -> None:
    """Three looks in a loop, one after the other, are three queries at once: outputs, weights, gradients."""
    if isinstance(energy, nn.Module):
        energy = energy.double()
    vectors, lengths = leaf(2, 7, 4 if isinstance(energy, Dot) else 5), torch.tensor([7, 3])
    q = leaf(2, 3, 4)
    learned = list(energy.parameters()) if isinstance(energy, nn.Module) else []
    memory, matrix = EncoderMemory.project(energy, vectors, lengths), getattr(energy, "query_matrix", None)  # type: ignore[arg-type]
    looks = [memory.attend(at[:, None] if matrix is None else (at @ matrix.mT)[:, None]) for at in q.unbind(1)]
    got = torch.cat([z for z, _ in looks], 1)
    want, w = attend(q, vectors, vectors, energy=energy, mask=padding(lengths), weights=True, backend="reference")
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.cat([p for _, p in looks], 1), w.dense())
    upstream = torch.randn_like(want)
    a = grads((got * upstream).sum(), q, vectors, *learned)
    b = grads((want * upstream).sum(), q, vectors, *learned)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "energy", [Additive(4, 4, 4), Concat(4, 4, 4), General(4, 4), Dot()], ids=lambda e: repr(e)[:4]
)
def test_loops_in_float32_run_and_learn_under_autocast(energy: nn.Module) -> None:
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    q = torch.randn(2, 1, 4)
    plain = EncoderMemory.project(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = EncoderMemory.project(energy, vectors, torch.tensor([3, 2])).attend(q)[0]  # type: ignore[arg-type]
        cell = RecurrentCell("gru", 3, 4, 4)
        unrolled = cell.unroll(torch.float32)
        hidden = (torch.zeros(2, 4),)
        hidden = unrolled.step(torch.randn(2, 12), mixed[:, 0], unrolled.recall(hidden)[0], hidden)
    torch.testing.assert_close(mixed.float(), plain, rtol=0.03, atol=0.03)
    (mixed.float().sum() + hidden[0].float().sum()).backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_loops_run_where_there_is_no_autocast() -> None:
    with torch.device("meta"):
        z, weights = EncoderMemory.project(
            Additive(4, 4, 4), torch.empty(2, 3, 4), torch.empty(2, dtype=torch.long)
        ).attend(torch.empty(2, 1, 4))
    assert (z.shape, weights.shape) == ((2, 1, 4), (2, 1, 3))


def test_a_sentence_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one place to attend to; the shortest has 0"):
        EncoderMemory.project(Dot(), torch.randn(2, 3, 4), torch.tensor([3, 0]))


def test_local_windows_are_luongs() -> None:
    lengths, places = torch.tensor([9, 4]), torch.arange(9)
    h = torch.randn(2, 1, 6)
    closed, scale = LocalAttention(6, 2, "local-m")(h, 5, lengths, places)
    assert scale is None
    assert (closed[0, 0] == 0).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert (closed[1, 0] == 0).nonzero().flatten().tolist() == [1, 2, 3, 4, 5]  # stays at the last word, 3
    predictive = LocalAttention(6, 2, "local-p")
    closed, scale = (x.detach() for x in predictive(h, 5, lengths, places))
    for b, length in enumerate(lengths.tolist()):
        middle = length * torch.sigmoid(predictive.outer(torch.tanh(predictive.inner(h[b, 0])))).item()
        for s in places.tolist():
            assert (closed[b, 0, s] == 0) == (abs(s - middle) <= 2)
            assert math.isclose(scale[b, 0, s], math.exp(-((s - middle) ** 2) / (2 * 1.0**2)), rel_tol=1e-4)


PLACES, STEPS, WORDS = 3, 3, 6


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> show_attend_tell_decoder.ShowAttendTellDecoder:
    """In double precision, without dropout, and every sentence draws."""
    monkeypatch.setattr(show_attend_tell_decoder, "EXPECTED", 0.0)
    torch.manual_seed(3)
    how = ShowAttendTellDecoderConfig(
        attention="hard", reward=1.0, entropy=0.0, hidden=4, embedding=5, width=4, dropout=0.0
    )
    made = show_attend_tell_decoder.ShowAttendTellDecoder(how, WORDS, 4).double()
    with torch.no_grad():
        for parameter in made.parameters():  # far from uniform, so that where it looks matters
            parameter.mul_(3)
    return made.train()


@pytest.fixture
def batch() -> SimpleNamespace:
    vectors = torch.randn(1, PLACES, 4, dtype=torch.float64)
    return SimpleNamespace(
        annotations=Annotations(vectors, torch.tensor([PLACES]), vectors.mean(1)),
        given=torch.tensor([[1, 4, 5]]),
        wanted=torch.tensor([[4, 5, 2]]),
        real=torch.ones(1, STEPS, dtype=torch.bool),
    )


def _forced(monkeypatch: pytest.MonkeyPatch, places: tuple[int, ...]) -> None:
    """The next draws, whatever their chance."""
    order: Iterator[int] = iter(places)
    monkeypatch.setattr(Hard, "state", lambda self, e, generator=None: torch.full(e.shape[:-1], next(order)))


def _loss(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> tuple[Tensor, Tensor, Tensor]:
    """What is minimised, log p(y | s) with its gradient, and log p(s)."""
    decoded = decoder(batch.given, batch.annotations)
    nll = cross_entropy(decoded.features, decoder.output.weight, batch.wanted, batch.real).total
    extra = decoder.extra(decoded, batch.wanted, batch.real)
    assert extra is not None
    return nll + extra, -nll, decoded.log_prob.sum()


def test_the_expected_gradient_is_that_of_the_expectation(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """∇ Σ_s p(s) log p(y | s) = Σ_s p(s) [∇ log p(y | s) + (log p(y | s) − b) ∇ log p(s)], for any b."""
    parameters = list(decoder.parameters())
    expectation, chances = torch.zeros((), dtype=torch.float64), []
    averaged = [torch.zeros_like(p) for p in parameters]
    likelihoods = []
    for places in itertools.product(range(PLACES), repeat=STEPS):
        _forced(monkeypatch, places)
        _, reward, log_prob = _loss(decoder, batch)
        expectation = expectation + log_prob.exp() * reward
        chances.append(log_prob.exp().item())
        likelihoods.append(reward.item())
        with torch.no_grad():
            decoder.baseline.fill_(-1.7)  # any number will do
        _forced(monkeypatch, places)
        total, _, _ = _loss(decoder, batch)
        for into, gradient in zip(averaged, torch.autograd.grad(total, parameters), strict=True):
            into += chances[-1] * gradient
    assert sum(chances) == pytest.approx(1)
    assert max(likelihoods) - min(likelihoods) > 0.5  # or there would be nothing to learn from where it looks
    exact = torch.autograd.grad(-expectation, parameters)
    for (name, _), result, wanted in zip(decoder.named_parameters(), averaged, exact, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")
    # And it is the attention's own parameters that learn by the reward: the likelihood alone tells them nothing.
    assert exact[[name for name, _ in decoder.named_parameters()].index("energy.weight")].abs().max() > 1e-3


def test_places_are_drawn_as_often_as_they_weigh(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> None:
    many = batch.annotations.select(torch.zeros(4000, dtype=torch.long))
    decoded = decoder(batch.given[:, :1].expand(4000, 1), many)
    assert set(decoded.alphas.unique().tolist()) == {0.0, 1.0}
    seen = decoded.alphas[:, 0].mean(0)
    weighed = torch.zeros(PLACES, dtype=torch.float64)
    for place in range(PLACES):
        weighed[place] = decoded.log_prob[decoded.alphas[:, 0, place] == 1, 0].exp().mean()
    assert weighed.sum().item() == pytest.approx(1)
    assert (seen - weighed).abs().max() < 0.04


def test_the_baseline_moves_after_it_was_used(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> None:
    torch.manual_seed(0)
    _, reward, _ = _loss(decoder, batch)
    assert decoder.baseline.item() == pytest.approx(0.1 * reward.item() / STEPS)
    first = decoder.baseline.item()
    _, reward, _ = _loss(decoder, batch)
    assert decoder.baseline.item() == pytest.approx(0.9 * first + 0.1 * reward.item() / STEPS)


def test_a_look_is_rewarded_with_its_word_and_those_after_it(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forced(monkeypatch, (0, 2, 1))
    decoded = decoder(batch.given, batch.annotations)
    extra = decoder.extra(decoded, batch.wanted, batch.real)  # its baseline was 0
    (gradient,) = torch.autograd.grad(extra, decoded.log_prob, retain_graph=True)
    log_p = decoder.readout(decoded.features).log_softmax(-1).gather(-1, batch.wanted[..., None])[0, :, 0]
    rewards = torch.stack([log_p[step:].sum() for step in range(STEPS)]).detach()
    torch.testing.assert_close(-gradient[0], rewards)
    assert len({round(reward, 6) for reward in rewards.tolist()}) == STEPS


def test_padding_is_not_rewarded(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = []
    for extra in (0, 2):
        _forced(monkeypatch, (0, 2, 1, *(1,) * extra))
        more = torch.zeros(1, extra, dtype=torch.long)
        given, wanted = (torch.cat([row, more], 1) for row in (batch.given, batch.wanted))
        decoder.baseline.fill_(-1.7)
        penalty = decoder.extra(decoder(given, batch.annotations), wanted, torch.cat([batch.real, more.bool()], 1))
        result.append((penalty, decoder.baseline.clone()))
    torch.testing.assert_close(result[0], result[1], rtol=1e-12, atol=0)


def test_rows_that_fill_a_batch_change_nothing(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> None:
    decoded = decoder(batch.given, batch.annotations)
    assert decoder.extra(decoded, batch.wanted, torch.zeros_like(batch.real)).item() == 0
    assert decoder.baseline.item() == 0


def test_half_the_sentences_learn_from_the_average(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show_attend_tell_decoder, "EXPECTED", 0.5)
    decoded = decoder(batch.given.expand(400, -1), batch.annotations.select(torch.zeros(400, dtype=torch.long)))
    whole = (decoded.alphas.amax(-1) == 1).all(1)
    assert (whole == decoded.sampled).all()
    assert 150 < whole.sum() < 250
    soft = decoded.alphas[~whole]
    torch.testing.assert_close(soft.sum(-1), torch.ones_like(soft[..., 0]))
    # Only what was drawn is rewarded.
    wanted, real = batch.wanted.expand(400, -1), batch.real.expand(400, -1)
    assert decoder.extra(decoded, wanted, real & ~whole[:, None]).item() == 0
    assert decoder.extra(decoded, wanted, real & whole[:, None]).item() != 0


def test_a_warm_up_goes_from_the_average_to_draws(batch: SimpleNamespace) -> None:
    how = ShowAttendTellDecoderConfig(attention="hard", warmup=4, hidden=4, embedding=5, width=4, dropout=0.0)
    decoder = show_attend_tell_decoder.ShowAttendTellDecoder(how, WORDS, 4).double().train()
    many = batch.annotations.select(torch.zeros(2000, dtype=torch.long))
    given, wanted, real = (rows.expand(2000, -1) for rows in (batch.given, batch.wanted, batch.real))
    shares = []
    for _ in range(6):
        decoded = decoder(given, many)
        shares.append(1 - decoded.sampled.double().mean().item())
        decoder.extra(decoded, wanted, real)
        decoder.extra(decoded, wanted, real)  # an update may have several batches
        decoder.updated()
    assert shares == pytest.approx([1, 0.875, 0.75, 0.625, 0.5, 0.5], abs=0.04)
    assert shares[0] == 1
    assert decoder.updates.item() == 6


def test_entropy_is_what_it_is(batch: SimpleNamespace) -> None:
    energy = Additive(4, 4, 4).double()
    looks = SoftHardAttention("hard").double().train()
    vectors = torch.randn(2, 5, 4, dtype=torch.float64)
    memory = EncoderMemory.project(energy, vectors, torch.tensor([5, 3]))
    q = torch.randn(2, 1, 4, dtype=torch.float64)
    result = looks(memory, q)
    alpha = memory.attend(q)[1]
    for row, length in enumerate((5, 3)):
        expected = torch.distributions.Categorical(alpha[row, 0, :length]).entropy()
        torch.testing.assert_close(result.entropy[row, 0], expected)
    result.entropy.sum().backward()  # −∞ on padding leaves no NaN behind
    assert all(p.grad is None or p.grad.isfinite().all() for p in energy.parameters())


def test_in_evaluation_the_best_place_is_taken(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> None:
    decoder.eval()
    first = decoder(batch.given, batch.annotations, weights=True)
    again = decoder(batch.given, batch.annotations, weights=True)
    assert torch.equal(first.features, again.features)
    assert set(first.weights.unique().tolist()) == {0.0, 1.0}
    assert decoder.extra(first, batch.wanted, batch.real) is None
