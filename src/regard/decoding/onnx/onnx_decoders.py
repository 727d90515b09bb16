"""The decoders that are exported to ONNX, by their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .onnx_lstmn_decoder import LSTMNDecoderWriter
from .onnx_recurrent_decoder import RecurrentDecoderWriter
from .onnx_show_attend_tell import ShowAttendTellWriter
from .onnx_transformer_decoder import TransformerDecoderWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from .onnx_decoder_writer import DecoderWriter

_WRITERS: dict[str, Callable[[Any, int], DecoderWriter]] = {
    "rnn": RecurrentDecoderWriter,
    "lstmn": LSTMNDecoderWriter,
    "transformer": TransformerDecoderWriter,
    "tell": ShowAttendTellWriter,
}


def decoder_writer(kind: str, decoder: Any, memory: int) -> DecoderWriter:
    """The writer of a decoder over annotations `memory` wide, 0 where there are none."""
    if kind not in _WRITERS:
        raise ValueError(
            f"a decoder of kind {kind!r} is not exported to ONNX; exported are {', '.join(sorted(_WRITERS))}"
        )
    return _WRITERS[kind](decoder, memory)
