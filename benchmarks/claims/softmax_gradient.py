"""The gradient of a softmax over dot products, by width, with and without the division by √d.

    python -m benchmarks.claims.softmax_gradient [--full] [--save-plot FILE.svg]

Queries and keys have independent components of variance 1. For each query with 16 keys, the gradient of the largest
weight with respect to the energies is ∂w_j/∂e_i = w_j (1(i = j) − w_i); its norm is printed, averaged over queries.
"""

from __future__ import annotations

import torch

from regard import Dot, Energy, ScaledDot, attend

from .command_line import draw, options, print_table

KEYS = 16
WIDTHS = (1, 4, 16, 64, 256, 1024)


def gradient_norm(energy: Energy, width: int, queries: int) -> float:
    torch.manual_seed(0)
    q, k = torch.randn(queries, 1, width), torch.randn(queries, KEYS, width)
    weights = attend(q, k, k, energy=energy, weights=True)[1].dense()[:, 0].double()  # [queries, keys]
    largest, at = weights.max(-1)
    gradient = -largest[:, None] * weights
    gradient[torch.arange(queries), at] += largest
    return float(gradient.norm(dim=-1).mean())


def main() -> None:
    chosen = options(__doc__ or "")
    energies = {"q·k": Dot(), "q·k / √d": ScaledDot()}
    queries = 500 if chosen.full else 50
    curves = {name: [(d, gradient_norm(energy, d, queries)) for d in WIDTHS] for name, energy in energies.items()}
    print_table("d", curves)
    draw(chosen.save_plot, curves, "width d of queries and keys", "norm of the gradient", log_x=True, log_y=True)


if __name__ == "__main__":
    main()
