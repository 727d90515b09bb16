"""Fidelity: how far W·v of a recorded call is from the output that the model computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .call import Call

BUDGET = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The rounding error that weights may have, as a share of what depends on them: of the output less the mean value."""
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""The rounding error of the output itself, as a share of all of it."""


class MeasuredFidelity(NamedTuple):
    """The error |W·v − out| / |out|, and how much of it rounding explains; `error` is None if it cannot be measured.

    `budget` depends on the call: where all values are similar, any weights give nearly the same output, so a wrong
    mask changes it little, and less is allowed.
    """

    error: float | None
    budget: float
    remark: str = ""
    """Why it cannot be measured, or that it was read from a trace."""
    lost: bool = False
    """What the weights depend on was changed since, so that they cannot be computed either."""

    @property
    def faithful(self) -> bool | None:
        """Whether these are the weights that the model used; None if that cannot be measured."""
        if self.error is None:
            return False if self.lost else None
        return self.error <= self.budget


def measure_fidelity(call: Call) -> MeasuredFidelity:
    """The error of the worst head, on the outputs kept."""
    rows, out = call.outputs()
    budget, first = BUDGET[out.dtype], call.record
    if first.measured is not None:
        # In a trace, whose steps are counted, it is what the file says.
        return MeasuredFidelity(first.measured, first.budget or budget, "" if first.steps is None else "recorded")
    call.check_unchanged()
    if first.dropout:
        return MeasuredFidelity(None, budget, f"dropout {first.dropout:g}")
    if not out.numel():
        return MeasuredFidelity(None, budget, "output not seen")
    part, v, after = call.weights.rows(rows.tolist()), call.v, first.after
    mean = v.mean(dim=-2, dtype=torch.float32)  # [*batch, D_v]: the output of uniform weights
    groups = first.energies.groups
    if groups > 1 and mean.shape[-2] != part.shape[-3]:
        mean = mean.repeat_interleave(groups, dim=-2)
    if after is None:
        stats = part.stats(fidelity=(v, out), on=range(call.shape[-1]))
        assert stats.fidelity is not None
        assert stats.on is not None
        uniform = stats.on[..., None].float() * mean[..., None, :]
        error, whole = stats.fidelity, out.float().norm(dim=(-2, -1))
        moved = (out.float() - uniform).norm(dim=(-2, -1))
    else:
        w, at = part.tile(slice(None), slice(None)).to(v.dtype), rows.to(out.device)
        error = (after(w @ v, at) - out).norm() / out.norm()
        # What attention contributes, behind a residual and all that follows it.
        uniform = after((w.sum(dim=-1, keepdim=True) * mean[..., None, :].to(v.dtype)), at)
        whole, moved = out.float().norm(), (out.float() - uniform.float()).norm()
    allowed = (budget * moved / whole.clamp_min(1e-30)).clamp_max(budget) + ROUNDING[out.dtype]
    worst = int((error / allowed).nan_to_num(torch.inf).argmax())
    return MeasuredFidelity(float(error.flatten()[worst]), float(allowed.flatten()[worst]))
