"""WrittenScores: how a module that writes out its attention computed the input of its softmax.

A product of queries and keys, followed by steps that act on each score alone: a scale, a mask, a cast, the sum with
another product. From these the weights are computed again, rounding included, so that the T_q × T_k matrix need not be
kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....attention import Bias, Softmax, Weights, dense
from ....attention.energies.energy_forms import DotForm
from ....attention.energies.lazy_energy_matrix import EnergyMatrix
from ....attention.tensor_versions import version_of
from ..attention_call import BUDGET
from ..call_inputs_and_output import CLOSED, SHORT, Record, Rounded, evenly_spaced
from ..computed_weights import IN_ITS_OWN_CODE
from ..interval_mask import intervals_of
from ..tensor_product import einsum_product
from .added_product import AddedProduct, columns_of
from .recent_masks import shorten_masks

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ....attention import Mask, Modifier

HALF = (torch.float16, torch.bfloat16)
MOVE_KINDS = ("shift", "gather", "transpose")
"""Steps that move scores to other rows and columns."""
ROWS = 8
"""Rows of the matrix with which the recomputed weights are compared, where nothing can be wrong in one row alone."""
BLOCK = 256
"""Rows that are compared at a time where all are."""


class NotRecomputableError(ValueError):
    """The weights cannot be computed again from queries and keys; the message says why."""


class ScoreStep(NamedTuple):
    """A step that acts on each score alone."""

    kind: str
    """ "scale": times `number`; "add": plus `number` · `tensor`; "close": `number` where `tensor` is `closed`; "gate":
    times `tensor`, of zeros and ones; "floor": at least `number`; "cast": to another type; "sum": plus `addend`;
    "shift": column j of row i is column `tensor`[j − `stride` · (i − T_q + 1)]; "gather": it is column `tensor`[i, j];
    "transpose": rows and columns change places."""
    shape: tuple[int, ...]
    """That of the scores, [..., T_q, T_k]."""
    dtype: torch.dtype
    """That of the scores after it."""
    number: float | Tensor = 1.0
    tensor: Tensor | None = None
    closed: bool = True
    version: int | None = None
    """How often `tensor` had been changed in place."""
    addend: WrittenScores | None = None
    stride: int = 1

    def closes_keys(self) -> bool:
        """Whether some scores are so low after it that their keys get no weight."""
        if self.kind == "add" and self.tensor is not None and self.tensor.numel():
            least, most = (float(x) * float(self.number) for x in self.tensor.detach().aminmax())
            return min(least, most) <= CLOSED
        return self.kind == "close"


class WrittenScores(NamedTuple):
    """A product and the steps after it, by reference."""

    operands: tuple[Tensor, Tensor]
    versions: tuple[int | None, int | None]
    equation: str | None
    """Of einsum; None for a product of matrices."""
    scale: float
    shape: tuple[int, ...]
    """That of the scores now."""
    dtype: torch.dtype
    """That of the product."""
    steps: tuple[ScoreStep, ...] = ()
    memory_accesses: int = 0
    """The thread's `memory_accesses` when the product was computed."""
    fused: bool = False
    """Whether the first step is part of the product's kernel (`baddbmm`), which rounds once after it."""

    def then(self, kind: str, result: Tensor, **options: Any) -> WrittenScores:
        """The scores after one more step, whose result has the shape of the scores."""
        tensor = options.get("tensor")
        version = None if tensor is None else version_of(tensor)
        step = ScoreStep(kind, self.shape, result.dtype, version=version, **options)
        return self._replace(steps=(*self.steps, step))

    def products(self) -> list[WrittenScores]:
        """This and all products that were added to it."""
        added = [step.addend.products() for step in self.steps if step.addend is not None]
        return [self, *(x for part in added for x in part)]

    def can_be_added(self) -> bool:
        """Whether the product can be added to another: it was only scaled, cast, moved or added to another."""
        return not self.fused and all(step.kind in ("scale", "cast", "sum", *MOVE_KINDS) for step in self.steps)

    def is_moved(self) -> bool:
        """Whether its rows and columns are no longer those of queries and keys."""
        return any(step.kind in MOVE_KINDS for step in self.steps)

    def contains(self, other: WrittenScores) -> bool:
        """Whether these scores were computed from those of `other`, or from some that `other` is made of."""
        return any(
            x.operands[0] is other.operands[0]
            and x.operands[1] is other.operands[1]
            and len(x.steps) >= len(other.steps)
            and all(a is b for a, b in zip(x.steps, other.steps, strict=False))
            for x in self.products()
        )

    def has_steps_on_closed_keys(self) -> bool:
        """Whether steps act on keys that an earlier one closed.

        Two masks can close all keys of a query together, and a scale or a floor can open keys again. A gate sets scores
        to zero, which closes no key unless a bias is added. What is then computed again is right or wrong row by row.
        """
        closed = False
        for step in self.steps:
            if step.kind in ("gate", "floor") or (closed and step.kind != "cast"):
                return True
            closed = closed or step.closes_keys()
        return False

    def leading(self) -> tuple[int, ...]:
        """The leading axes where they are most: those that a reshape merged later are told apart."""
        return max((self.shape[:-2], *(step.shape[:-2] for step in self.steps)), key=len)

    def energies(self, batch: tuple[int, ...]) -> EnergyMatrix:
        """The energies with these leading axes; NotRecomputableError if they cannot be made of steps that are known."""
        q, k = self._queries_and_keys(batch)
        scale, dtype, mask, gate = self.scale, self.dtype, None, None
        modifiers = [] if self.fused else _rounding(dtype)
        for step in self.steps:
            if step.tensor is not None and version_of(step.tensor) != step.version:
                raise NotRecomputableError("a mask or bias was changed in place after its use")
            number = float(step.number)
            if step.kind == "scale" and not modifiers:
                scale *= number
            elif step.kind == "scale":
                modifiers = _scaled(modifiers, number, step.dtype)
            elif step.kind == "add":
                assert step.tensor is not None
                added = _aligned(step.tensor, step.shape, batch)
                # `baddbmm` may be given a matrix of zeros, and what a gate closed may be lowered after it.
                of_open = added if gate is None else added.where(gate != 0, 0)
                if added.numel() < SHORT or bool(of_open.any()):
                    modifiers.append(Bias(added if number == 1 else added * number))
                modifiers += _rounding(step.dtype)
            elif step.kind == "sum":
                assert step.addend is not None
                modifiers += [step.addend.added_product(batch), *_rounding(step.dtype)]
            elif step.kind in MOVE_KINDS:
                raise NotRecomputableError("its scores are moved along the keys")
            elif step.kind == "close":
                mask = _joined(mask, _mask_of(step, batch))
            elif step.kind == "gate":
                assert step.tensor is not None
                gate = _aligned(step.tensor, step.shape, batch)
                if not bool(((gate == 0) | (gate == 1)).all()):
                    raise NotRecomputableError("its scores are multiplied by a matrix")
                mask = _joined(mask, _mask_of(step._replace(tensor=step.tensor == 0), batch))
            elif step.dtype != dtype:
                modifiers += _rounding(step.dtype)
            dtype = step.dtype
            if step.kind in ("close", "floor") and not number <= CLOSED:
                raise NotRecomputableError(f"its scores are set to {number:g}, which closes no key")
        return EnergyMatrix(q, k, DotForm(scale), batch, tuple(modifiers), mask)

    def added_product(self, batch: tuple[int, ...]) -> AddedProduct:
        """The product as a part of other scores, with these leading axes."""
        a, b = self._queries_and_keys(batch)
        scale, dtype, columns, stride, transposed, plus = self.scale, self.dtype, None, 1, False, None
        rounding = _rounding(dtype)
        of_product: list[Modifier] = []
        for step in self.steps:
            if step.tensor is not None and version_of(step.tensor) != step.version:
                raise NotRecomputableError("positions were changed in place after their use")
            if step.kind == "scale" and not rounding and plus is None:
                scale *= float(step.number)
            elif step.kind == "scale":
                rounding = _scaled(rounding, float(step.number), step.dtype)
            elif step.kind == "shift" and columns is None and not transposed and plus is None:
                columns, stride = step.tensor, step.stride
            elif step.kind == "gather" and columns is None and not transposed and plus is None:
                columns = _columns_of(step)
            elif step.kind == "transpose" and plus is None:
                transposed = not transposed
            elif step.kind == "sum" and plus is None:
                assert step.addend is not None
                plus, of_product, rounding = step.addend.added_product(batch), rounding, _rounding(step.dtype)
            elif step.kind == "cast":
                rounding += _rounding(step.dtype) if step.dtype != dtype else []
            else:
                raise NotRecomputableError(f"a product that is added to its scores is changed before ({step.kind})")
            dtype = step.dtype
        first, second = (rounding, of_product) if plus is None else (of_product, rounding)
        steps, after = ([(x.dtype, x.scale) for x in part if isinstance(x, Rounded)] for part in (first, second))
        return AddedProduct(a, b, scale, steps, columns, stride, transposed, plus, after)

    def _queries_and_keys(self, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if any(version_of(x) != version for x, version in zip(self.operands, self.versions, strict=True)):
            raise NotRecomputableError("queries or keys were changed in place after their product")
        a, b = (x.detach().to(self.dtype) for x in self.operands)  # autocast casts them as well
        if self.equation is None:
            q, k = a, b.mT
        else:
            product = einsum_product(self.equation, a, b, a)
            if product is None:
                raise NotRecomputableError(f"einsum({self.equation!r}) is no product of matrices")
            sides, out = product.axes, product.out_axes
            first = 0 if out[-2] in sides[0] else 1
            row, column, lead = out[-2], out[-1], out[:-2]
            summed = [x for x in sides[0] if x in sides[1] and x not in out]
            own = {*lead, *summed}
            if len(summed) != 1 or row in sides[1 - first] or column in sides[first]:
                raise NotRecomputableError(f"einsum({self.equation!r}) is no product of queries and keys")
            if {*sides[first]} != own | {row} or {*sides[1 - first]} != own | {column}:
                raise NotRecomputableError(f"einsum({self.equation!r}) broadcasts")
            q, k = (
                product.operands[side].permute([sides[side].index(x) for x in (*lead, last, *summed)])
                for side, last in ((first, row), (1 - first, column))
            )
        shape = self.steps[0].shape if self.steps else self.shape
        first_lead = shape[:-2]
        return _aligned(q, (*first_lead, *q.shape[-2:]), batch), _aligned(k, (*first_lead, *k.shape[-2:]), batch)


@torch.no_grad()
def recomputed_record(
    scores: WrittenScores,
    weights: Float[Tensor, "*batch q k"],
    v: Float[Tensor, "*batch k d_v"],
    out: Float[Tensor, "*batch q d_v"],
    dropout: float,
    every: bool = False,
) -> Record:
    """A record of queries and keys that gives these weights, which need not be kept then.

    NotRecomputableError says why there is none. Some rows are compared with the weights, which still exist. All rows
    are with `every`, of inference tensors, which have no version counter, and where steps act on keys that are closed.
    """
    batch, (queries, keys) = tuple(weights.shape[:-2]), weights.shape[-2:]
    if math.prod(scores.shape) != weights.numel() or scores.shape[-2:] != (queries, keys):
        raise NotRecomputableError(f"its scores {list(scores.shape)} are multiplied as {list(weights.shape)}")
    energies = scores.energies(batch)
    record = Record(energies, v.detach(), out.detach(), IN_ITS_OWN_CODE, dropout=dropout)
    record = shorten_masks(record)
    biases = [x.added for x in record.energies.modifiers if x.added is not None]
    large = next((x for x in biases if x.numel() >= max(weights.numel(), SHORT)), None)
    if large is not None:
        raise NotRecomputableError(f"its scores have a bias of their own, {list(large.shape)}")
    recomputed = Weights(record.energies, Softmax())
    products = scores.products()
    budget = BUDGET[min((weights.dtype, *(x.dtype for x in products)), key=lambda x: torch.finfo(x).bits)]
    every = every or any(x.is_inference() for x in (weights, *(y for x in products for y in x.operands)))
    every = every or scores.has_steps_on_closed_keys()
    some = torch.arange(queries) if every else evenly_spaced(queries, ROWS)
    for rows in some.split(BLOCK):
        ours = recomputed.tile(rows.tolist(), slice(None))
        theirs = weights.detach()[..., rows.tolist(), :].to(ours.dtype)
        error, whole = (ours - theirs).norm(dim=-1), theirs.norm(dim=-1)
        if not bool((error <= budget * whole).all()):
            worst = float((error / whole).nan_to_num(torch.inf).max())
            raise NotRecomputableError(f"weights recomputed from its queries and keys differ by {worst:.1e}")
    return record


def _rounding(dtype: torch.dtype) -> list[Modifier]:
    return [Rounded(_name(dtype))] if dtype in HALF else []


def _scaled(modifiers: list[Modifier], number: float, dtype: torch.dtype) -> list[Modifier]:
    """Times a number, rounded to this type."""
    if modifiers and modifiers[-1] == Rounded(_name(dtype)):
        return [*modifiers[:-1], Rounded(_name(dtype), number)]
    return [*modifiers, Rounded(_name(dtype), number)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _columns_of(step: ScoreStep) -> Tensor:
    """The column for each distance of key and query, of a step that gathers columns."""
    assert step.tensor is not None
    index = _compact(step.tensor, axes=step.tensor.dim() - 2)
    columns = columns_of(index.flatten(0, -2)) if index.shape[:-2].numel() == 1 and len(index.shape) > 1 else None
    if columns is None:
        raise NotRecomputableError(f"positions {list(index.shape)} are not those of distances")
    return columns


def _mask_of(step: ScoreStep, batch: tuple[int, ...]) -> Mask | None:
    """The keys that a step leaves open; None if it leaves all."""
    assert step.tensor is not None
    x = _compact(_aligned(step.tensor, step.shape, batch))
    seen = ~x if step.closed else x
    if not bool(seen.any(-1).all()):
        raise NotRecomputableError("its mask closes all keys of a query")
    if bool(seen.all()):
        return None
    interval = intervals_of(seen) if x.shape[-2] > 1 and x.shape[-2] * x.shape[-1] >= SHORT else None
    return dense(seen) if interval is None else interval


def _joined(first: Mask | None, second: Mask | None) -> Mask | None:
    """The keys that both leave open; None is a mask that closes none."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _compact(x: Tensor, axes: int | None = None) -> Tensor:
    """Without the copies along axes that were expanded: all of them, or the first `axes`."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride()[:axes])]


def _aligned(x: Tensor, shape: tuple[int, ...], batch: tuple[int, ...]) -> Tensor:
    """A tensor that broadcasts to scores of this shape, for scores with other leading axes: some merged, or split.

    The same object if they are the same: a mask that all layers share is kept once.
    """
    x = x.detach() if x.requires_grad else x
    now = shape[:-2]
    if x.dim() < 2:
        x = x.reshape(*[1] * (2 - x.dim()), *x.shape)
    if now == batch or x.dim() == 2:
        return x
    x = x[(None,) * (len(shape) - x.dim())]
    own, last = x.shape[:-2], x.shape[-2:]
    if all(n == 1 for n in own):
        return x.reshape(last)
    if len(now) == 1:
        return x.reshape(*batch, *last)
    if math.prod(now) == math.prod(own) or last[0] == 1 or last[1] == 1:
        return x.expand(*now, *last).reshape(*batch, *last)
    raise NotRecomputableError(f"a mask {list(x.shape)} does not follow the scores to {list(batch)}")
