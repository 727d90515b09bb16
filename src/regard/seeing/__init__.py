"""Seeing: the attention of any PyTorch model, exactly, while it runs on its fast kernels."""

from .call import Call
from .coverage import Coverage, prove
from .storage import load_trace
from .taps import note
from .trace import Seen
from .watch import watch

__all__ = ["Call", "Coverage", "Seen", "load_trace", "note", "prove", "watch"]
