"""Several decoders over one encoder as ONNX operators: each row has the results of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...special_tokens import BEGIN
from .onnx_decoder_writer import DecoderShapes, DecoderWriter, StepValues, TensorShape
from .onnx_decoders import decoder_writer
from .onnx_graph import FLOAT, INTEGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class DecoderSwitchWriter(DecoderWriter):
    """`DecoderSwitch` over a `TagEncoder`: the memory has the number of each sentence's decoder among `tags`.

    All decoders have the same sizes, so their memories and states have the same shapes. A step computes every decoder
    for every row and keeps, row by row, the results of one.
    """

    def __init__(self, kind: str, decoder: Any, memory: int, tags: Sequence[int]) -> None:
        self.inner = [decoder_writer(kind, each, memory) for each in decoder.decoders]
        self.decoder, self.config, self.memory, self.tags = decoder, self.inner[0].config, memory, tags

    def shapes(self) -> DecoderShapes:
        shapes = self.inner[0].shapes()
        shapes.memory["decoder"] = TensorShape(INTEGER, ("sentences",))
        return shapes

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        """<s> in place of the tag."""
        rest = g.op("Slice", source, g.shape(1), g.shape(2**31 - 1), g.shape(1))
        begin = g.op("Expand", g.constant(BEGIN, INTEGER), g.op("Concat", g.size(source, 0), g.shape(1), axis=0))
        return g.op("Concat", begin, rest, axis=1)

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        assert encoded.source is not None
        number, shapes = self._number(g, encoded.source), self.inner[0].shapes()
        memories, states = zip(*(writer.start(g, encoded) for writer in self.inner), strict=True)
        memory = self._select_values(g, number, memories, shapes.memory)
        return {**memory, "decoder": number}, self._select_values(g, number, states, shapes.state)

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        """Features [rows, decoders · width]: those of every decoder, side by side."""
        number = memory["decoder"]
        steps = [writer.step(g, token, memory, state) for writer in self.inner]
        after = self._select_values(g, number, [step.state for step in steps], self.inner[0].shapes().state)
        maps = []
        for values in ([step.weights for step in steps], [step.self_weights for step in steps]):
            each = [value for value in values if value is not None]
            maps.append(self._select(g, number, each, 3) if each else None)
        features = g.op("Concat", *(step.features for step in steps), axis=-1)
        return StepValues(features, after, *maps)

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        parts = g.ops("Split", step.features, outputs=len(self.inner), axis=-1, num_outputs=len(self.inner))
        each = [
            writer.logits(g, replace(step, features=features), memory)
            for writer, features in zip(self.inner, parts, strict=True)
        ]
        return self._select(g, memory["decoder"], each, 2)

    def _number(self, g: OnnxGraph, source: str) -> str:
        """The number of each sentence's tag, [batch]. Without a tag it is outside a table, which runtimes refuse."""
        first = g.op("Slice", source, g.shape(0), g.shape(1), g.shape(1))
        matches = g.cast(g.op("Equal", first, g.shape(*self.tags)), FLOAT)  # [batch, tags]
        none = g.op("Expand", g.constant(1.0), g.op("Concat", g.size(source, 0), g.shape(1), axis=0))
        place = g.op("ArgMax", g.op("Concat", matches, none, axis=1), axis=1, keepdims=0)
        return g.op("Gather", g.shape(*range(len(self.tags))), place)

    def _select_values(
        self, g: OnnxGraph, number: str, values: Sequence[Values], shapes: dict[str, TensorShape]
    ) -> Values:
        return {
            name: self._select(g, number, [each[name] for each in values], len(shape.shape))
            for name, shape in shapes.items()
        }

    def _select(self, g: OnnxGraph, number: str, values: list[str], axes: int) -> str:
        """Row by row one of the values, each [rows, …] with this many axes; one number may serve several rows."""
        chosen = values[0]
        for k, value in enumerate(values[1:], start=1):
            if value != chosen:
                own = g.op("Unsqueeze", g.op("Equal", number, g.constant(k, INTEGER)), g.shape(*range(1, axes)))
                chosen = g.op("Where", own, value, chosen)
        return chosen
