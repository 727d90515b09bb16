"""Taps: each sees the calls of one attention function. A new tap is a module here and an entry in `TAPS`."""

from ... import taps_written
from . import attend_tap, flex_tap, huggingface_tap, linear_tap, module_tap, multihead_tap, sdpa_tap

TAPS = (
    sdpa_tap.TAP,
    multihead_tap.TAP,
    flex_tap.TAP,
    attend_tap.TAP,
    huggingface_tap.TAP,
    taps_written.TAP,
    linear_tap.TAP,
    module_tap.TAP,
)
