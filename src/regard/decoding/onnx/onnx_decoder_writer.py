"""DecoderWriter: a decoder as ONNX operators, what is computed once from the annotations and one step of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .onnx_layers import linear_of

if TYPE_CHECKING:
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph

Values = dict[str, str]


@dataclass(frozen=True)
class TensorShape:
    """A value that goes from graph to graph: its type and its shape, names for sizes that vary."""

    dtype: str
    shape: tuple[int | str, ...]


@dataclass
class DecoderShapes:
    """`memory` is constant in the loop, one entry per sentence; `state` changes at each step, one entry per row."""

    memory: dict[str, TensorShape] = field(default_factory=dict)
    state: dict[str, TensorShape] = field(default_factory=dict)


@dataclass
class StepValues:
    """The results of a step: features for the output matrix, the new state, and weights of each kind."""

    features: str  # [rows, width]
    state: Values
    weights: str | None = None  # over the annotations, [rows, maps, places]
    self_weights: str | None = None  # over the tokens or states so far, [rows, maps, steps]


class DecoderWriter:
    """Writes one decoder: `start` into the graph of the encoder, `step` into a graph of its own."""

    def __init__(self, decoder: Any, memory: int) -> None:
        self.decoder, self.config, self.memory = decoder, decoder.config, memory

    def shapes(self) -> DecoderShapes:
        raise NotImplementedError

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        """The source as the encoder reads it."""
        return source

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        """The memory and the first state."""
        raise NotImplementedError

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        raise NotImplementedError

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        """What the step predicts, [rows, vocabulary]."""
        return linear_of(g, step.features, self.decoder.output)
