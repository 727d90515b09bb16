"""The pointer-generator as ONNX operators: a step of the decoder inside, and its mixture with the copied words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...special_tokens import UNKNOWN
from .onnx_decoder_writer import DecoderWriter, TensorShape
from .onnx_decoders import decoder_writer
from .onnx_graph import INTEGER
from .onnx_layers import linear_of

if TYPE_CHECKING:
    from .onnx_decoder_writer import DecoderShapes, StepValues, Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class PointerDecoderWriter(DecoderWriter):
    """`PointerDecoder`: the memory has the ids of the source, and the logits are log p of the mixture."""

    def __init__(self, kind: str, decoder: Any, memory: int) -> None:
        super().__init__(decoder, memory)
        self.inner = decoder_writer(kind, decoder.decoder, memory)

    def shapes(self) -> DecoderShapes:
        shapes = self.inner.shapes()
        shapes.memory["source"] = TensorShape(INTEGER, ("sentences", "places"))
        return shapes

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        return self._known(g, source)

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        memory, state = self.inner.start(g, encoded)
        assert encoded.source is not None
        return {**memory, "source": encoded.source}, state

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        return self.inner.step(g, self._known(g, token), memory, state)

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        decoder = self.decoder
        logits = linear_of(g, step.features, decoder.output)  # [rows, vocabulary]
        if decoder.slots:
            closed = torch.zeros(decoder.output.out_features)
            closed[decoder.first_slot :] = -torch.inf
            logits = g.op("Add", logits, g.constant(closed.numpy()))
        gate = g.op("Sigmoid", linear_of(g, step.features, decoder.gate))  # [rows, 1]
        assert step.weights is not None
        last = g.op("Slice", step.weights, g.shape(-decoder.heads), g.shape(2**31 - 1), g.shape(1))
        weights = g.op("ReduceMean", last, g.shape(1), keepdims=0)  # [rows, places]
        copied = g.op("Mul", g.op("Sub", g.constant(1.0), gate), weights)
        source = g.op("Expand", memory["source"], g.op("Shape", weights))  # one sentence may have several rows
        p = g.op("Mul", gate, g.op("Softmax", logits, axis=-1))
        p = g.op("ScatterElements", p, source, copied, axis=1, reduction="add")
        return g.op("Log", g.op("Max", p, g.constant(torch.finfo(torch.float32).tiny)))

    def _known(self, g: OnnxGraph, ids: str) -> str:
        """<unk> in place of the ids of unknown words."""
        unknown = g.op("GreaterOrEqual", ids, g.constant(self.decoder.first_slot, INTEGER))
        return g.op("Where", unknown, g.constant(UNKNOWN, INTEGER), ids)
