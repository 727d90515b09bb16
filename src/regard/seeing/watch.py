"""Taps: each sees the calls of one attention function. A new tap is a module here and an entry in `TAPS`."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING

from torch import nn

from . import routing, taps, taps_huggingface, taps_linear, taps_multihead, taps_written
from .modules import ModuleDepths, kinds_of, named_parts
from .storage import TensorStorage
from .trace import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from .modules import Parts

TAPS = (
    taps.SDPA_TAP,
    taps_multihead.TAP,
    taps.FLEX_TAP,
    taps.ATTEND_TAP,
    taps_huggingface.TAP,
    taps_written.TAP,
    taps_linear.TAP,
    taps.MODULE_TAP,
)


_lock = threading.RLock()


def watch(
    model: nn.Module,
    *,
    layers: int | str | Sequence[int | str] | None = None,
    keep: str | Path | None = None,
    limit: str | int | None = None,
    gradients: bool = False,
) -> Watch:
    """Record every attention call that `model` makes inside the block; the model itself does not change.

        with regard.watch(model) as seen:
            model(**inputs)                        # or model.generate(…), or a training step
        seen["encoder.layer.3"].head(5).top(8)

    Queries, keys, values and one number per row are kept by reference, so that watching takes almost no time; weights
    are computed when they are asked for.

    - `layers`: record these only, by depth, name or pattern (`3`, `"decoder"`, `"*.cross_attn"`).
    - `keep`: "cpu" keeps copies on the CPU, a folder keeps them in files; by default tensors are kept by reference.
      "qk" keeps no values: each call is then proved at once, which takes time while the model runs.
    - `limit`: the memory to keep at most ("8GB"); calls beyond are counted in `seen.missed`, not kept.
    - `gradients`: keep the gradient of each output, `call.gradient`, when a backward pass computes it, inside the block
      or after it. `call.contributions()` is then attention × gradient.

    Held for each call: T_q · heads · D numbers of queries, T_k · key heads · D of keys and as many of values, a mask
    (two numbers per query where that is the same) and 64 rows of the output; of a generation, the newest keys and
    values only. `seen.matrices` lists the calls that hold their T_q × T_k weights instead. `seen.nbytes` is the sum.

    Calls inside a model compiled with `torch.compile` cannot be recorded: watch the original model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model (an nn.Module), got {type(model).__name__}")
    parts = named_parts(model)
    compiled = next((name or "the model" for name, part in parts if _is_compiled(part)), None)
    if compiled is not None:
        raise ValueError(
            f"{compiled} is compiled, and calls inside compiled code cannot be seen. Watch and call the original "
            "model (model._orig_mod, or without model.forward = torch.compile(…)), or watch before compiling"
        )
    return Watch(parts, layers, keep, limit, gradients)


class Watch:
    """The context manager that `watch` returns; entering it returns a `Seen`."""

    def __init__(
        self,
        parts: Parts,
        layers: int | str | Sequence[int | str] | None,
        keep: str | Path | None,
        limit: str | int | None,
        gradients: bool = False,
    ) -> None:
        """`parts` are the modules of the model, the model itself first. Holding them keeps the ids in `names` valid."""
        self.model, self._parts, self._plan = parts[0][1], parts, routing.plan(parts)
        self.names = {id(part): name or type(part).__name__ for name, part in parts}
        self.layers = [layers] if isinstance(layers, int | str) else layers
        self._depths = ModuleDepths(kinds_of(parts), self.model)
        self._selected: dict[str, bool] = {}
        self.thread = 0
        self.seen = Seen(type(self.model).__name__, TensorStorage(keep, limit), self._depths, gradients)

    def __enter__(self) -> Seen:
        self.thread = threading.get_ident()
        routing.install(self._plan)
        routing.on_watch()
        with _lock:
            routing.set_watches((*routing.watches, self))
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        routing.on_close()
        with _lock:
            routing.set_watches(tuple([watch for watch in routing.watches if watch is not self]))
        routing.remove()
        self.seen.close(functools.partial(_advice, type(self.model).__name__))

    def selects(self, name: str) -> bool:
        """Whether the calls of the module of this name are recorded."""
        if self.layers is None:
            return True
        selected = self._selected.get(name)
        if selected is None:
            self._selected[name] = selected = any(self._depths.selects(name, x) for x in self.layers)
        return selected


def _advice(model: str) -> str:
    """What to do if no call was recorded."""
    functions = [tap.sees for tap in TAPS if tap.sees]
    advice = (
        f"{model} called no attention inside the block that could be seen: "
        f"{', '.join(functions[:-1])} or {functions[-1]}. A function of your own is seen with one line, "
        "regard.note(q, k, v, out)"
    )
    if "torch._dynamo" in sys.modules:  # imported by torch.compile
        advice += (
            ". Calls inside a function made by torch.compile, such as torch.compile(model.forward), cannot be "
            "seen: call the model itself inside the block, or torch.compiler.set_stance('force_eager') first"
        )
    return advice


def _is_compiled(part: nn.Module) -> bool:
    """Whether it is torch.compile(module), or was compiled by module.compile() or torch.compile(module.forward)."""
    own = part.__dict__
    if own.get("_compiled_call_impl") is not None or type(part).__name__ == "OptimizedModule":
        return True
    return "forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable")
