"""prove: whether attention that was seen is the only way between tokens, by an experiment on the model.

Information moves between tokens only where something mixes them. The model runs once and everything is recorded. It runs
again with one token changed, and each output of attention that was seen is put back to what was recorded, except in the
rows of this token, which are disturbed. Attention that was seen then carries nothing from token to token: what reaches
another token went through something else, and the innermost module whose inputs are unchanged there, while its output
is not, is the place. There it is put back as well, so that places behind it are found in the same run.

No name and no index is needed: rows that differ from the recording are the token's, wherever a module has moved them.
Where a module's output has other rows than its inputs (windows, patches, pooling), two tokens that were apart before
and are not afterwards were mixed. Changing an entry of the batch finds what mixes entries, and heads read as entries.

What it shows holds for this input and the tokens tried, which are listed.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .storage import format_bytes, parse_bytes
from .watch import Watch, install, named_parts, opened_also, plan, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from .call import Call
    from .trace import Seen
    from .watch import Parts

LIMIT = "8GB"
FLOWS = 8
"""Calls of one module that are disturbed one by one, to see whether they are what flows on."""


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


def tensors_of(x: Any, depth: int = 0) -> list[Tensor]:
    """The tensors in arguments or outputs of a module, in order, each once."""
    if isinstance(x, torch.Tensor):
        return [] if x.is_nested or x.layout != torch.strided else [x]
    parts: Any = ()
    if isinstance(x, dict):
        parts = x.values()
    elif isinstance(x, list | tuple):
        parts = x
    elif hasattr(x, "__dataclass_fields__"):
        parts = vars(x).values() if hasattr(x, "__dict__") else ()
    found = [tensor for part in parts for tensor in tensors_of(part, depth + 1)] if depth < 4 else []
    return list({id(tensor): tensor for tensor in found}.values())


# Rows: which positions of a tensor differ from the recording


@dataclass(slots=True, eq=False)
class Change:
    """Where a tensor differs from what was recorded: `mask` has its shape, None if it is as recorded."""

    tensor: Tensor
    recorded: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, x: Tensor, recorded: Tensor | None) -> Change:
        if recorded is None or x.shape != recorded.shape or x.dtype != recorded.dtype:
            return cls(x, None, None)
        mask = x != recorded
        if x.is_floating_point() and bool(mask.any()):
            mask &= ~(x.isnan() & recorded.isnan())
        return cls(x, recorded, mask if bool(mask.any()) else None)

    def rows(self, way: int | None) -> Tensor:
        """The changed positions, without the axis of channels: the last, the second, or none (numbers of tokens)."""
        mask = self.tensor.new_zeros(self.tensor.shape, dtype=torch.bool) if self.mask is None else self.mask
        return mask if way is None else mask.any(way)

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
        if self.mask is None or self.mask.dim() < 2 or bool(self.mask.all()):
            return False
        flat = self.mask.reshape(-1, *self.mask.shape[-2:]).any(0)
        return bool(flat.any(0).all()) and bool(flat.any(1).all())


def without(x: Tensor, way: int | None) -> tuple[int, ...]:
    """The shape of `Change.rows`."""
    shape = list(x.shape)
    if way is not None:
        shape.pop(way)
    return tuple(shape)


def share(rows: Tensor) -> float:
    return float(rows.float().mean()) if rows.numel() else 0.0


@dataclass(slots=True)
class Spread:
    """Rows of a tensor that changed although they are unchanged in what the module was given."""

    change: Change
    way: int | None
    rows: Tensor
    before: Tensor


def compare(given: list[Change], change: Change) -> Spread | bool | None:
    """How rows spread from what a module was given to a tensor that has the same rows.

    False if they did not, None if no changed input has the same rows.
    """
    pairs = [
        (share(x.rows(own)), x, own, way)
        for x in given
        if x.mask is not None
        for own in x.ways()
        for way in change.ways()
        if without(x.tensor, own) == without(change.tensor, way)
        if (own, way) != (None, None) or not x.tensor.is_floating_point()
    ]
    if not pairs:
        return None
    way = min(pairs, key=lambda pair: pair[0])[3]
    rows, before = change.rows(way), torch.stack([x.rows(own) for _, x, own, to in pairs if to == way]).any(0)
    spread = rows & ~before
    if int(rows.sum()) <= int(before.sum()) or not bool(spread.any()):  # as many elsewhere: they were moved
        return False
    return Spread(change, way, spread, before)


def fewest(change: Change) -> Tensor:
    """The rows of a tensor in the way in which the smallest share changed."""
    return min((change.rows(way) for way in change.ways()), key=share)


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
        self.experiment, self.seen, self.thread = experiment, self, experiment.thread
        self.names = experiment.names
        self.stack: list[Frame] = []
        self.counts: Counter[str] = Counter()
        self.calls = 0
        self.failed = ""
        """Why nothing can be concluded from this run."""
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

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        name = self.names[id(module)]
        frame = Frame((name, self.counts[name]), module)
        self.counts[name] += 1
        self.stack.append(frame)
        self.enter(frame, tensors_of((args, kwargs)))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        while self.stack and self.stack[-1].module is not module:  # a module that was left by an exception
            self.stack.pop()
        if self.stack:
            self.leave(self.stack[-1], tensors_of(output), output)
            self.stack.pop()

    def changes(self, frame: Frame, tensors: list[Tensor], side: int) -> list[Change]:
        recorded = self.experiment.boundaries.get(frame.key, ((), ()))[side]
        if len(recorded) != len(tensors):
            return []
        return [Change.of(x, r) for x, r in zip(tensors, recorded, strict=True)]

    def random_like(self, x: Tensor) -> Tensor:
        """Numbers as large as those of x."""
        size = float(x.float().std()) if x.numel() > 1 else 0.0
        noise = torch.randn(x.shape, generator=self.noise, dtype=torch.float32)
        return (noise * (size if size > 0 else 1.0)).to(x)

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None: ...

    def enter(self, frame: Frame, given: list[Tensor]) -> None: ...

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None: ...


class OtherPathError(RuntimeError):
    """The model called other attention than when it was recorded."""


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
        q = None if call.q is None else self.keep(call.q)
        self.experiment.records.append(Record(call.name, frame.key, frame.calls, out, q))


class Flow(Run):
    """Disturbs the output of one call of each module: what is behind the module must change, and is put back there."""

    def __init__(self, experiment: Experiment, ordinal: int) -> None:
        super().__init__(experiment)
        self.ordinal = ordinal
        self.pending: list[Record] = []
        self.disturbed = False

    def call(self, call: Call, frame: Frame, output: Tensor | None, arrange: Any) -> None:
        record = self.record(call.name)
        if output is None or record.out is None or record.ordinal != self.ordinal or output.shape != record.out.shape:
            return
        output.copy_(record.out + self.random_like(record.out))
        record.flows, self.disturbed = False, True
        self.pending.append(record)

    def settle(self, changes: list[Change], running: set[tuple[str, int]]) -> bool:
        """Notes which calls reached this boundary, and puts it back. Returns whether it is as recorded now."""
        if any(record.frame in running for record in self.pending):
            return False
        changed = [x for x in changes if x.mask is not None]
        if not changed:
            return bool(changes)
        if not self.disturbed and not self.failed:
            name = self.stack[-1].key[0] or "the model"
            self.failed = f"{name} gives other numbers each time it runs: nothing can be compared"
        for record in self.pending:
            record.flows = True
        self.pending = []
        return all([x.put_back() for x in changed])

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
            if name not in experiment.attends and "forward" not in vars(part) and not _is_script(part):
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
        q = None if call.q is None or record.q is None or call.q.shape != record.q.shape else call.q
        rows = None if q is None else (q != record.q).any(-1)
        if self.batch and rows is not None and rows.dim() > 2:
            entries = rows.any(-1)
            record.interchanged |= bool((entries != entries[..., :1]).any())
        if output is None or record.out is None or output.shape != record.out.shape:
            return
        output.copy_(record.out)
        view = output
        if arrange is not None:
            arranged = arrange(output)
            view = arranged if arranged.untyped_storage()._cdata == output.untyped_storage()._cdata else output
        if call.matrix or rows is None or rows.shape != view.shape[:-1]:
            rows = self.rows_of_module(view)
        if rows is not None and bool(rows.any()):
            view += rows[..., None] * self.random_like(view)

    def rows_of_module(self, out: Tensor) -> Tensor | None:
        """The rows of an output whose queries are not known: those of the first input of the module that runs."""
        for frame in reversed(self.stack):
            given = [x for x in frame.given if x.tensor.is_floating_point()][:1]
            if not given or given[0].mask is None:
                continue
            rows = fewest(given[0])
            rows = rows[None] if rows.dim() == 1 else rows.flatten(1)  # [entries, tokens]
            axes = [out.dim() - 2, *range(out.dim() - 2)]
            token = next((n for n in axes if out.shape[n] == rows.shape[1]), None)
            if token is None:
                continue
            shape = [1] * (out.dim() - 1)
            shape[token] = rows.shape[1]
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
            for change in frame.given:
                asked = change.mask is not None and not self.is_weights(change, parent.given)
                spread = compare(parent.given, change) if asked else None
                if isinstance(spread, Spread):
                    self.find(parent, spread, f", before {frame.key[0].removeprefix(parent.key[0]).strip('.')}")
            frame.given = self.changes(frame, given, 0)
        if any(x.mask is not None for x in frame.given):
            self.reached.add(frame.key)

    def leave(self, frame: Frame, made: list[Tensor], output: Any) -> None:
        changed = [x for x in self.changes(frame, made, 1) if x.mask is not None]
        given = [x for x in frame.given if x.mask is not None]
        if isinstance(frame.module, nn.Softmax | nn.LogSoftmax | nn.Softmin):  # over scores: no tokens
            return
        unaligned = []
        for change in changed:
            if change.tensor.dim() == 0 or self.is_weights(change, frame.given):
                continue
            spread = compare(frame.given, change)
            if isinstance(spread, Spread):
                self.find(frame, spread, "")
            elif spread is None and given:
                unaligned.append(change)
        if unaligned:
            self.check_unaligned(frame, given, unaligned)

    def check_unaligned(self, frame: Frame, given: list[Change], made: list[Change]) -> None:
        """An output that has other rows than the inputs: windows, patches, merging, pooling."""
        before = [fewest(x) for x in given]
        after = [fewest(x) for x in made]
        self.unaligned[frame.key] = before, after
        for rows in after if not frame.mixed else ():
            most = max(int(x.sum()) for x in before)
            enlarged = rows.numel() > max(x.numel() for x in before)
            grown = share(rows) > 1.01 * max(map(share, before)) if enlarged else int(rows.sum()) > most
            if grown and int(rows.sum()) > most:
                self.place(frame, f"{most} changed positions became {int(rows.sum())} of {rows.numel()}")
                self.spoil(frame)
                break

    def is_weights(self, change: Change, given: list[Change]) -> bool:
        """Whether a tensor has the shape of a call's weights and is none of tokens: its rows and columns are."""
        x = change.tensor
        if x.dim() < 2 or tuple(x.shape[-2:]) not in self.experiment.shapes:
            return False
        alike = [y for y in given if y.tensor.shape == x.shape]
        return change.is_pairwise or not alike or any(y.is_pairwise for y in alike)

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
        self.saved: Tensor | None = None

    def enter(self, frame: Frame, given: list[Tensor]) -> None:
        wide = [x for x in given if x.is_floating_point() and x.dim() > 1]
        if frame.key in self.keys and self.inside is None and wide:
            x = wide[0]
            self.inside, self.saved = frame, x.clone()
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
            assert self.saved is not None
            wide = [x.tensor for x in frame.given if x.tensor.is_floating_point() and x.tensor.dim() > 1]
            wide[0].copy_(self.saved)
            for change in self.changes(frame, made, 1):
                if change.mask is not None:
                    change.put_back()
            self.inside = None


def kind_of(module: nn.Module) -> str:
    """The layer of PyTorch that a module is, by its class; "unknown" for code."""
    own = type(module)
    layer = next((x for x in own.__mro__ if x.__module__.startswith("torch.nn.modules.")), nn.Module)
    topic = layer.__module__.rpartition(".")[2]
    if layer is nn.Module or topic in ("container", "module"):
        return "unknown"
    words = {
        "conv": "convolution", "rnn": "recurrence", "pooling": "pooling", "normalization": "normalization over tokens",
        "batchnorm": "normalization over tokens", "instancenorm": "normalization over tokens", "linear": "projection over tokens",
        "activation": "attention or activation", "upsampling": "interpolation", "fold": "folding", "pixelshuffle": "merging",
    }  # fmt: skip
    return f"{words.get(topic, 'layer')} ({layer.__name__})" if own is layer else f"unknown ({layer.__name__} below)"


# The experiment


@dataclass(frozen=True, slots=True)
class Side:
    """An input whose tokens are changed."""

    number: int
    """Which of the tensors among the inputs."""
    axes: tuple[int, ...]
    """Those of its tokens."""


class Experiment:
    """The runs of a model, and what they have in common."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], limit: int) -> None:
        import threading

        self.model, self.inputs, self.options, self.limit = model, inputs, options, limit
        self.parts: Parts = named_parts(model)
        self.names = {id(part): name for name, part in self.parts}
        self.thread = threading.get_ident()
        self.records: list[Record] = []
        self.boundaries: dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]] = {}
        self.order: list[str] = []
        self.starts: dict[tuple[str, int], int] = {}
        self.spans: dict[tuple[str, int], Counter[str]] = {}
        self.attends: set[str] = set()
        """Modules inside which attention was called."""
        self.reasons: list[str] = []
        self.tried: list[str] = []
        self.single: set[tuple[str, int]] = set()
        """Runs of modules whose output is one tensor."""
        self.tensors = tensors_of((inputs, options))
        self.disturbed: list[Disturbed] = []
        self.shapes: set[tuple[int, ...]] = set()
        """Queries and keys of the calls that were recorded."""

    def run(self) -> Coverage:
        sides = [side for number, x in enumerate(self.tensors) if (side := self.side(number, x)) is not None]
        watch = Watch(self.parts, None, None, None, False)
        buffers = {x: x.clone() for x in self.model.buffers()}
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it would run a whole layer as one function
        install(plan(self.parts))
        try:
            with torch.no_grad():
                with watch as seen:
                    self.execute(Recording(self), {})
                self.shapes = {tuple(call.shape[-2:]) for call in seen.calls}
                self.experiments(sides)
        finally:
            remove()
            torch.backends.mha.set_fastpath_enabled(before)
            with torch.no_grad():
                for x, value in buffers.items():
                    x.copy_(value)
        return self.conclude(seen)

    def execute(self, run: Run, changed: dict[int, Tensor]) -> bool:
        """Run the model with these tensors of its inputs changed. False if nothing can be concluded from it."""
        memo: dict[int, Any] = {id(x): changed.get(n, x).detach().clone() for n, x in enumerate(self.tensors)}
        inputs, options = copy.deepcopy((self.inputs, self.options), memo)
        devices = {x.device for x in self.model.parameters() if x.device.type == "cuda"}
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([x.index or 0 for x in devices]))
            torch.manual_seed(0)
            stack.enter_context(opened_also(run))
            for _, part in self.parts:
                for handle in (
                    part.register_forward_pre_hook(run.before, with_kwargs=True),
                    part.register_forward_hook(run.after, with_kwargs=True),
                ):
                    stack.callback(handle.remove)
            if isinstance(run, Flow):
                stack.enter_context(run.skipping())
            self.model(*inputs, **options)
        if run.failed and run.failed not in self.reasons:
            self.reasons.append(run.failed)
        return not run.failed

    def experiments(self, sides: list[Side]) -> None:
        most = max((record.ordinal for record in self.records), default=-1) + 1
        for ordinal in range(min(max(most, 1), FLOWS)):
            if not self.execute(Flow(self, ordinal), {}):
                return
        for side in sides:
            x, name = self.tensors[side.number], self.input_name(side.number)
            for size, tokens in enumerate(self.tokens(x, side.axes)):
                if tokens:
                    run = Disturbed(self)
                    self.disturbed.append(run)
                    self.tried.append(f"{'tokens' if len(tokens) > 1 else 'token'} {_listed(tokens)} of {name}")
                    if not self.execute(run, {side.number: _disturbed(x, side.axes, tokens, 1.0 + 3 * size)}):
                        return
            self.merged(self.disturbed[-2:])
        wide = [side.number for side in sides if self.tensors[side.number].dim() > 1]
        entries = {self.tensors[number].shape[0] for number in wide}
        if len(entries) == 1 and (count := entries.pop()) > 1:
            run = Disturbed(self, batch=True)
            self.disturbed.append(run)
            self.tried.append(f"entry {count // 2} of {count}")
            changed = {n: _disturbed(self.tensors[n], (0,), [(count // 2,)], 1.0) for n in wide}
            if not self.execute(run, changed):
                return
        self.not_reached()

    def side(self, number: int, x: Tensor) -> Side | None:
        """How an input has tokens; None for masks, positions, and what has one number or one token."""
        if x.dtype == torch.bool or x.is_complex() or x.numel() < 2 or x.dim() == 0:
            return None
        if bool(((x == x.max()) | (x == x.min())).all()) and x.dim() != 3:  # a mask, or all alike
            if x.is_floating_point() or bool(((x == 0) | (x == 1)).all()):
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
        if x.dim() == 3:
            return Side(number, (1,) if x.shape[1] > 1 else (2,))
        last = x.shape[-1] <= 4 < x.shape[1]  # channels
        return Side(number, tuple(range(1, x.dim() - 1) if last else range(2, x.dim())))

    def tokens(self, x: Tensor, axes: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
        """Positions that are changed in one run, and those of another: the middle; first, the middle's neighbour, last."""
        sizes = [x.shape[axis] for axis in axes]
        if max(sizes) < 2:
            return []
        middle = [size // 2 for size in sizes]
        step = 1 if len(axes) == 1 and sizes[0] < 400 else self.patch(sizes[-1])
        beside = [*middle[:-1], min(middle[-1] + step, sizes[-1] - 1)]
        other = {tuple([0] * len(sizes)), tuple(beside), tuple(size - 1 for size in sizes)} - {tuple(middle)}
        return [[tuple(middle)], sorted(other)]

    def patch(self, size: int) -> int:
        """How far neighbouring tokens are apart: the width of patches that do not overlap, or a quarter of the whole."""
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
            if not inside and key[0] not in known and not any(
                other != key and f"{other[0]}.".startswith(f"{key[0]}." if key[0] else "") for other in found
            ):
                module = self.model.get_submodule(key[0])
                second.places[key[0]] = Unseen(key[0], kind_of(module), "several tokens become one")

    def not_reached(self) -> None:
        """What no changed token reached is disturbed by itself: behind a saturated activation, or in a dead path."""
        reached = {key for run in self.disturbed for key in run.reached}
        asleep = {
            key
            for key, (given, _) in self.boundaries.items()
            if key not in reached and any(x.is_floating_point() and x.dim() > 1 and x[..., 0].numel() > 1 for x in given)
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
        rows = [*self.call_verdicts(seen, unseen), *((x.module, "mixes tokens, unseen", f"{x.kind}, {x.reach}") for x in unseen.values())]
        mixing = {row[0] for row in rows}
        still = len({name for name, _ in self.boundaries} - mixing)
        coverage = Coverage(complete, list(unseen.values()), rows, self.tried, self.reasons, seen, still)
        seen.coverage = coverage
        return coverage

    def call_verdicts(self, seen: Seen, unseen: dict[str, Unseen]) -> Iterator[tuple[str, str, str]]:
        by_name: dict[str, list[Record]] = {}
        for record in self.records:
            by_name.setdefault(record.name, []).append(record)
        for call in seen.calls:
            name = "" if call.name not in by_name else call.name
            fidelity, records = call.fidelity(), by_name.get(name, [])
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


def _is_script(part: nn.Module) -> bool:
    return isinstance(part, torch.jit.ScriptModule)


def _meet(first: list[Tensor], second: list[Tensor]) -> bool:
    return any(a.shape == b.shape and bool((a & b).any()) for a in first for b in second)


def _listed(tokens: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(x[0]) if len(x) == 1 else str(x) for x in tokens)


def _disturbed(x: Tensor, axes: tuple[int, ...], tokens: Sequence[tuple[int, ...]], size: float) -> Tensor:
    """The tensor with other numbers at these positions: noise as large as its own numbers, or other ids of its own."""
    out = x.detach().clone()
    noise = torch.Generator().manual_seed(2)
    for token in tokens:
        at: list[Any] = [slice(None)] * x.dim()
        for axis, n in zip(axes, token, strict=True):
            at[axis] = n
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
