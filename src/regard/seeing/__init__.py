"""Seeing: the attention of any PyTorch model, exactly, while it runs on its fast kernels."""

from .call import Call
from .taps import note
from .trace import Seen, load_trace
from .watch import watch

__all__ = ["Call", "Seen", "load_trace", "note", "watch"]
