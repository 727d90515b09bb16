"""The masks and modifiers of the steps of one generation, joined into those of one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from ...attention import Bias, dense
from .interval_mask import intervals

if TYPE_CHECKING:
    from torch import Tensor

    from ...attention import Mask
    from ...attention.energies.modifiers import Modifier
    from .call import Step


def joined_mask(steps: list[Step], batch: tuple[int, ...], keys: int) -> Mask | None:
    """Every step sees the keys there were, less those its own mask closes."""
    starts, stops, rules = [], [], []
    for step in steps:
        count = step.q.shape[-2]
        start = torch.full((count,), step.first)
        stop = start + step.keys
        offset = None if step.mask is None else step.mask.causal_offset
        if offset is not None:
            stop = torch.minimum(stop, start + torch.arange(count) + 1 + offset)
        starts.append(start)
        stops.append(stop)
        rules.append(step.mask if offset is None else None)
    whole = intervals(torch.cat(starts), torch.cat(stops), keys)
    if all(rule is None for rule in rules):
        return whole
    device = steps[0].q.device
    blocks = []
    for step, rule in zip(steps, rules, strict=True):
        count = step.q.shape[-2]
        seen = torch.ones(1, 1, dtype=torch.bool, device=device)
        if rule is not None:
            seen = rule.dense(batch, count, step.keys, device)
        blocks.append(_wide(seen, count, step, keys, True))
    closed = dense(_stacked(blocks))
    return closed if whole is None else whole & closed


def joined_modifiers(steps: list[Step], keys: int) -> tuple[Modifier, ...]:
    """Biases of each step one under the other; what no step could see stays 0, where the mask closes it."""
    joined: list[Modifier] = []
    for at, modifier in enumerate(steps[0].modifiers):
        biases = [(step, step.modifiers[at].added) for step in steps]
        blocks = [_wide(bias, step.q.shape[-2], step, keys, 0.0) for step, bias in biases if bias is not None]
        joined.append(Bias(_stacked(blocks)) if blocks else modifier)
    return tuple(joined)


def _wide(x: Tensor, queries: int, step: Step, keys: int, fill: float) -> Tensor:
    """[..., queries, keys] from what broadcasts to [..., queries, step.keys]."""
    x = x.expand(*x.shape[:-2], queries, step.keys)
    return pad(x, (step.first, keys - step.first - step.keys), value=fill)


def _stacked(blocks: list[Tensor]) -> Tensor:
    lead = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks))
    return torch.cat([block.expand(*lead, *block.shape[-2:]) for block in blocks], dim=-2)
