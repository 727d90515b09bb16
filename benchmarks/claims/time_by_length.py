"""Time of one training step by length: an LSTM, whose steps follow one another, and a Transformer layer of equal width.

    python -m benchmarks.claims.time_by_length [--full] [--save-plot FILE.svg]

A batch has 4,096 tokens at every length, so that only the length differs. Times are of the processor, by one thread,
forward and backward; what other processes do meanwhile does not count.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from regard.layers import EncoderLayer

from ..timing import alternate
from .command_line import draw, options, print_table

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 128
TOKENS = 4096


def _lstm_step(lstm: nn.LSTM, x: Tensor) -> None:
    lstm(x)[0].sum().backward()


def _layer_step(layer: EncoderLayer, x: Tensor) -> None:
    layer(x, None).sum().backward()


def main() -> None:
    chosen = options(__doc__ or "")
    lengths = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if chosen.full else (16, 64, 256)
    torch.manual_seed(0)
    lstm, layer = nn.LSTM(WIDTH, WIDTH, batch_first=True), EncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0)
    curves: dict[str, list[tuple[float, float]]] = {"LSTM": [], "Transformer layer": []}
    for length in lengths:
        x = torch.randn(max(1, TOKENS // length), length, WIDTH)
        calls = {"LSTM": partial(_lstm_step, lstm, x), "Transformer layer": partial(_layer_step, layer, x)}
        times = alternate(calls, 5 if chosen.full else 1, clock=time.process_time)
        for name, values in times.items():
            curves[name].append((length, values[len(values) // 2] * 1e3 / x[..., 0].numel()))
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in (("LSTM", lstm), ("layer", layer))}
    print(f"parameters: {counts}; steps that must follow one another: the length, and 1")
    print_table("length", curves)
    draw(chosen.save_plot, curves, "length in tokens", "µs of one thread per token", log_x=True, log_y=True)


if __name__ == "__main__":
    main()
