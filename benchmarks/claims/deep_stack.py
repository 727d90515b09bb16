"""Deep stacks with and without layer norms and residual connections, before any training.

    python -m benchmarks.claims.deep_stack [--full] [--save-plot FILE.svg]

What is printed is the norm of the gradient of a loss with respect to the weights W_O of the first layer, by the
number of layers. It is what an update of that layer would be made of: too small and it does not learn, too large and
it diverges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.layers import EncoderLayer

from .command_line import draw, options, print_table

WIDTH, TOKENS = 64, 16
STACKS: dict[str, dict[str, Any]] = {
    "norm before (pre)": {"norm": "pre"},
    "norm after (post)": {"norm": "post"},
    "no norm": {"norm": "none"},
    "no residual": {"norm": "pre", "residual": False},
    "neither": {"norm": "none", "residual": False},
}


def gradient_norm(depth: int, stack: dict[str, Any], seed: int) -> float:
    torch.manual_seed(seed)
    layers = [EncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, **stack).double() for _ in range(depth)]
    readout = nn.Linear(WIDTH, 4).double()
    x = torch.randn(8, TOKENS, WIDTH, dtype=torch.float64)
    for layer in layers:
        x = layer(x, None)
    nn.functional.cross_entropy(readout(x).mean(1), torch.randint(0, 4, (8,))).backward()
    gradient = layers[0].attention.output.weight.grad
    assert gradient is not None
    return float(gradient.norm())


def main() -> None:
    chosen = options(__doc__ or "")
    depths = (1, 2, 4, 8, 16, 32) if chosen.full else (1, 4, 8)
    curves = {}
    for name, stack in STACKS.items():
        norms = [[gradient_norm(depth, stack, seed) for seed in range(chosen.seeds)] for depth in depths]
        curves[name] = [(depth, sum(values) / len(values)) for depth, values in zip(depths, norms, strict=True)]
    print_table("layers", curves)
    draw(chosen.save_plot, curves, "layers", "gradient of the first layer's W_O", log_x=True, log_y=True)


if __name__ == "__main__":
    main()
