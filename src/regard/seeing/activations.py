"""Activations: the residual stream, the outputs of MLPs and of heads, of a watched model.

    with regard.watch(model, activations=True) as seen:
        model(**inputs)
    seen.stream[3]       what the fourth layer read, [B, T, d]; seen.stream[L] is what left the last layer
    seen.mlp[3]          what its MLP gave, [B, T, d]
    seen.heads[3]        Σ_j w_ij v_j of all heads, [B, heads, T, d_v], computed when it is asked for

Hooks keep references to what the layers and their parts returned; of a generation, those of all its forward passes,
which are put side by side when somebody asks. The MLP of a layer is its one part that has matrices and called no
attention.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..attention.parts import TensorVersions
from .interventions import layers_of
from .text_models import first_tensor

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    from .trace import Seen

HEAD_ROWS = 1024
"""Queries whose weights are computed at once."""


class Activations:
    """What the layers of a model, and the parts of each, returned while they were watched."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = layers_of(model)
        stacks = sorted({name.rpartition(".")[0] for name, _ in self.layers})
        if len(stacks) != 1:
            found = (
                f"several ({', '.join(stacks)}): watch one of them" if stacks else "none: no module's name is a number"
            )
            raise ValueError(f"activations are those of one stack of layers; {type(model).__name__} has {found}")
        self._kept: dict[str, list[tuple[Tensor, TensorVersions]]] = {}
        self._hooks = ExitStack()

    def open(self) -> None:
        self._thread = threading.get_ident()
        first = self.layers[0][1]
        self._hooks.enter_context(first.register_forward_pre_hook(self._before, with_kwargs=True))
        for name, layer in self.layers:
            self._hooks.enter_context(layer.register_forward_hook(self._after(name)))
            for child_name, child in layer.named_children():
                if any(x.dim() > 1 for x in child.parameters()):
                    self._hooks.enter_context(child.register_forward_hook(self._after(f"{name}.{child_name}")))

    def close(self) -> None:
        self._hooks.close()

    def _keep(self, name: str, output: Any) -> None:
        x = first_tensor(output)
        if x is not None and threading.get_ident() == self._thread:
            self._kept.setdefault(name, []).append((x.detach(), TensorVersions([x])))

    def _before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._keep("", (*args, kwargs.get("hidden_states")))

    def _after(self, name: str) -> Any:
        return lambda module, args, output: self._keep(name, output)

    def of(self, name: str) -> Float[Tensor, "b t d"]:
        """Of all forward passes."""
        kept = self._kept.get(name, [])
        if not kept:
            raise ValueError(f"{name or 'the first layer'} did not run while it was watched")
        if any(versions.changed() for _, versions in kept):
            raise ValueError(f"what {name or 'the first layer'} gave was changed in place since; ask before that")
        return kept[0][0] if len(kept) == 1 else torch.cat([x for x, _ in kept], dim=-2)

    def mlp(self, layer: int, called: Sequence[str]) -> Float[Tensor, "b t d"]:
        name = self.layers[layer][0]
        parts = [x for x in self._kept if x.startswith(f"{name}.")]
        parts = [x for x in parts if not any(f"{y}.".startswith(f"{x}.") for y in called)]
        if len(parts) != 1:
            found = ", ".join(parts) or "none of its parts"
            raise ValueError(f"{name}: one part with matrices beside attention is expected as its MLP, found {found}")
        return self.of(parts[0])


class LayerValues(Sequence["Tensor"]):
    """What flowed at one kind of place, layer by layer."""

    def __init__(self, seen: Seen, activations: Activations | None, kind: str) -> None:
        self._seen, self._activations, self._kind = seen, activations, kind
        if activations is None and kind != "heads":
            self._missing()

    def _missing(self) -> NoReturn:
        raise ValueError(f"{self._kind} was not kept; record with watch(model, activations=True)")

    def __len__(self) -> int:
        if self._activations is None or self._kind == "heads":
            return len(self._seen)
        return len(self._activations.layers) + (self._kind == "stream")

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return [self[n] for n in range(*layer.indices(len(self)))]
        if not -len(self) <= layer < len(self):
            raise IndexError(f"{self._kind} has {len(self)} entries, counted from 0; there is no {layer}")
        layer %= len(self)
        if self._kind == "heads":
            return self._heads(layer)
        assert self._activations is not None
        if self._kind == "mlp":
            return self._activations.mlp(layer, self._seen.names)
        return self._activations.of("" if layer == 0 else self._activations.layers[layer - 1][0])

    @torch.no_grad()
    def _heads(self, number: int) -> Float[Tensor, "*batch heads t d"]:
        call = self._seen.calls[number]
        v, w = call.v, call.weights
        v = v.repeat_interleave(w.shape[-3] // v.shape[-3], dim=-3) if v.dim() > 2 else v
        blocks = [range(start, min(start + HEAD_ROWS, w.shape[-2])) for start in range(0, w.shape[-2], HEAD_ROWS)]
        return torch.cat([w.tile(list(rows), slice(None)).to(v.dtype) @ v for rows in blocks], dim=-2)

    def __repr__(self) -> str:
        return f"{self._kind} of {len(self)}: {[list(self[n].shape) for n in range(min(2, len(self)))]} …"
