"""prove: whether attention that was seen is the only way between tokens, by an experiment on the model.

Information moves between tokens only where something mixes them. The model runs once and everything is recorded. It
runs again with one token changed, and each output of attention that was seen is put back to what was recorded, except
in the rows of this token, which are disturbed. Attention that was seen then carries nothing from token to token: what
reaches another token went through something else, and the innermost module whose inputs are unchanged there, while its
output is not, is the place. There it is put back as well, so that places behind it are found in the same run.

No name and no index is needed: rows that differ from the recording are the token's, wherever a module has moved them.
Where a module's output has other rows than its inputs (windows, patches, pooling), two tokens that were apart before
and are not afterwards were mixed. Changing an entry of the batch finds what mixes entries, and heads read as entries.

What it shows holds for this input and the tokens tried, which are listed.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .coverage_runs import Disturbed, Flow, Injected, Record, Recording, Unseen, kind_of
from .storage import parse_bytes
from .watch import Watch, install, local, named_parts, numbers, opened_also, plan, remove, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from .coverage_runs import Run
    from .trace import Seen
    from .watch import Parts

LIMIT = "8GB"
FLOWS = 8
"""Calls of one module that are disturbed one by one, to see whether they are what flows on."""


@dataclass(slots=True)
class Coverage:
    """What `prove` found; it prints as a table."""

    complete: bool | None
    """Whether attention that was seen is the only way between the tokens tried; None if that could not be told."""
    unseen: list[Unseen]
    verdicts: list[tuple[str, str, str]]
    """For each mixing place its module, its verdict, and a reason or what it is."""
    tried: list[str]
    """The tokens and entries that were changed."""
    reasons: list[str]
    """Why something could not be told."""
    trace: Seen
    still: int = 0
    """Modules that ran and mix nothing."""

    def __repr__(self) -> str:
        words = {True: "complete", False: "NOT complete", None: "not known whether complete"}
        rows = [("place", "verdict", "what"), *self.verdicts]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(f"{self.still} other modules: no mixing")
        lines.append(f"{words[self.complete]}, by changing {'; '.join(self.tried) or 'nothing'}")
        return "\n".join([*lines, *(f"? {reason}" for reason in self.reasons)])


def prove(model: nn.Module, *inputs: Any, limit: str | int = LIMIT, **options: Any) -> Coverage:
    """Whether the attention that is seen of `model(*inputs, **options)` is all that mixes its tokens.

        coverage = regard.prove(model, **tokenizer("The cat sat.", return_tensors="pt"))
        coverage.complete, coverage.unseen, coverage.trace

    The model runs about four times. It is not changed: buffers and random numbers are put back, inputs are copied.
    The outputs of all modules are held, in at most `limit` of memory. A model that reads several inputs is changed in
    one at a time. With dropout (`model.train()`) each run draws the same random numbers.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"prove takes a model (an nn.Module), got {type(model).__name__}")
    return Experiment(model, inputs, options, parse_bytes(limit)).run()


def prove_calls(model: nn.Module, calls: list[tuple[Any, Any]], seen: Seen) -> Coverage:
    """The coverage of several calls of a model, for a watch that saw them."""
    limit = parse_bytes(LIMIT)
    proved = [Experiment(model, args, options, limit).run() for args, options in calls]
    if len(proved) == 1:
        proved[0].trace = seen
        return proved[0]
    verdicts = [x.complete for x in proved]
    return Coverage(
        False if False in verdicts else None if None in verdicts else True,
        list(dict.fromkeys(place for x in proved for place in x.unseen)),
        list(dict.fromkeys(row for x in proved for row in x.verdicts)),
        [f"{text} in call {which}" for x, which in zip(proved, ("1", "n"), strict=True) for text in x.tried],
        list(dict.fromkeys(reason for x in proved for reason in x.reasons)),
        seen,
        proved[0].still,
    )


# The experiment


@dataclass(frozen=True, slots=True)
class Side:
    """An input whose tokens are changed."""

    number: int
    """Which of the tensors among the inputs."""
    axes: tuple[int, ...]
    """Those of its tokens."""
    size: int = 1
    """Of pictures, the pixels of a token along each axis."""

    def __str__(self) -> str:
        return f" ({self.size} pixels wide)" if self.size > 1 else ""


class Experiment:
    """The runs of a model, and what they have in common."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], limit: int) -> None:
        self.model, self.inputs, self.options, self.limit = model, inputs, options, limit
        self.parts: Parts = named_parts(model)
        self.names = {id(part): name for name, part in self.parts}
        self.number = next(numbers)
        self.records: list[Record] = []
        self.boundaries: dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]] = {}
        self.order: list[str] = []
        self.starts: dict[tuple[str, int], int] = {}
        self.spans: dict[tuple[str, int], Counter[str]] = {}
        self.attends: set[str] = set()
        """Modules inside which attention was called."""
        self.prints: dict[int, Tensor] = {}
        """Fingerprints of what is recorded, by its id."""
        self.reasons: list[str] = []
        self.tried: list[str] = []
        self.single: set[tuple[str, int]] = set()
        """Runs of modules whose output is one tensor."""
        self.tensors = tensors_of((inputs, options))
        self.disturbed: list[Disturbed] = []
        self.current: Run
        self.ways: dict[Any, int | None] = {}
        self.shapes: set[tuple[int, ...]] = set()
        """Queries and keys of the calls that were recorded."""

    def run(self) -> Coverage:
        sides = [side for number, x in enumerate(self.tensors) if (side := self.side(number, x)) is not None]
        watch = Watch(self.parts, None, None, None, gradients=False, activations=False)
        buffers = [
            (part, name, x, x.clone())
            for part in self.model.modules()
            for name, x in part.named_buffers(recurse=False, remove_duplicate=False)
        ]
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it would run a whole layer as one function
        install(self.number, plan(self.parts))
        handles = [handle for _, part in self.parts for handle in self.hooks(part)]
        try:
            with torch.no_grad():
                with watch as seen:
                    self.execute(Recording(self), {})
                self.shapes = {tuple(call.shape[-2:]) for call in seen.calls}
                self.experiments(sides)
        finally:
            for handle in handles:
                handle.remove()
            remove(self.number)
            torch.backends.mha.set_fastpath_enabled(before)
            with torch.no_grad():
                for part, name, x, value in buffers:
                    setattr(part, name, x.copy_(value))
        return self.conclude(seen)

    def hooks(self, part: nn.Module) -> tuple[Any, Any]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.current.before(module, args, kwargs)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.current.after(module, output)

        before_it = part.register_forward_pre_hook(before, with_kwargs=True)
        return before_it, part.register_forward_hook(after, with_kwargs=True)

    def execute(self, run: Run, changed: dict[int, Tensor]) -> bool:
        """Run the model with these tensors of its inputs changed. False if nothing can be concluded from it."""
        memo: dict[int, Any] = {id(x): changed.get(n, x).detach().clone() for n, x in enumerate(self.tensors)}
        inputs, options = copy.deepcopy((self.inputs, self.options), memo)
        devices = {x.device for x in self.model.parameters() if x.device.type == "cuda"}
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([x.index or 0 for x in devices]))
            torch.manual_seed(0)
            stack.enter_context(opened_also(run))
            self.current = run
            stack.callback(run.restore)
            local.state.frozen = None if isinstance(run, Recording) else run.frozen
            stack.callback(setattr, local.state, "frozen", None)
            if isinstance(run, Flow) and run.chosen:
                stack.enter_context(run.skipping())
            self.model(*inputs, **options)
        if run.failed and run.failed not in self.reasons:
            self.reasons.append(run.failed)
        return not run.failed

    def experiments(self, sides: list[Side]) -> None:
        if not self.follow_calls():
            return
        for side in sides:
            x, name = self.tensors[side.number], self.input_name(side.number)
            for size, tokens in enumerate(self.tokens(x, side)):
                if tokens:
                    run = Disturbed(self)
                    self.disturbed.append(run)
                    self.tried.append(f"{'tokens' if len(tokens) > 1 else 'token'} {_listed(tokens)} of {name}{side}")
                    if not self.execute(run, {side.number: _disturbed(x, side, tokens, 1.0 + 3 * size)}):
                        return
            self.merged(self.disturbed[-2:])
        wide = [side.number for side in sides if self.tensors[side.number].dim() > 1]
        entries = {self.tensors[number].shape[0] for number in wide}
        if len(entries) == 1 and (count := entries.pop()) > 1:
            run = Disturbed(self, batch=True)
            self.disturbed.append(run)
            self.tried.append(f"entry {count // 2} of {count}")
            changed = {n: _disturbed(self.tensors[n], Side(n, (0,)), [(count // 2,)], 1.0) for n in wide}
            if not self.execute(run, changed):
                return
        if not (any(run.places for run in self.disturbed) and self.is_random()):
            self.not_reached()

    def follow_calls(self) -> bool:
        """Whether what is behind each call depends on it: one call of each module at a time, and again where one may
        have hidden another. False if nothing can be compared."""
        ordinals = sorted({record.ordinal for record in self.records})[:FLOWS]
        rounds = [[x for x in self.records if x.ordinal == n] for n in ordinals]
        for chosen in rounds:
            while True:
                run = Flow(self, chosen)
                if not self.execute(run, {}):
                    return False
                left = [x for x in chosen if x.flows is False]
                if not left or len(left) == len(chosen):
                    break
                chosen = left
        return True

    def is_random(self) -> bool:
        """Whether the model computes other numbers when nothing is changed; asked if a place was found."""
        run = Flow(self, [])
        self.execute(run, {})
        if run.strange:
            self.reasons.append(f"{run.strange} gives other numbers each time it runs: nothing can be compared")
            for disturbed in self.disturbed:
                disturbed.places.clear()
        return bool(run.strange)

    def side(self, number: int, x: Tensor) -> Side | None:
        """How an input has tokens; None for masks, positions, and what has one number or one token."""
        if x.dtype == torch.bool or x.is_complex() or x.numel() < 2 or x.dim() == 0:
            return None
        two = x.dim() != 3 and bool(((x == x.max()) | (x == x.min())).all())
        if two and (x.is_floating_point() or bool(((x == 0) | (x == 1)).all())):  # a mask, or all alike
            return None
        if not x.is_floating_point():
            steps = x.diff(dim=-1) if x.shape[-1] > 1 else None
            if x.dim() > 2 or steps is None or bool((steps == 1).all()):  # positions
                return None
            return Side(number, (x.dim() - 1,))
        if x.dim() == 1:
            return Side(number, (0,))
        if x.dim() == 2:  # a wave, or rows of features
            return Side(number, (1 if x.shape[1] > 16 * x.shape[0] and x.shape[1] >= 400 else 0,))
        if x.dim() == 3:  # [B, T, D]; a wave is [B, 1, T]
            axis = next((n for n, least in ((1, 2), (2, 400), (0, 2)) if x.shape[n] >= least), None)
            return None if axis is None else Side(number, (axis,))
        last = x.shape[-1] <= 4 < x.shape[1]  # channels
        axes = tuple(range(1, x.dim() - 1) if last else range(2, x.dim()))
        return Side(number, axes, self.patch(min(x.shape[axis] for axis in axes)))

    def tokens(self, x: Tensor, side: Side) -> list[list[tuple[int, ...]]]:
        """Positions that are changed in one run, the middle, and in another: first, the middle's neighbour, last."""
        sizes = [x.shape[axis] // side.size for axis in side.axes]
        if max(sizes) < 2:
            return []
        middle = [size // 2 for size in sizes]
        beside = [*middle[:-1], min(middle[-1] + 1, sizes[-1] - 1)]
        other = {tuple([0] * len(sizes)), tuple(beside), tuple(size - 1 for size in sizes)} - {tuple(middle)}
        return [[tuple(middle)], sorted(other)]

    def patch(self, size: int) -> int:
        """The width of a token of a picture: that of patches that do not overlap, or a quarter of the whole."""
        for _, part in self.parts:
            if isinstance(part, nn.modules.conv._ConvNd) and part.kernel_size == part.stride and part.stride[-1] > 1:
                return int(part.stride[-1])
        return max(size // 4, 1)

    def input_name(self, number: int) -> str:
        x = self.tensors[number]
        name = next((key for key, value in self.options.items() if value is x), "")
        return name or (f"input {number + 1}" if len(self.tensors) > 1 else "the input")

    def merged(self, runs: list[Disturbed]) -> None:
        """Tokens that were apart in what a module was given, and are not in what it gave."""
        if len(runs) < 2:
            return
        first, second = runs
        found: list[tuple[str, int]] = []
        for key, (given, made) in first.unaligned.items():
            others = second.unaligned.get(key)
            if others is not None and not _meet(given, others[0]) and _meet(made, others[1]):
                found.append(key)
        known = {*first.places, *second.places}
        for key in found:
            inside = any(name != key[0] and f"{name}.".startswith(f"{key[0]}." if key[0] else "") for name in known)
            if (
                not inside
                and key[0] not in known
                and not any(
                    other != key and f"{other[0]}.".startswith(f"{key[0]}." if key[0] else "") for other in found
                )
            ):
                module = self.model.get_submodule(key[0])
                second.places[key[0]] = Unseen(key[0], kind_of(module), "several tokens become one")

    def not_reached(self) -> None:
        """What no changed token reached is disturbed by itself: behind a saturated activation, or in a dead path."""
        reached = {key for run in self.disturbed for key in run.reached}
        asleep = {
            key for key, (given, _) in self.boundaries.items() if key not in reached and any(map(_has_rows, given))
        }
        if asleep and self.disturbed:
            run = Injected(self, asleep)
            if self.execute(run, {}):
                self.reasons += [f"no changed token reached {place}" for place in run.places.values()]

    def conclude(self, seen: Seen) -> Coverage:
        unseen: dict[str, Unseen] = {}
        for run in self.disturbed:
            for name, place in run.places.items():
                unseen.setdefault(name, place)
        if not self.tried:
            self.reasons.append("no input has tokens that could be changed: give at least two tokens")
        complete = False if unseen else None if self.reasons else True
        rows = list(self.call_verdicts(seen, unseen))
        rows += [(x.module, "mixes tokens, unseen", f"{x.kind}, {x.reach}") for x in unseen.values()]
        mixing = {row[0] for row in rows}
        still = len({name for name, _ in self.boundaries} - mixing)
        coverage = Coverage(complete, list(unseen.values()), rows, self.tried, self.reasons, seen, still)
        seen.coverage = coverage
        return coverage

    def call_verdicts(self, seen: Seen, unseen: dict[str, Unseen]) -> Iterator[tuple[str, str, str]]:
        by_name: dict[str, list[Record]] = {}
        for record in self.records:
            by_name.setdefault(record.name, []).append(record)
        count = Counter(call.name for call in seen.calls)
        for call in seen.calls:
            name = "" if call.name not in by_name else call.name
            fidelity, records = call.fidelity(), by_name.get(name, [])
            if len(records) == count[call.name]:  # otherwise it is a generation, of several
                records, by_name[name] = records[:1], records[1:]
                count[call.name] -= 1
            reason = ""
            if fidelity.faithful is False:
                reason = "its weights times its values are not its output"
            elif fidelity.faithful is None:
                reason = fidelity.remark or "could not be measured"
            elif name in unseen:
                reason = "its module mixes tokens in another way as well"
            elif any(record.interchanged for record in records):
                reason = "heads and entries of the batch are interchanged"
            elif any(record.flows is False for record in records):
                reason = "nothing behind it depends on its output"
            elif not records or any(record.flows is None for record in records):
                reason = "its output could not be put back, or was not tried"
            elif self.reasons:
                reason = self.reasons[0]
            yield call.name, "seen, unproven" if reason else "proved", reason or call.origin


def _has_rows(x: Tensor) -> bool:
    return x.is_floating_point() and x.dim() > 1 and x[..., 0].numel() > 1


def _meet(first: list[Tensor], second: list[Tensor]) -> bool:
    return any(a.shape == b.shape and bool((a & b).any()) for a in first for b in second)


def _listed(tokens: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(x[0]) if len(x) == 1 else str(x) for x in tokens)


def _disturbed(x: Tensor, side: Side, tokens: Sequence[tuple[int, ...]], size: float) -> Tensor:
    """The tensor with other numbers at these positions: noise as large as its own numbers, or other ids of its own."""
    out = x.detach().clone()
    noise = torch.Generator().manual_seed(2)
    for token in tokens:
        at: list[Any] = [slice(None)] * x.dim()
        for axis, n in zip(side.axes, token, strict=True):
            at[axis] = slice(n * side.size, (n + 1) * side.size)
        old = out[tuple(at)]
        if x.is_floating_point():
            spread = float(x.float().std()) or 1.0
            new = old + size * spread * torch.randn(old.shape, generator=noise).to(x)
        else:
            ids = x[..., 1:-1].unique() if x.shape[-1] > 3 else x.unique()
            ids = x.unique() if len(ids) < 2 else ids
            place = torch.searchsorted(ids, old.contiguous()) + 1 + int(size)
            new = ids[place % len(ids)]
            again = ids[(place + 1) % len(ids)]
            new = torch.where(new == old, again, new)
            new = torch.where(new == old, torch.where(old > 0, old - 1, old + 1), new)
        out[tuple(at)] = new
    return out
