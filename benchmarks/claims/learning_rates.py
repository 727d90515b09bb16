"""Sensitivity to the learning rate: learning curves of one small Transformer, with and without a warm-up.

    python -m benchmarks.claims.learning_rates [--full] [--save-plot FILE.svg]

The task is that of `dependency_distance`, at distance 8. A rate is constant, or rises linearly over the first 50
updates. What is printed and drawn is the training loss, the mean of 20 updates.
"""

from __future__ import annotations

import torch
from torch import nn

from .command_line import draw, options, print_table
from .dependency_distance import ENCODERS, LastWordClassifier, texts

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
DISTANCE, WINDOW, WARMUP = 8, 20, 50


def losses(rate: float, updates: int, seed: int = 0, warmup: int = 0) -> list[float]:
    """The training loss of every update."""
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    model = LastWordClassifier(*ENCODERS["Transformer"])
    adam = torch.optim.Adam(model.parameters(), rate)
    values = []
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = rate * min(1.0, (update + 1) / warmup) if warmup else rate
        text, label = texts(32, DISTANCE, chance)
        adam.zero_grad()
        loss = nn.functional.cross_entropy(model(text), label)
        loss.backward()
        adam.step()
        values.append(loss.item())
    return values


def smoothed(values: list[float]) -> list[tuple[float, float]]:
    ends = range(WINDOW, len(values) + 1, WINDOW)
    return [(end, sum(values[end - WINDOW : end]) / WINDOW) for end in ends]


def main() -> None:
    chosen = options(__doc__ or "")
    updates = 400 if chosen.full else 80
    curves = {f"rate {rate:g}": smoothed(losses(rate, updates)) for rate in RATES}
    curves[f"rate 0.01, warm-up {WARMUP}"] = smoothed(losses(1e-2, updates, warmup=WARMUP))
    print_table("update", curves)
    draw(
        chosen.save_plot,
        curves,
        "update",
        "training loss",
        log_y=True,
        level=(float(torch.tensor(4.0).log()), "chance"),
    )


if __name__ == "__main__":
    main()
