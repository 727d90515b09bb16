"""Paths from a sender to receivers (Wang et al. 2023; Goldowsky-Dill et al. 2023): `effects(…, into=…, through=…)`.

A change reaches the receivers through the residual stream alone. With the difference δ that the new output of a sender
makes in the stream, all else as it was,

    the query, key or value of a head, or all three, is computed from norm(x + δ), the others from norm(x)
    an MLP computes MLP(norm(x + δ)), and the stream after the last layer is x + δ

and the model runs with these outputs of the receivers: what lies between sender and receiver carries nothing on. (Wang
et al. let the MLPs between them carry it on.)
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ..attention.weights import Weights
from .interventions import CallNumbers, Edit, Place, Site, SiteReplacement
from .logit_attribution import record_stream
from .text_models import all_tensors, batch_size, repeated, run_model
from .watch import named_parts, watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Float
    from torch import Tensor, nn

    from .effects import Inputs, LayerPrefix
    from .interventions import RecordedOutput
    from .logit_attribution import ResidualStream

Through = Literal["query", "key", "value"]


class Reached(Exception):
    """The receiver of a path has run; the rest of the model need not."""


class Paths:
    """What receivers give when the new output of a sender reaches them through the residual stream alone."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        prefix: LayerPrefix,
        receivers: list[Site],
        through: Through | None,
        places: Mapping[Place, RecordedOutput],
        numbers: CallNumbers,
        new: Mapping[Place, Tensor | None],
    ) -> None:
        if through is not None and through not in get_args(Through):
            raise ValueError(f"through is {through!r}; expected one of {', '.join(map(repr, get_args(Through)))}")
        self.model, self.inputs, self.prefix, self.through = model, inputs, prefix, through
        self.places, self.numbers, self.new = places, numbers, new
        self.stream: ResidualStream = record_stream(model, inputs)
        layers = len(self.stream.layers)
        self.receivers = []
        for site in receivers:
            least, most = (0, layers) if site.part == "stream" else (0, layers - 1)
            if site.layer is None or not least <= site.layer <= most or site.token is not None:
                raise ValueError(
                    f"{site.name} receives nothing: receivers are heads, MLPs and the stream of {layers} layers"
                )
            if site.part == "attention" and site.head is None:
                raise ValueError(f"layer {site.layer} receives by its heads: name them, Site({site.layer}, head)")
            layer = self.stream.layers[min(site.layer, layers - 1)]
            name = {"attention": layer.call.name, "mlp": layer.mlp}.get(site.part, layer.name)
            self.receivers.append(replace(site, module=name))

    def reaches(self, sender: Site) -> bool:
        return any(self._reaches(sender, receiver) for receiver in self.receivers)

    @staticmethod
    def _reaches(sender: Site, receiver: Site) -> bool:
        order = {"stream": 0, "embedding": 0, "attention": 1, "mlp": 2}
        place, into = sender.place, receiver.place
        above = (into.layer, order[into.part]) > (place.layer, order[place.part])
        return above or (place.part in ("stream", "embedding") and into == ("stream", place.layer))

    def _difference(self, sender: Site) -> Float[Tensor, "b t d"]:
        """What the new output of the sender adds to the stream."""
        place, new = sender.place, self.new[sender.place]
        old = self.places[place].by_heads
        change = torch.zeros_like(old)
        at = slice(None), sender.heads, sender.tokens
        change[at] = (-old if new is None else new - old)[at]
        if place.part != "attention":
            return change[:, 0]
        projection, side_by_side = self.stream.layers[place.layer].projection, change.transpose(1, 2).flatten(2)
        return projection(side_by_side) - projection(torch.zeros_like(side_by_side))  # type: ignore[no-any-return]

    def received(self, senders: list[Site]) -> list[Edit]:
        """For each part of the batch, one sender each, the outputs of all receivers that it reaches."""
        edits, batch = [], batch_size(self.inputs)
        every = slice(0, batch * len(senders))
        differences = [self._difference(sender) for sender in senders]
        for receiver in self.receivers:
            reached = [self._reaches(sender, receiver) for sender in senders]
            x = torch.cat([d if ok else torch.zeros_like(d) for d, ok in zip(differences, reached, strict=True)])
            layer = receiver.layer or 0
            if receiver.part == "stream":
                last = self.stream.last if layer == len(self.stream.layers) else self.stream.layers[layer].before
                new = (last.repeat(len(senders), 1, 1) + x)[:, None]
            elif receiver.part == "mlp":
                new = self._mlp(layer, x, senders)[:, None]
            else:
                new = self._head(receiver, x)
            edits.append(Edit(every, receiver, new))
        return edits

    def _layer(self, layer: int, x: Tensor, edits: list[Edit], stop: nn.Module) -> None:
        """Run the model up to a module of a layer, whose input is the stream as it was, and x."""
        times, batch = len(x) // batch_size(self.inputs), batch_size(self.inputs)
        stream = (self.stream.layers[layer].before.repeat(times, 1, 1) + x)[:, None]
        own = Edit(slice(0, len(x)), Site(layer, part="stream"), stream)

        def reached(*_: Any) -> None:
            raise Reached

        change = SiteReplacement(self.model, [own, *edits], [], dict(self.numbers))
        with suppress(Reached), ExitStack() as blocks:
            blocks.enter_context(change.opened())
            blocks.enter_context(self.prefix.skipped(min(layer, self.prefix.count), batch, times))
            blocks.enter_context(stop.register_forward_hook(reached))
            run_model(self.model, repeated(self.inputs, batch, times))

    def _mlp(self, layer: int, x: Tensor, senders: list[Site]) -> Float[Tensor, "b t d"]:
        """The MLP's output, its layer's attention as it was; a sender of the same layer reaches it in between."""
        batch, module = batch_size(self.inputs), dict(named_parts(self.model))[self.stream.layers[layer].mlp]
        place = Place("attention", layer)
        old, edits = self.places[place].by_heads, []
        for at, sender in enumerate(senders):
            rows = slice(at * batch, (at + 1) * batch)
            edits.append(Edit(rows, Site(layer), old))
            if sender.place == place:
                x[rows] = 0
                edits.append(Edit(rows, sender, self.new[place]))
        outputs: list[Tensor] = []
        handle = module.register_forward_hook(lambda module, args, output: outputs.extend(all_tensors(output)[:1]))
        try:
            self._layer(layer, x, edits, module)
        finally:
            handle.remove()
        return outputs[0]

    def _head(self, receiver: Site, x: Tensor) -> Float[Tensor, "b heads t d"]:
        """The output of the layer's heads, Σ_j w_ij v_j, with queries, keys or values of the changed stream."""
        old = self.stream.layers[receiver.layer or 0].call
        block = dict(named_parts(self.model))[self.stream.layers[receiver.layer or 0].name]
        with watch(self.model, layers=old.name) as seen:
            self._layer(receiver.layer or 0, x, [], block)
        call, times = seen[old.name], len(x) // batch_size(self.inputs)
        energies, v = call.energies, call.v
        a, b = (y.repeat(times, 1, 1, 1) for y in (old.energies.a, old.energies.b))
        if self.through in ("key", "value"):
            energies = replace(energies, a=a)
        if self.through in ("query", "value"):
            energies = replace(energies, b=b)
        if self.through in ("query", "key"):
            v = old.v.repeat(times, 1, 1, 1)
        w = Weights(energies, call.normalize).dense()
        return w @ v.repeat_interleave(w.shape[1] // v.shape[1], dim=1)
