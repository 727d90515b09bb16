"""Seeing: the attention of any PyTorch model, exactly, while it runs on its fast kernels."""

from .capture.attention_call import Call
from .capture.recorded_calls import Seen
from .capture.taps.attend_tap import note
from .capture.trace_folder import load_trace
from .capture.watch import watch

__all__ = ["Call", "Seen", "load_trace", "note", "watch"]
