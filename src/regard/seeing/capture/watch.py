"""watch(): see every call of attention a model makes, while it runs as it is."""

from __future__ import annotations

import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import Tensor, nn

from . import dispatch, taps
from .call import Call, layer_of
from .record import placed, tensors_of
from .seen import Seen
from .storage import Keeper, words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from .record import Record

_lock = threading.RLock()


def watch(
    model: nn.Module,
    *,
    layers: int | str | Sequence[int | str] | None = None,
    keep: str | Path | None = None,
    limit: str | int | None = None,
) -> Watch:
    """See every call of attention that `model` makes inside the block; nothing about the model changes.

        with regard.watch(model) as seen:
            model(**inputs)                        # or model.generate(…), or a training step
        seen["encoder.layer.3"].head(5).top(8)

    Kept are queries, keys, values and one number per row, by reference, so that watching takes next to no time; the
    weights are computed when asked for.

    - `layers`: only these, by number, by name or by pattern (`3`, `"decoder"`, `"*.cross_attn"`).
    - `keep`: "cpu" copies what is kept there, a folder writes it to files in it; else it stays where it is.
    - `limit`: at most so much is kept ("8GB"); calls beyond are counted and named, not kept.

    A model that `torch.compile` runs cannot be looked into: watch the model it was made from.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model (an nn.Module), got {type(model).__name__}")
    compiled = [name or "the model" for name, part in model.named_modules() if _compiled(part)]
    if compiled:
        raise ValueError(
            f"{compiled[0]} is compiled, and calls inside compiled code cannot be seen. Watch and call the model it "
            "was made from (model._orig_mod), or watch before compiling"
        )
    return Watch(model, layers, Keeper(keep, limit))


class Watch:
    """What `watch` returns: a context manager whose block is watched. It gives a `Seen`."""

    def __init__(self, model: nn.Module, layers: int | str | Sequence[int | str] | None, keeper: Keeper) -> None:
        self.model, self.keeper = model, keeper
        self.wanted = [layers] if isinstance(layers, int | str) else layers
        # By identity: a module may not be hashable. The model is held, so no other object can get its number.
        self.names: dict[int, str] = {}
        for name, part in model.named_modules():
            self.names.setdefault(id(part), name or type(model).__name__)
        self.thread = 0
        self.seen = Seen(type(model).__name__, keeper)
        self._last: dict[str, Call] = {}
        self._dropped = 0

    def __enter__(self) -> Seen:
        self.thread = threading.get_ident()
        taps.install(self.model)
        taps.huggingface_tap.understood_here.clear()
        with _lock:
            dispatch.watches = (*dispatch.watches, self)
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            dispatch.watches = tuple(watch for watch in dispatch.watches if watch is not self)
        taps.remove()
        self._last.clear()
        if self._dropped:
            assert self.keeper.limit is not None
            self.seen.missed.append(f"{self._dropped} calls were not kept: the limit is {words(self.keeper.limit)}")
        if not self.seen.calls:
            self.seen.advice = (
                f"{type(self.model).__name__} called no attention inside the block that could be seen: "
                "scaled_dot_product_attention, nn.MultiheadAttention, flex_attention, regard.attend, a Hugging Face "
                "attention or a softmax in an attention module. A function of your own is seen with one line, "
                "regard.note(q, k, v, out)"
            )

    # Told by the taps

    def hear(self, name: str, record: Record | Callable[[], Record], held: tuple[Tensor, ...]) -> None:
        """Keep this call, or make it part of the last one of the same module. The model must never fail for it."""
        if not self._wants(name):
            return
        with _lock:
            try:
                self._keep(name, record, held)
            except Exception as error:  # whatever it is, it is ours, and the model's run goes on
                self.miss(name, f"{type(error).__name__}: {error}")

    def _keep(self, name: str, record: Record | Callable[[], Record], held: tuple[Tensor, ...]) -> None:
        last = self._last.get(name)
        if callable(record):
            record = self._in_time(record) if self.keeper.copies else _few_rows(record)
        if not callable(record):
            if last is not None and self._grown(last, record):
                return
            held = (*tensors_of(record), *held)
        if not self.keeper.room(held):
            self._dropped += 1
            return
        call = Call(name, record) if callable(record) else Call(name, placed(record, self.keeper.place), record)
        self._last[name] = call
        self.seen.calls.append(call)

    def _in_time(self, make: Callable[[], Record]) -> Record:
        """Worked out and measured now: copies are asked for, so what it takes may be gone later."""
        record = placed(make(), Tensor.detach)
        faith = Call("", record).fidelity()
        return replace(record, measured=faith.error, budget=faith.budget, after=None)

    def _grown(self, last: Call, record: Record) -> bool:
        """Whether this was the next step of a generation, and there was room for it."""
        queries, keys = record.energies.queries, record.energies.keys
        more = record.energies.a.nbytes + record.out.nbytes
        more += (record.energies.b.nbytes + record.v.nbytes) * min(queries, keys) // keys
        if self.keeper.limit is not None and self.keeper.bytes + more > self.keeper.limit:
            return False  # nor will there be for a call of its own, so it is counted as left out
        if not last.goes_on(record, self.keeper.place):
            return False
        self.keeper.bytes += more
        return True

    def miss(self, name: str, why: str) -> None:
        word = f"{name}: {why}"
        if word not in self.seen.missed:
            self.seen.missed.append(word)

    def _wants(self, name: str) -> bool:
        if self.wanted is None:
            return True
        return any(
            layer_of(name) == one if isinstance(one, int) else f".{one}." in f".{name}." or fnmatchcase(name, one)
            for one in self.wanted
        )


def _few_rows(make: Callable[[], Record]) -> Callable[[], Record]:
    return lambda: placed(make(), Tensor.detach)


def _compiled(part: nn.Module) -> bool:
    return type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
