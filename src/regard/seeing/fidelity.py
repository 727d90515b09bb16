"""The fidelity of a call: |W·v − out| / |out|, and whether this comparison can tell weights from other weights.

Where all values that a query sees are alike, any weights give the same output; where it sees one key, its weight is 1
whatever queries and keys are. Then a small error proves nothing, and the verdict is None.

Even where it can tell, W·v alone is compared: of T_k keys whose values are d wide, weights may be moved by anything in
the null space of V (which has T_k − d dimensions or more) without a change of W·v. Of queries and keys that the model
used, with its function, such weights do not follow; of a matrix in a file, only its file says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..attention.parts import positions, unravel
from ..attention.statistics import flat_outputs
from ..attention.weights import Weights
from .generation_passes import CLOSED

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..attention.energy_matrix import EnergyMatrix
    from .call import Call

BUDGET = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The rounding error that weights may have, as a share of what depends on them: of the output less the mean value."""
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""The rounding error of the output itself, as a share of all of it."""
TELLING = 4.0
"""How many times the rounding error the values of a row must differ by, so that other weights would be noticed."""
PLAIN = 1e-12, 1e12
"""Values of this size are squared without overflow; others are scaled by a power of two first."""
BLOCK = 1 << 24
"""Values that are looked at together."""
ONE_KEY = "every query compared sees one key, whose weight is 1 whatever queries and keys are"


class MeasuredFidelity(NamedTuple):
    """The error |W·v − out| / |out|, and how much of it rounding explains; `error` is None if it cannot be measured.

    `budget` depends on the call: if all values are similar, any weights give nearly the same output, so a wrong
    mask changes it little, and less is allowed.
    """

    error: float | None
    budget: float
    remark: str = ""
    """Why it cannot be measured or cannot tell, or that it was read from a trace."""
    lost: bool = False
    """What the weights depend on was changed since, so that they cannot be computed either."""
    recorded: bool = False
    """Read from a trace, where it cannot be measured again: a claim of whoever wrote the file, not a proof."""
    rows: int = 0
    """How many queries were compared."""
    untold: str = ""
    """Why other weights could have given this output as well; empty where they could not."""

    @property
    def faithful(self) -> bool | None:
        """Whether these are the weights that the model used; None if that cannot be measured here."""
        if self.error is None:
            return False if self.lost else None
        within = self.error <= self.budget
        return None if within and (self.recorded or self.untold) else within


def measure_fidelity(call: Call) -> MeasuredFidelity:
    """The error of the worst head, on the outputs kept."""
    rows, out = call.outputs()
    budget = BUDGET[coarsest(out.dtype, call.own.a.dtype)]
    compared = len(set(rows.tolist()))
    stored = call.is_stored
    if call.measured is not None:
        remark = "recorded" if stored else call.untold
        return MeasuredFidelity(
            call.measured, call.budget or budget, remark, recorded=stored, rows=compared, untold=call.untold
        )
    call.check_unchanged()
    if call.dropout:
        return MeasuredFidelity(None, budget, f"dropout {call.dropout:g}")
    if not out.numel():
        return MeasuredFidelity(None, budget, "output not seen")
    if stored and call.weights.kernel_state is not None:
        # The row state of a trace is a number in a file: the weights must follow from queries and keys alone as well.
        computed = _compare(call, Weights(call.energies, call.normalize), rows, out)
        if not computed.faithful:
            return computed
    return _compare(call, call.weights, rows, out)


def _compare(
    call: Call, weights: Weights, rows: Int[Tensor, " rows"], out: Float[Tensor, "*batch rows d_v"]
) -> MeasuredFidelity:
    """|W·v − out| / |out| of the worst head, on these rows."""
    v, own, after = call.v, call.own, call.after
    dtype = coarsest(out.dtype, own.a.dtype)  # weights of float32 may be multiplied with values in float64
    part = weights.rows(rows.tolist())
    quantum = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    if after is None:
        v, out, factor = _scaled(v, out)
        quantum *= factor
    mean = v.mean(dim=-2, dtype=torch.promote_types(v.dtype, torch.float32))  # [*batch, D_v]: of uniform weights
    if own.groups > 1 and mean.shape[-2] != part.shape[-3]:
        mean = mean.repeat_interleave(own.groups, dim=-2)
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
    whole = whole.clamp_min(1e-30)
    allowed = (BUDGET[dtype] * moved / whole).clamp_max(BUDGET[dtype]) + ROUNDING[dtype]
    # Numbers below the smallest normal one have fewer bits: an output may be rounded to zero.
    allowed = allowed + quantum * (out.shape[-1] * out.shape[-2] * weights.keys) ** 0.5 / whole
    worst = int((error / allowed).nan_to_num(torch.inf).argmax())
    untold = "" if bool((error > allowed).any()) else _untold(part, v, out if after is None else None, dtype, quantum)
    found = float(error.flatten()[worst]), float(allowed.flatten()[worst])
    return MeasuredFidelity(*found, untold, rows=len(set(rows.tolist())), untold=untold)


def _scaled(v: Tensor, out: Tensor) -> tuple[Tensor, Tensor, float]:
    """Values and outputs times one power of two, and this factor: what is near the limits of float32 is squared."""
    largest = float(v.abs().amax()) if v.numel() else 0.0
    if not 0 < largest < torch.inf or PLAIN[0] < largest < PLAIN[1]:
        return v, out, 1.0
    factor = 2.0 ** -round(torch.tensor(largest, dtype=torch.float64).log2().item())
    kind = torch.promote_types(v.dtype, torch.float64)
    v, out = ((x.to(kind) * factor).to(torch.promote_types(x.dtype, torch.float32)) for x in (v, out))
    return v, out, factor


def _untold(part: Weights, v: Tensor, out: Tensor | None, dtype: torch.dtype, quantum: float) -> str:
    """Why the rows compared cannot tell these weights from others; empty where those of every matrix can.

    A row tells if the values of the keys that it sees differ by more than rounding. A matrix whose rows all see one key
    has nothing to tell, and is left out if others have.
    """
    v = v if out is None else flat_outputs(part, v, out)[0]
    v = v.reshape(-1, *v.shape[-2:]) if out is None else v
    energies = part.flat()
    left = torch.arange(len(part.entries))
    one_key = torch.ones(len(left), dtype=torch.bool)
    deep = max(1, BLOCK // max(1, v.shape[-2] * v.shape[-1]))  # as many matrices at a time
    for row in reversed(dict.fromkeys(part.queries)):  # the last queries usually see the most keys
        tells = torch.zeros(len(left), dtype=torch.bool)
        for start in range(0, len(left), deep):
            n = left[start : start + deep].to(v.device)
            seen = _seen(energies, n, row)
            count = seen.sum(-1)
            own = v[n % len(v)].to(torch.promote_types(v.dtype, torch.float32)).masked_fill(~seen[..., None], 0)
            mean = own.sum(-2) / count.clamp_min(1)[:, None]
            spread = own.sub_(mean[:, None]).masked_fill_(~seen[..., None], 0).norm(dim=(-2, -1))
            rounding = ROUNDING[dtype] * mean.norm(dim=-1) + quantum * v.shape[-1] ** 0.5
            tells[start : start + deep] = (spread > TELLING * rounding * count.clamp_min(1).sqrt()).cpu()
            one_key[left[start : start + deep]] &= (count < 2).cpu()
        left = left[~tells]
        if not len(left):
            return ""
    alike = left[~one_key[left]]
    if len(alike):
        return f"the values of {len(alike)} of {len(one_key)} matrices are alike: other weights give this output too"
    return ONE_KEY if len(left) == len(one_key) else ""


def _seen(energies: EnergyMatrix, n: Int[Tensor, " n"], row: int) -> Bool[Tensor, "n k"]:
    """Which keys one query sees in each of these matrices: those that no mask closes, as booleans or as numbers."""
    i, j = torch.tensor([[row]], device=n.device), positions(slice(0, energies.keys), n.device)
    batch = unravel(n, energies.batch)
    seen = torch.ones(len(n), 1, energies.keys, dtype=torch.bool, device=n.device)
    for modifier in energies.modifiers:
        if modifier.added is not None:
            seen = seen & (modifier(torch.zeros(seen.shape, device=n.device), batch, i, j) > CLOSED)
    if energies.mask is not None:
        seen = seen & energies.mask(batch, i, j)
    return seen[:, 0]


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The floating-point type of the largest rounding error."""
    return max((x for x in dtypes if x in BUDGET), key=BUDGET.__getitem__)
