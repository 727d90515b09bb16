"""The runs of the experiment of `coverage`: what is compared at the boundaries of modules, and put back there.

A tensor is compared with the one recorded at the same boundary, number by number. Its rows are its positions without
the axis of channels. Where what went into a module has the same rows, those that changed only behind it are its work;
where it has not (windows, patches, pooling), their number is compared.
"""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .storage import format_bytes
from .watch import numbers, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from .call import Call
    from .coverage import Experiment

NOISE = 1.9
"""How many times as many rows must change between modules: rows are also selected, padded, and packed there."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A place that mixes tokens and is no attention that was seen."""

    module: str
    """Its path; "" is the model itself."""
    kind: str
    """The layer, if it is one of PyTorch; "unknown" for code."""
    reach: str
    """Which tokens a changed token reached there."""

    def __str__(self) -> str:
        return f"{self.module or 'the model itself'}: {self.kind}, {self.reach}"


# Rows: which positions of a tensor differ from the recording


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprints(x: Tensor) -> Tensor:
    """A number for each row along the last axis, read in a tenth of the time of a comparison.

    The sum of its bits as integers, which any one change changes, and of floats a weighted sum, which signs and orders
    change. Rows that differ in it are compared.
    """
    x = x.contiguous()
    bits = x.view(BITS[x.element_size()]).sum(-1, dtype=torch.int32 if x.element_size() < 8 else None)
    if not x.is_floating_point():
        return bits
    mixed = (x.float() * _directions(x.shape[-1], x.device)).sum(-1)  # a product's rounding differs by its memory
    return bits.long() ^ (mixed.view(torch.int32).long() << 32)


@functools.lru_cache(maxsize=256)
def _directions(width: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.randn(width, generator=torch.Generator().manual_seed(width)).to(device)


def any_of(mask: Tensor, axis: int) -> Tensor:
    """`mask.any(axis)`, in a twentieth of its time on a CPU."""
    return mask.view(torch.uint8).amax(axis).view(torch.bool)


class Change:
    """Where a tensor differs from what was recorded: `mask` has its shape, None if it is as recorded."""

    def __init__(self, x: Tensor, recorded: Tensor | None, prints: Tensor | None = None) -> None:
        """`prints` are the fingerprints of `recorded`."""
        self.tensor, self.recorded = x, recorded
        self._rows: dict[int | None, Tensor] = {}
        self._part: tuple[Tensor, Tensor] | None = None
        self._mask: Tensor | None = None
        if recorded is None or x.shape != recorded.shape or x.dtype != recorded.dtype or not x.numel():
            self.recorded, self.changed = None, False
        elif prints is None:
            mask = _differ(x, recorded)
            self.changed = bool(mask.any())
            self._mask = mask
        else:
            rows = fingerprints(x) != prints
            self.changed = bool(rows.any())
            if self.changed:
                differ = _differ(x[rows], recorded[rows])
                self.changed = bool(differ.any())
                self._part = rows, differ

    @property
    def mask(self) -> Tensor | None:
        if not self.changed:
            return None
        if self._mask is None:
            assert self._part is not None
            rows, differ = self._part
            self._mask = torch.zeros(self.tensor.shape, dtype=torch.bool, device=self.tensor.device)
            self._mask[rows] = differ
        return self._mask

    def rows(self, way: int | None) -> Tensor:
        """The changed positions, without the axis of channels: the last, the second, or none (numbers of tokens)."""
        known = self._rows.get(way)
        if known is None:
            known = self._rows[way] = self._find(way)
        return known

    def _find(self, way: int | None) -> Tensor:
        if way == -1 and self._part is not None:
            rows, differ = self._part
            return rows.masked_scatter(rows, differ.any(-1))
        mask = self.mask
        if mask is None:
            mask = torch.zeros(self.tensor.shape, dtype=torch.bool, device=self.tensor.device)
        return mask if way is None else any_of(mask, way)

    def ways(self) -> list[int | None]:
        """Axes that may be those of channels."""
        x = self.tensor
        if not x.is_floating_point() or x.dim() < 2:
            return [None]
        return [-1, *([1] if x.dim() > 2 else [None])]

    def put_back(self, rows: Tensor | None = None, way: int | None = None) -> bool:
        """Set rows, by default all, to what was recorded, in place. False if the tensor cannot be changed."""
        if self.recorded is None:
            return False
        mask = self.mask if rows is None else rows if way is None else rows.unsqueeze(way)
        assert mask is not None
        try:
            self.tensor.copy_(torch.where(mask, self.recorded, self.tensor))
        except RuntimeError:  # an expanded tensor has several numbers at one place
            return False
        return True

    @property
    def is_pairwise(self) -> bool:
        """Whether a row and a column of a matrix changed: scores of tokens by tokens."""
        return self.mask is not None and pairwise(self.mask)


def pairwise(mask: Tensor) -> bool:
    if mask.dim() < 2 or bool(mask.all()):
        return False
    flat = mask.reshape(-1, *mask.shape[-2:]).any(0)
    return min(flat.shape) > 1 and bool(flat.any(0).all()) and bool(flat.any(1).all())


def without(x: Tensor, way: int | None) -> tuple[int, ...]:
    """The shape of `Change.rows`."""
    shape = list(x.shape)
    if way is not None:
        shape.pop(way)
    return tuple(shape)


def _differ(x: Tensor, recorded: Tensor) -> Tensor:
    differ = x != recorded
    return differ & ~(x.isnan() & recorded.isnan()) if x.is_floating_point() else differ


def share(rows: Tensor) -> float:
    return float(rows.float().mean()) if rows.numel() else 0.0


@dataclass(slots=True)
class Spread:
    """Rows of a tensor that changed although they are unchanged in what the module was given."""

    change: Change
    way: int | None
    rows: Tensor
    before: Tensor


def compare(given: list[Change], change: Change, ways: dict[Any, int | None], place: Any) -> Spread | bool | None:
    """How rows spread from what a module was given to a tensor that has the same rows.

    False if they did not, None if no changed input has the same rows. The axis of channels is that without which the
    smallest share of the input changed; `ways` keeps it for each place, from the first run that can tell.
    """
    pairs = [
        (share(x.rows(own)), x, own, way)
        for x in given
        if x.changed
        for own in x.ways()
        for way in change.ways()
        if without(x.tensor, own) == without(change.tensor, way)
        if way is not None or (own is None and not x.tensor.is_floating_point())
        if own in (way, None) or x.tensor.shape != change.tensor.shape  # as many tokens as channels: not transposed
    ]
    if not pairs:
        return None
    if ways.get(place, 0) not in {pair[3] for pair in pairs}:
        least = min(pairs, key=lambda pair: pair[0])
        last = [pair[3] for pair in pairs if pair[3] == -1 and pair[0] < 2 * least[0]]  # usual, unless another is clear
        ways[place] = last[0] if last else least[3]
    way = ways[place]
    rows, before = change.rows(way), torch.stack([x.rows(own) for _, x, own, to in pairs if to == way]).any(0)
    spread = rows & ~before
    if int(rows.sum()) <= int(before.sum()) or not bool(spread.any()):  # as many elsewhere: they were moved
        return False
    return Spread(change, way, spread, before)


def fewest(change: Change) -> Tensor:
    """The rows of a tensor in the way in which the smallest share changed."""
    return min((change.rows(way) for way in change.ways()), key=share)


def grown(before: list[Tensor], rows: Tensor, factor: float) -> bool:
    """Whether more positions changed than before; of a larger tensor (heads, repeated rows) a larger share."""
    most, count = max(int(x.sum()) for x in before), int(rows.sum())
    if rows.numel() > max(x.numel() for x in before) and share(rows) <= factor * max(map(share, before)):
        return False
    return count > factor * most


def offsets(spread: Spread) -> str:
    """How far rows are from those that were given, in words."""
    rows, before = spread.rows, spread.before
    if not bool(before.any()):
        return f"{int(rows.sum())} positions"
    if rows.shape[0] > 1 and rows.dim() > 1 and bool((rows.flatten(1).any(1) & ~before.flatten(1).any(1)).any()):
        return f"{int(rows.flatten(1).any(1).sum())} of {rows.shape[0]} entries of the first axis (batch or windows)"
    while rows.dim() > 1 and (rows.dim() == 2 or rows.shape[0] == 1):
        rows, before = rows.any(0), before.any(0)
    if rows.dim() > 1:
        return f"{int(rows.sum())} of {rows.numel()} positions"
    here, there = before.nonzero()[:, 0], rows.nonzero()[:, 0]
    if not len(here):
        return f"{int(rows.sum())} of {rows.numel()} positions"
    apart = there[:, None] - here
    nearest = apart.gather(1, apart.abs().argmin(1, keepdim=True))[:, 0]
    low, high = int(nearest.min()), int(nearest.max())
    return f"reaches {len(there)} of {rows.numel()} tokens, {low:+d} … {high:+d}"


# One run of the model


@dataclass(slots=True)
class Record:
    """What a call of attention gave: its output, and its queries where they are known."""

    name: str
    frame: tuple[str, int]
    ordinal: int
    """Which of the calls of this run of its module."""
    out: Tensor | None
    q: Tensor | None
    """Or its weights, where those are held."""
    read: list[Tensor]
    """Queries, keys and values, as far as they are known."""
    flows: bool | None = None
    interchanged: bool = False


@dataclass(slots=True, eq=False)
class Frame:
    """A module that runs."""

    key: tuple[str, int]
    module: nn.Module
    given: list[Change] = field(default_factory=list)
    calls: int = 0
    clean: bool = False
    mixed: bool = False
    """Whether a part of it mixes tokens whose rows cannot be put back."""


class Run:
    """A run of the model. Boundaries of modules pass through `enter` and `leave`, calls of attention through `call`.

    It stands among the open watches: the taps report each call to `add`, with the tensor that the model goes on with.
    """

    layers = None

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.seen, self.number = experiment, self, next(numbers)
        self.names, self.model = experiment.names, experiment.model
        self.stack: list[Frame] = []
        self.counts: Counter[str] = Counter()
        self.calls = 0
        self.failed = ""
        """Why nothing can be concluded from this run."""
        self.known: Any = WeakIdKeyDictionary()
        self.noise = torch.Generator().manual_seed(1)

    def selects(self, name: str) -> bool:
        return True

    def add_missed(self, name: str, reason: str) -> None:
        """The watch of the recording has it."""

    def add(self, call: Call, output: Tensor | None = None, arrange: Callable[[Tensor], Tensor] | None = None) -> None:
        if not self.stack:
            return
        frame = next((x for x in reversed(self.stack) if x.key[0] == call.name), self.stack[-1])
        try:
            self.call(call, frame, output, arrange)
        except OtherPathError:
            self.failed = f"{call.name or 'the model'} called other attention than when it was recorded"
        frame.calls += 1
        self.calls += 1

    def record(self, name: str) -> Record:
        records = self.experiment.records
        if self.calls >= len(records) or records[self.calls].name != name:
            raise OtherPathError
        return records[self.calls]

    def frozen(self) -> Tensor | None:
        """The output that the next call is put back to."""
        records = self.experiment.records
        return records[self.calls].out if self.calls < len(records) else None

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        name = self.names[id(module)]
        frame = Frame((name, self.counts[name]), module)
        self.counts[name] += 1
        self.stack.append(frame)
        self.enter(frame, tensors_of((args, kwargs)))

    def after(self, module: nn.Module, output: Any) -> None:
        while self.stack and self.stack[-1].module is not module:  # a module that was left by an exception
            self.stack.pop()
        if self.stack:
            self.leave(self.stack[-1], tensors_of(output), output)
            self.stack.pop()

    def changes(self, frame: Frame, tensors: list[Tensor], side: int) -> list[Change]:
        recorded = self.experiment.boundaries.get(frame.key, ((), ()))[side]
        if len(recorded) != len(tensors):
            return []
        return list(map(self.compared, tensors, recorded))

    def compared(self, x: Tensor, recorded: Tensor) -> Change:
        """A tensor beside the one that was recorded; the next module is usually given the same tensor."""
        version = None if x.is_inference() else x._version
        before = self.known.get(x)
        if before is None or version is None or before[0] != version or before[1].recorded is not recorded:
            before = version, Change(x, recorded, self.experiment.prints.get(id(recorded)))
            self.known[x] = before
        return before[1]  # type: ignore[no-any-return]

    def random_like(self, x: Tensor) -> Tensor:
        """Numbers as large as those of x."""
        size = float(x.float().std()) if x.numel() > 1 else 0.0
        noise = torch.randn(x.shape, generator=self.noise, dtype=torch.float32)
        return (noise * (size if size > 0 else 1.0)).to(x)

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None: ...

    def restore(self) -> None:
        """Put back what the run changed in place, also where the model raised."""

    def enter(self, frame: Frame, given: list[Tensor]) -> None: ...

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None: ...


class OtherPathError(RuntimeError):
    """The model called other attention than when it was recorded."""


def _rows_of(call: Call) -> Tensor | None:
    """The queries of a call that the taps have just made, or its weights, where those are held."""
    return next((x.added for x in call.own.modifiers if x.added is not None), None) if call.matrix else call.q


def _read_by(call: Call) -> list[Tensor]:
    """Queries, keys and values of a call that the taps have just made; where weights are held, the values."""
    known = call.v_parts if call.matrix else [call.q, *call.k_parts, *call.v_parts, *call.learned]
    return [x for x in known if x is not None and not isinstance(x, nn.Parameter) and x.is_floating_point()]


class Recording(Run):
    """Keeps the tensors at all boundaries, and the outputs of all calls."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.kept: Any = WeakIdKeyDictionary()
        self.bytes = 0

    def keep(self, x: Tensor) -> Tensor:
        version, copied = self.kept.get(x, (None, None))
        now = None if x.is_inference() else x._version
        if copied is None or now is None or version != now:
            copied = x.detach().clone()
            self.bytes += copied.nbytes
            if self.bytes > self.experiment.limit:
                raise ValueError(
                    f"prove holds the outputs of all modules, here more than {format_bytes(self.experiment.limit)}; "
                    'give a shorter input, or allow more (limit="32GB")'
                )
            self.kept[x] = now, copied
            if x.is_floating_point() and x.dim() > 1 and x.numel():
                self.experiment.prints[id(copied)] = fingerprints(copied)
        return copied  # type: ignore[no-any-return]

    def enter(self, frame: Frame, given: list[Tensor]) -> None:
        self.experiment.order.append(frame.key[0])
        self.experiment.starts[frame.key] = len(self.experiment.order)
        self.experiment.boundaries[frame.key] = [self.keep(x) for x in given], []

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None:
        experiment = self.experiment
        experiment.boundaries[frame.key] = experiment.boundaries[frame.key][0], [self.keep(x) for x in made]
        if isinstance(output, torch.Tensor) and len(made) == 1:
            experiment.single.add(frame.key)
        experiment.spans[frame.key] = Counter(experiment.order[experiment.starts[frame.key] :])
        if frame.calls:
            experiment.attends.update(x.key[0] for x in self.stack)

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None:
        out = None if output is None else self.keep(output)
        q = _rows_of(call)
        q = None if q is None else self.keep(q)
        self.experiment.attends.add(call.name)  # an nn.Softmax, whose module multiplies
        read = [self.keep(x) for x in _read_by(call)]
        self.experiment.records.append(Record(call.name, frame.key, frame.calls, out, q, read))


class Flow(Run):
    """Disturbs outputs of attention, one of each module: what is behind the module must change, and is put back."""

    def __init__(self, experiment: Experiment, chosen: list[Record]) -> None:
        super().__init__(experiment)
        self.chosen = chosen
        self.pending: list[Record] = []
        self.strange = ""
        """A module whose numbers changed although everything before it is as recorded."""

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None:
        record = self.record(call.name)
        if output is None or record.out is None or output.shape != record.out.shape:
            return
        output.copy_(record.out)
        if not any(record is x for x in self.chosen):
            return
        output += self.random_like(record.out)
        record.flows = False
        self.pending.append(record)

    def settle(self, changes: list[Change], running: set[tuple[str, int]]) -> bool:
        """Notes which call reached this boundary, and puts it back. Returns whether it is as recorded now."""
        if any(record.frame in running for record in self.pending):
            return False
        changed = [x for x in changes if x.changed]
        if not changed:
            return bool(changes)
        if self.pending:
            self.pending[-1].flows = True  # those before it are asked again
        elif not self.failed:
            self.strange = self.strange or self.stack[-1].key[0] or "the model"
        self.pending = []
        return not [x for x in changed if not x.put_back()]

    def enter(self, frame: Frame, given: list[Tensor]) -> None:
        frame.clean = self.settle(self.changes(frame, given, 0), {x.key for x in self.stack})

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None:
        running = {x.key for x in self.stack} if len(self.stack) > 1 else set()
        self.settle(self.changes(frame, made, 1), running)

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Modules that call no attention, and whose inputs are as recorded, give what was recorded and do not run."""
        experiment, patched = self.experiment, []

        def skips(part: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                frame = self.stack[-1]
                if frame.module is not part or not frame.clean or frame.key not in experiment.single:
                    return original(*args, **kwargs)
                self.counts.update(experiment.spans[frame.key])
                return experiment.boundaries[frame.key][1][0].clone()

            return forward

        for name, part in experiment.parts:
            if (
                name not in experiment.attends
                and "forward" not in vars(part)
                and not isinstance(part, torch.jit.ScriptModule)
            ):
                part.forward = skips(part, part.forward)
                patched.append(part)
        try:
            yield
        finally:
            for part in patched:
                del part.forward


class Disturbed(Run):
    """The model with a token changed, and every output of attention put back except in the token's rows."""

    def __init__(self, experiment: Experiment, batch: bool = False) -> None:
        super().__init__(experiment)
        self.batch = batch
        self.reached: set[tuple[str, int]] = set()
        self.unaligned: dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]] = {}
        self.places: dict[str, Unseen] = {}

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None:
        record = self.record(call.name)
        rows: Tensor | None = None
        q = _rows_of(call)
        if q is not None and record.q is not None and q.shape == record.q.shape:
            rows = (q != record.q).any(-1)
        if self.batch and rows is not None and rows.dim() > 2:
            heads = rows.any(-1)
            record.interchanged |= bool((heads != heads[..., :1]).any())
        read = _read_by(call)
        if len(read) == len(record.read):
            self.check_inputs(frame, list(map(self.compared, read, record.read)), " in what its attention reads")
            self.check_moved(frame, list(map(self.compared, read, record.read)))
        if output is None or record.out is None or output.shape != record.out.shape:
            return
        output.copy_(record.out)
        view = output
        if arrange is not None:
            arranged = arrange(output)
            view = arranged if arranged.untyped_storage()._cdata == output.untyped_storage()._cdata else output
        if call.matrix or rows is None or rows.shape != view.shape[:-1]:
            entries = None if rows is None or rows.dim() != view.dim() - 1 else rows.any(-1)
            rows = self.rows_of_module(view, entries)
        if rows is not None and bool(rows.any()):
            view[rows] += self.random_like(view[rows])

    def rows_of_module(self, out: Tensor, entries: Tensor | None) -> Tensor | None:
        """The rows of an output whose queries are not known: those of the first input of the module that runs.

        `entries` are the leading indices whose weights changed, if that is known.
        """
        for frame in reversed(self.stack):
            given = [x for x in frame.given if x.tensor.is_floating_point()][:1]
            if not given or not given[0].changed:
                continue
            rows = fewest(given[0])
            rows = rows[None] if rows.dim() == 1 else rows.flatten(1)  # [entries, tokens]
            axes = [out.dim() - 2, *range(out.dim() - 2)]
            token = next((n for n in axes if out.shape[n] == rows.shape[1]), None)
            if token is None:
                continue
            shape = [1] * (out.dim() - 1)
            shape[token] = rows.shape[1]
            if entries is not None and token == out.dim() - 2:
                return entries[..., None] & rows.any(0)
            if bool((rows == rows[:1]).all()):
                return rows[0].view(shape).expand(out.shape[:-1])
            entry = next((n for n in range(out.dim() - 1) if n != token and out.shape[n] == rows.shape[0]), None)
            if entry is None:
                return None
            shape[entry] = rows.shape[0]
            return (rows if entry < token else rows.T).reshape(shape).expand(out.shape[:-1])
        return None

    def enter(self, frame: Frame, given: list[Tensor]) -> None:
        frame.given = self.changes(frame, given, 0)
        parent = self.stack[-2] if len(self.stack) > 1 else None
        if parent is not None and parent.given:
            name = frame.key[0].removeprefix(parent.key[0]).strip(".")
            apart = []
            for number, change in enumerate(frame.given):
                if not change.changed or self.is_weights(change, parent.given):
                    continue
                spread = compare(parent.given, change, self.experiment.ways, (frame.key, number, "given"))
                if isinstance(spread, Spread):
                    self.find(parent, spread, f", before {name}")
                elif spread is None:
                    apart.append(change)
            self.check_inputs(parent, apart, f", before {name}")
            frame.given = self.changes(frame, given, 0)
        if any(x.changed for x in frame.given):
            self.reached.add(frame.key)

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None:
        if not frame.key[0] and not self.comparable(frame, made):
            self.failed = "the model's output holds no tensor, or others of other shapes once a token is changed"
        changed = [(n, x) for n, x in enumerate(self.changes(frame, made, 1)) if x.changed]
        given = [x for x in frame.given if x.changed]
        if isinstance(frame.module, nn.Softmax | nn.LogSoftmax | nn.Softmin):  # over scores: no tokens
            return
        unaligned = []
        for number, change in changed:
            if change.tensor.dim() == 0 or self.is_weights(change, frame.given):
                continue
            spread = compare(frame.given, change, self.experiment.ways, (frame.key, number, "made"))
            if isinstance(spread, Spread):
                self.find(frame, spread, "")
            elif spread is None and given:
                unaligned.append(change)
        if unaligned:
            self.check_unaligned(frame, given, unaligned)

    def comparable(self, frame: Frame, made: list[Tensor]) -> bool:
        """Whether an output has the tensors that it had in the recording."""
        recorded = self.experiment.boundaries.get(frame.key, ((), ()))[1]
        return bool(made) and [x.shape for x in made] == [x.shape for x in recorded]

    def check_unaligned(self, frame: Frame, given: list[Change], made: list[Change]) -> None:
        """An output that has other rows than the inputs: windows, patches, merging, pooling."""
        before = [fewest(x) for x in given]
        after = [fewest(x) for x in made]
        self.unaligned[frame.key] = before, after
        rows = next((x for x in after if grown(before, x, 1.01)), None)
        if rows is not None and not frame.mixed:
            self.place(frame, f"{int(before[0].sum())} changed positions became {int(rows.sum())} of {rows.numel()}")
            self.spoil(frame)

    def check_inputs(self, frame: Frame, given: list[Change], where: str) -> None:
        """What a module of this frame, or its attention, reads: as many rows as the frame was given, seen or moved."""
        before = [fewest(x) for x in frame.given if x.changed]
        for change in given if before and not frame.mixed else ():
            if not change.changed or change.tensor.dim() < 3 or self.is_weights(change, frame.given):
                continue
            rows = fewest(change)
            if not pairwise(rows) and grown(before, rows, NOISE):
                self.place(frame, f"{int(before[0].sum())} changed positions became {int(rows.sum())}{where}")
                self.spoil(frame)
                frame.mixed = True
                return

    def check_moved(self, frame: Frame, read: list[Change]) -> None:
        """Queries, keys and values of a token must stand in the same rows, or weights name another token."""
        rows = [fewest(x).reshape(-1, x.tensor.shape[-2]).any(0) for x in read if x.changed and x.tensor.dim() > 3]
        if any(a.shape == b.shape and not torch.equal(a, b) for a in rows for b in rows) and not frame.mixed:
            self.place(frame, "queries, keys and values of a token are in other rows")

    def is_weights(self, change: Change, given: list[Change]) -> bool:
        """Whether a tensor has the shape of a call's weights and is none of tokens: its rows and columns are."""
        x = change.tensor
        if x.dim() < 2 or tuple(x.shape[-2:]) not in self.experiment.shapes:
            return False
        alike = [y for y in given if y.changed and y.tensor.shape == x.shape]
        return not alike or any(y.is_pairwise for y in alike)

    def find(self, frame: Frame, spread: Spread, where: str) -> None:
        """Note a place, and put the rows that it reached back."""
        self.place(frame, offsets(spread) + where)
        if not spread.change.put_back(spread.rows, spread.way):
            self.spoil(frame)

    def place(self, frame: Frame, reach: str) -> None:
        if self.batch:
            reach = f"between entries of the batch: {reach}"
        self.places.setdefault(frame.key[0], Unseen(frame.key[0], kind_of(frame.module), reach))

    def spoil(self, frame: Frame) -> None:
        """What a place spread cannot be put back, and is not asked of the modules around it."""
        for outer in self.stack[: self.stack.index(frame)]:
            outer.mixed = True


class Injected(Disturbed):
    """Disturbs the inputs of modules that no changed token reached, to see whether they would mix tokens."""

    def __init__(self, experiment: Experiment, keys: set[tuple[str, int]]) -> None:
        super().__init__(experiment)
        self.keys = keys
        self.inside: Frame | None = None
        self.touched: Tensor | None = None
        self.saved: Tensor | None = None

    def restore(self) -> None:
        if self.inside is not None and self.touched is not None and self.saved is not None:
            self.touched.copy_(self.saved)

    def enter(self, frame: Frame, given: list[Tensor]) -> None:
        wide = [x for x in given if x.is_floating_point() and x.dim() > 1]
        if frame.key in self.keys and self.inside is None and wide:
            x = wide[0]
            self.inside, self.touched, self.saved = frame, x, x.clone()
            by_channels = isinstance(frame.module, nn.modules.conv._ConvNd) or x.dim() == 4
            at = [slice(None)] * x.dim()
            for axis in range(2, x.dim()) if by_channels else [x.dim() - 2]:
                at[axis] = slice(x.shape[axis] // 2, x.shape[axis] // 2 + 1)
            try:
                x[tuple(at)] += self.random_like(x[tuple(at)])
            except RuntimeError:
                self.inside = None
        super().enter(frame, given)

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None:
        super().leave(frame, made, output)
        if frame is self.inside:
            self.restore()
            for change in self.changes(frame, made, 1):
                if change.changed:
                    change.put_back()
            self.inside = None


NORMALIZATION = "normalization over tokens"
LAYERS = {
    "conv": "convolution",
    "rnn": "recurrence",
    "pooling": "pooling",
    "adaptive": "pooling",
    "normalization": NORMALIZATION,
    "batchnorm": NORMALIZATION,
    "instancenorm": NORMALIZATION,
    "linear": "projection over tokens",
    "activation": "attention",
    "upsampling": "interpolation",
    "pixelshuffle": "merging",
}
"""What layers of PyTorch do to tokens, by the file of torch.nn.modules that has them."""


def kind_of(module: nn.Module) -> str:
    """The layer of PyTorch that a module is, by its class; "unknown" for code."""
    own = type(module)
    layer = next((x for x in own.__mro__ if x.__module__.startswith("torch.nn.modules.")), nn.Module)
    topic = layer.__module__.rpartition(".")[2]
    if layer is nn.Module or topic in ("container", "module"):
        return "unknown"
    return f"{LAYERS.get(topic, 'layer')} ({layer.__name__})" if own is layer else f"unknown ({layer.__name__} below)"
