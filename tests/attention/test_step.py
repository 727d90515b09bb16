"""attend_step against `attend`: outputs, weights and gradients; what is written during the loop; what a watch sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard import (
    Additive,
    Alibi,
    Concat,
    Dot,
    Gaussian,
    General,
    Memory,
    Modified,
    attend,
    attend_step,
    padding,
    window,
)
from tests.support.gradients import grads, leaf
from tests.support.triton_interpreter import interpreted, skip_without_triton

ENERGIES = [Additive(4, 5, 6), Concat(4, 5, 6), General(4, 5), Dot(), Gaussian()]


@pytest.mark.parametrize("energy", ENERGIES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_steps_say_what_attend_says(energy: nn.Module, masked: bool) -> None:
    """Three steps of a loop, one after the other, are three queries at once: outputs, weights, gradients."""
    learned = list(energy.double().parameters()) if isinstance(energy, nn.Module) else []
    vectors, lengths, q = leaf(2, 7, 5 if learned else 4), torch.tensor([7, 4]), leaf(2, 3, 4)
    centers = torch.tensor([[1.0, 2, 3], [0, 1, 1]])
    memory = Memory(energy, vectors, lengths=lengths)
    steps = [
        attend_step(q[:, t], memory, mask=window(3, center=centers[:, t, None]) if masked else None) for t in range(3)
    ]
    got = torch.stack([z for z, _ in steps], 1)
    mask = padding(lengths) & window(3, center=centers) if masked else padding(lengths)
    want, w = attend(q, vectors, vectors, energy=energy, mask=mask, weights=True, backend="reference")
    torch.testing.assert_close(got, want)
    weights = torch.stack([p for _, p in steps], 1)
    torch.testing.assert_close(weights, w.dense())
    e = energy(q, vectors)
    e = e.masked_fill(~mask.dense((2,), 3, 7, e.device), -torch.inf)
    into_z, into_w = torch.randn_like(want), torch.randn_like(weights)
    a = grads((got * into_z).sum() + (weights * into_w).sum(), q, vectors, *learned)
    b = grads((want * into_z).sum() + (e.softmax(-1) * into_w).sum(), q, vectors, *learned)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("energy", ENERGIES, ids=lambda e: type(e).__name__)
def test_beams_share_the_memory_of_their_sentence(energy: nn.Module) -> None:
    if isinstance(energy, nn.Module):
        energy.double()
    vectors, q = leaf(3, 6, 5 if isinstance(energy, nn.Module) else 4), leaf(4, 4)
    rows, lengths = torch.tensor([2, 0]), torch.tensor([6, 2, 5])
    with torch.no_grad():
        z, w = attend_step(q, Memory(energy, vectors, lengths=lengths).select(rows))
        want, wanted = attend(
            q.view(2, 2, 4), vectors[rows], vectors[rows], energy=energy, mask=padding(lengths[rows]), weights=True
        )
    torch.testing.assert_close(z, want.flatten(0, 1))
    torch.testing.assert_close(w, wanted.dense().flatten(0, 1))


@pytest.mark.parametrize("energy", [Additive(4, 4, 6), Dot()], ids=lambda e: type(e).__name__)
def test_what_is_written_is_attended_to(energy: nn.Module) -> None:
    """Each entry may depend on what was read before; with gradients and without."""
    learned = list(energy.double().parameters()) if isinstance(energy, nn.Module) else []
    first, q = leaf(2, 4), leaf(2, 3, 4)

    def loop(memory: Memory) -> torch.Tensor:
        z, total = first, torch.zeros(2, 4, dtype=torch.float64)
        for t in range(3):
            memory.write(z, z.tanh())
            z, _ = attend_step(q[:, t], memory)
            total = total + (t + 1) * z
        return total

    def written_out() -> torch.Tensor:
        keys: list[torch.Tensor] = []
        z, total = first, torch.zeros(2, 4, dtype=torch.float64)
        for t in range(3):
            keys.append(z)
            k = torch.stack(keys, 1)
            z = (energy(q[:, t, None], k).softmax(-1) @ k.tanh())[:, 0]
            total = total + (t + 1) * z
        return total

    nothing = first.detach()[:, None][:, :0]
    got, want = loop(Memory(energy, nothing, room=3)), written_out()
    torch.testing.assert_close(got, want)
    with torch.no_grad():
        torch.testing.assert_close(loop(Memory(energy, nothing)), want)
    for mine, other in zip(grads(got.sum(), first, q, *learned), grads(want.sum(), first, q, *learned), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_memory_is_watched_like_attend() -> None:
    model = nn.Linear(1, 1)
    model.forward = lambda q, k: attend_step(q, Memory(Additive(4, 5, 6), k, lengths=torch.tensor([7, 3])))[0]  # type: ignore[method-assign]
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(2, 4), torch.randn(2, 7, 5))
    assert seen.faithful
    assert [call.shape for call in seen] == [(2, 1, 7)]


def test_asking_for_an_inputs_gradient_leaves_the_memory_alone() -> None:
    """As saliency and gradient penalties do."""
    energy, vectors, q = Additive(4, 5, 6).double(), leaf(2, 7, 5), leaf(2, 4)
    learned = (vectors, *energy.parameters())
    y = attend_step(q, Memory(energy, vectors))[0].square().sum()
    want = torch.autograd.grad(y, learned, retain_graph=True)
    torch.autograd.grad(y, q, retain_graph=True)
    for got, other in zip(torch.autograd.grad(y, learned), want, strict=True):
        torch.testing.assert_close(got, other, rtol=0, atol=0)


def test_what_a_broken_backward_pass_noted_does_not_count() -> None:
    energy = Additive(4, 4, 4).double()
    memory = Memory(energy, leaf(2, 3, 4), lengths=torch.tensor([3, 2]))
    breaks = True

    def stop(gradient: torch.Tensor) -> None:
        if breaks:
            raise RuntimeError("stop")

    state = first = leaf(2, 4)
    first.register_hook(stop)
    for _ in range(3):
        state = torch.tanh(state + attend_step(state, memory)[0])
    with pytest.raises(RuntimeError, match="stop"):
        state.sum().backward(retain_graph=True)
    breaks = False
    energy.zero_grad()
    state.sum().backward(retain_graph=True)
    first_grads = [parameter.grad.clone() for parameter in energy.parameters() if parameter.grad is not None]
    energy.zero_grad()
    state.sum().backward()
    again = [parameter.grad for parameter in energy.parameters() if parameter.grad is not None]
    assert len(first_grads) == len(again) == 3
    for a, b in zip(first_grads, again, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("energy", [Additive(4, 4, 4), General(4, 4), Dot()], ids=lambda e: type(e).__name__)
def test_steps_run_and_learn_under_autocast(energy: nn.Module) -> None:
    if isinstance(energy, nn.Module):
        energy.float()
    vectors, q = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 4)
    plain = attend_step(q, Memory(energy, vectors, lengths=torch.tensor([3, 2])))[0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend_step(q, Memory(energy, vectors, lengths=torch.tensor([3, 2])))[0]
    torch.testing.assert_close(mixed.float(), plain, rtol=0.03, atol=0.03)
    mixed.float().sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_steps_run_where_there_is_no_autocast() -> None:
    with torch.device("meta"):
        memory = Memory(Additive(4, 4, 4), torch.empty(2, 3, 4), lengths=torch.empty(2, dtype=torch.long))
        z, weights = attend_step(torch.empty(2, 4), memory)
    assert (z.shape, weights.shape) == ((2, 4), (2, 3))


def test_what_cannot_be_is_refused() -> None:
    k = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="at least one place to attend to; the shortest has 0"):
        Memory(Dot(), k, lengths=torch.tensor([3, 0]))
    with pytest.raises(ValueError, match="does not know at which position its query is"):
        Memory(Modified(Dot(), Alibi(2)), k)
    memory = Memory(Additive(4, 4, 4), k, room=1)
    memory.write(k[:, 0], k[:, 0])
    with pytest.raises(ValueError, match="made for 4 places"):
        memory.write(k[:, 0], k[:, 0])
    with pytest.raises(ValueError, match="places after the end are padding"):
        Memory(Dot(), k, lengths=torch.tensor([3, 1])).write(k[:, 0], k[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_energies_follow_the_formula(dtype: torch.dtype) -> None:
    skip_without_triton()
    with interpreted():
        from regard.attention.kernels import additive_triton

        torch.manual_seed(1)
        rounding = 2 * torch.finfo(dtype).eps
        q, keys, w, ge = (torch.randn(*shape).to(dtype) for shape in ((3, 20), (3, 19, 20), (20,), (3, 19)))
        e = additive_triton.step_energies(q, keys, w)
        q64, k64, w64 = (x.double().requires_grad_() for x in (q, keys, w))
        want = torch.tanh(q64[:, None] + k64) @ w64
        torch.testing.assert_close(e.double(), want, rtol=1e-5, atol=1e-5)
        sums = torch.zeros(3, 19, 20)
        for _ in range(2):  # a second step adds to the same sums
            to_q, to_w = additive_triton.add_gradients(ge, q, keys, w, sums)
        wanted = grads((want * ge).sum(), q64, k64, w64)
        torch.testing.assert_close(to_q.double(), wanted[0], rtol=8 * rounding, atol=8 * rounding)
        torch.testing.assert_close((sums * w).double(), 2 * wanted[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(to_w.double(), wanted[2], rtol=max(1e-4, rounding), atol=max(1e-4, rounding))


def test_triton_scores_read_a_tape_that_has_room_left() -> None:
    skip_without_triton()
    with interpreted():
        from regard.attention.kernels import additive_triton

        torch.manual_seed(1)
        room, sums = torch.randn(3, 9, 20), torch.zeros(3, 9, 20)
        q, w, g = torch.randn(3, 20), torch.randn(20), torch.randn(3, 5)
        whole = room[:, :5].clone()
        torch.testing.assert_close(
            additive_triton.step_energies(q, room[:, :5], w),
            torch.tanh(q[:, None] + whole) @ w,
            rtol=1e-5,
            atol=1e-5,
        )
        other = torch.zeros(3, 5, 20)
        wanted = additive_triton.add_gradients(g, q, whole, w, other)
        torch.testing.assert_close(additive_triton.add_gradients(g, q, room[:, :5], w, sums[:, :5]), wanted)
        torch.testing.assert_close(sums[:, :5], other)
        assert sums[:, 5:].abs().max() == 0
        with pytest.raises(ValueError, match="they must be equal"):
            additive_triton.add_gradients(g, q, room[:, :5], w, other)
