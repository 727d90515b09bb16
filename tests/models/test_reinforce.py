"""Hard attention by enumeration: the gradient it learns by is, on average, that of the expected log-likelihood."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from regard.attention import Hard
from regard.models import Annotations, ShowAttendTellDecoderConfig, show_attend_tell_decoder
from regard.models.decoder import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_entropy_is_what_it_is(decoder: show_attend_tell_decoder.ShowAttendTellDecoder) -> None:
    vectors, h = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    state = decoder.start(Annotations(vectors, torch.tensor([5, 3]), vectors.mean(1)))
    looked = decoder.look(h, state)
    alpha = state.memory.energies(state.memory.query(h[:, None])).softmax(-1)
    for row, length in enumerate((5, 3)):
        expected = torch.distributions.Categorical(alpha[row, 0, :length]).entropy()
        torch.testing.assert_close(looked.entropy[row], expected)
    looked.entropy.sum().backward()  # −∞ on padding leaves no NaN behind
    assert all(p.grad is None or p.grad.isfinite().all() for p in decoder.parameters())


def test_in_evaluation_the_best_place_is_taken(
    decoder: show_attend_tell_decoder.ShowAttendTellDecoder, batch: SimpleNamespace
) -> None:
    decoder.eval()
    first = decoder(batch.given, batch.annotations, weights=True)
    again = decoder(batch.given, batch.annotations, weights=True)
    assert torch.equal(first.features, again.features)
    assert set(first.weights.unique().tolist()) == {0.0, 1.0}
    assert decoder.extra(first, batch.wanted, batch.real) is None
