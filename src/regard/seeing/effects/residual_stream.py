"""The residual stream of a forward pass: what the embedding, each layer's attention and the rest of the layer added.

    x_{l+1} = x_l + a_l + m_l          logits = W_U · norm(x_L)

x_l is the input of layer l, a_l what its attention adds (the heads side by side, times W_O, plus a bias) and m_l what
its MLP adds. The parts are found in the data, not by the names of an architecture: the output projection is the module
whose input is the output of the attention that was recorded, the MLP is the module of the layer whose output is
x_{l+1} − x_l − a_l, and the final norm is the module whose output the output layer reads. A model that adds something
else to the stream (a norm or a factor after the projection) is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..capture.module_depth import named_parts
from ..capture.watch import watch
from .model_inputs import first_tensor, run_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jaxtyping import Float

    from ..capture.attention_call import Call
    from ..capture.recorded_calls import Seen

ROUNDING = 64
"""How many units in the last place of the largest number the parts of a layer may differ from their sum."""


@dataclass(slots=True, eq=False)
class StreamLayer:
    """One layer: its attention call, the projection of the heads, and the stream before and after it."""

    name: str
    call: Call
    projection: nn.Module
    heads: Float[Tensor, "b t heads_d"]
    """The outputs of all heads side by side: the input of the projection."""
    before: Float[Tensor, "b t d"]
    attention: Float[Tensor, "b t d"]
    after: Float[Tensor, "b t d"]
    mlp: str
    """The name of the module that adds the rest."""

    @property
    def rest(self) -> Float[Tensor, "b t d"]:
        """What the MLP adds."""
        return self.after - self.before - self.attention


@dataclass(slots=True, eq=False)
class ResidualStream:
    """A recorded forward pass of a model whose layers add to a residual stream."""

    seen: Seen
    layers: list[StreamLayer]
    norm: nn.Module
    head: nn.Module
    """The output layer, W_U."""
    last: Float[Tensor, "b t d"]
    """x_L, the input of the final norm."""
    normed: Float[Tensor, "b t d"]
    """norm(x_L), the input of the output layer."""
    logits: Float[Tensor, "b t v"]
    """As the output layer gives them."""
    model_logits: Any
    """The attribute `logits` of what the model returned, if it has one: the model may have scaled or capped them."""


@torch.no_grad()
def record_stream(
    model: nn.Module, inputs: Tensor | Mapping[str, Any], *, head: nn.Module | None = None
) -> ResidualStream:
    """Run the model once and record its residual stream. `head`: its output layer, if it has no accessor for it."""
    find = getattr(model, "get_output_embeddings", None)
    head = head if head is not None or find is None else find()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} has no get_output_embeddings(), the layer that gives logits; name it with head=…"
        )
    with watch(model) as seen, _Recorder(model, head, seen).installed() as recorder:
        output = run_model(model, inputs)
    return recorder.stream(getattr(output, "logits", None))


class _Recorder:
    """Hooks that record the inputs and outputs of layers, projections, norms and the output layer."""

    def __init__(self, model: nn.Module, head: nn.Module, seen: Seen) -> None:
        self.model, self.head, self.seen = model, head, seen
        self.layers: list[StreamLayer] = []
        self._inputs: dict[str, Tensor] = {}  # of the layers that are running
        self._children: dict[str, Tensor] = {}  # outputs of the modules of the layer that is running
        self._projected: list[tuple[Call, str, nn.Module, Tensor, Tensor]] = []
        self._norm: tuple[nn.Module, Tensor, Tensor] | None = None
        self._final: tuple[nn.Module, Tensor, Tensor, Tensor] | None = None

    @contextmanager
    def installed(self) -> Iterator[_Recorder]:
        handles = []
        for name, part in named_parts(self.model):
            parent, _, last = name.rpartition(".")
            if last.isdecimal():
                handles.append(part.register_forward_pre_hook(self._before_layer(name), with_kwargs=True))
                handles.append(part.register_forward_hook(self._after_layer(name)))
            elif parent.rpartition(".")[2].isdecimal():
                handles.append(part.register_forward_hook(self._after_child(name)))
            if part is self.head:
                handles.append(part.register_forward_hook(self._after_head))
            elif not part._modules and "norm" in type(part).__name__.lower():
                handles.append(part.register_forward_hook(self._after_norm))
            elif not part._modules and getattr(getattr(part, "weight", None), "ndim", 0) == 2:
                handles.append(part.register_forward_hook(self._after_linear(name)))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _before_layer(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor((*args, *(kwargs[key] for key in ("hidden_states", "x", "input") if key in kwargs)))
            if x is not None:
                self._inputs[name] = x
                self._children.clear()

        return hook

    def _after_child(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            x = first_tensor(output)
            if x is not None:
                self._children[name] = x

        return hook

    def _after_linear(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            x, call = first_tensor(args), self.seen.calls[-1] if self.seen.calls else None
            if x is None or call is None or any(call is done[0] for done in self._projected):
                return
            rows, out = call.outputs()
            side_by_side = out.transpose(-3, -2).flatten(-2)
            fits = x.dim() == 3 and x.shape[-1] == side_by_side.shape[-1] and x.shape[1] == call.shape[-2]
            if fits and torch.equal(x[:, rows.to(x.device)], side_by_side):
                self._projected.append((call, name, module, x, output))

        return hook

    def _after_layer(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            after, before = first_tensor(output), self._inputs.pop(name, None)
            calls = [done for done in self._projected if done[1].startswith(f"{name}.")]
            if after is None or before is None or not calls:
                return
            if len(calls) > 1:
                raise ValueError(f"{name} has {len(calls)} attentions; a layer with one is expected")
            call, _, projection, heads, attention = calls[0]
            layer = StreamLayer(name, call, projection, heads, before, attention, after, "")
            layer.mlp = self._find_rest(layer)
            self.layers.append(layer)

        return hook

    def _find_rest(self, layer: StreamLayer) -> str:
        """The module of the layer whose output is what attention did not add."""
        rest, size = layer.rest, max(float(x.abs().max()) for x in (layer.before, layer.after, layer.attention))
        for name, output in self._children.items():
            same = output.numel() == rest.numel() and name.startswith(f"{layer.name}.")
            if same and float((output.reshape(rest.shape) - rest).abs().max()) <= ROUNDING * size * _eps(rest):
                return name
        raise ValueError(
            f"{layer.name}: its output is not its input plus what attention and one other module add, so the "
            "contributions of heads to the residual stream are not W_O times their output. Models with norms or "
            "factors after the projection (Gemma 2, Granite) or norms after the sum (BERT) are of this kind"
        )

    def _after_norm(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = first_tensor(args)
        if x is not None:
            self._norm = module, x, output

    def _after_head(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = first_tensor(args)
        if x is None or self._norm is None or self._norm[2].shape[-1] != x.shape[-1]:
            return
        norm, before, after = self._norm
        if x.shape == after.shape and torch.equal(x, after):
            self._final = norm, before, after, output

    def stream(self, model_logits: Any) -> ResidualStream:
        model = type(self.model).__name__
        if not self.layers:
            raise ValueError(
                f"{model}: no layer was found whose attention is followed by a linear output projection; {self.seen!r}"
            )
        if self._final is None:
            raise ValueError(
                f"{model}: its output layer does not read the output of a final norm at every position; give inputs "
                "without logits_to_keep"
            )
        norm, last, normed, logits = self._final
        for layer, following in zip(self.layers, [*(x.before for x in self.layers[1:]), last], strict=True):
            if layer.after.shape != following.shape or not torch.equal(layer.after, following):
                raise ValueError(f"{layer.name}: its output is not the input of what follows it in the stream")
        return ResidualStream(self.seen, self.layers, norm, self.head, last, normed, logits, model_logits)


def _eps(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps
