"""Lion and Muon beside AdamW, which `regard train` uses: the same recipe, data and seed, three trainings side by side.

    python -m benchmarks.optimizers RECIPE NAME=RATE … [--settings KEY=VALUE …] [--seed 1]
    python -m benchmarks.optimizers transformer-multi30k adamw=0.005 muon=0.005 lion=0.0005

NAME is adamw, lion (Chen et al. 2023, arXiv 2302.06675; decay 0, betas 0.9 and 0.99) or muon (Jordan et al. 2024;
PyTorch's, with its `match_rms_adamw`, for matrices of layers, and AdamW for embeddings, readout and vectors). RATE is
the highest learning rate; the schedule is the recipe's. Prints, for each, the scores of validation, the score of the
test set, and tokens per second.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.training_runs import trained, training_speed
from regard.training import parameters as own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from regard.training.recipe_sections import TrainingSection


class Lion(torch.optim.Optimizer):
    """w ← w − rate · sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g  (Chen et al. 2023, algorithm 2, no decay)."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            parameters = [x for x in group["params"] if x.grad is not None]
            gradients = [x.grad for x in parameters]
            moments = [self.state[x].setdefault("moment", torch.zeros_like(x)) for x in parameters]
            directions = torch._foreach_lerp(moments, gradients, 1 - 0.9)
            torch._foreach_sign_(directions)
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])
            torch._foreach_lerp_(moments, gradients, 1 - 0.99)
        return loss


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for matrices of layers, AdamW for the other parameters; one group of each."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainingSection, tables: set[int]) -> None:
        matrices = [x for x in parameters if x.dim() == 2 and id(x) not in tables]
        others = [x for x in parameters if x.dim() != 2 or id(x) in tables]
        self._parts = [
            torch.optim.Muon(matrices, lr=settings.rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            own.make_optimizer(others, settings),
        ]
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups = [group]  # the rate is set in this one

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for part in self._parts:
            part.step()
        return loss


def factory(name: str) -> Callable[..., torch.optim.Optimizer]:
    """What stands in for `make_optimizer` of the trainer."""

    def make(parameters: list[nn.Parameter], settings: TrainingSection, _: Any = None) -> torch.optim.Optimizer:
        if name == "lion":
            return Lion([{"params": parameters}], settings.rate)
        if name == "muon":
            largest = max(len(x) for x in parameters)  # the vocabulary: embeddings and readout
            return MuonAndAdamW(parameters, settings, {id(x) for x in parameters if len(x) == largest})
        return own.make_optimizer(parameters, settings)

    return make


def run(name: str, recipe: str, settings: list[str], folder: Path) -> dict[str, Any]:
    from regard.training import loop

    loop.make_optimizer = factory(name)  # type: ignore[assignment]
    if name == "muon":
        loop.adam_settings = lambda section: {}
    results = trained(folder, [recipe, *settings])
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    score = next(column for column in reversed(lines[0]) if any(line[column] for line in lines))
    curve = [(int(line["update"]), float(line[score])) for line in lines if line[score]]
    shown = {
        name: figure["value"] if isinstance(figure, dict) else figure
        for name, figure in results.items()
        if isinstance(figure, float) or (isinstance(figure, dict) and "value" in figure)
    }
    return {"validation": curve, "test": shown, "speed": training_speed(folder)[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("optimizers", nargs="+", metavar="NAME=RATE")
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        runs = {}
        for chosen in given.optimizers:
            name, rate = chosen.split("=")
            settings = [*given.settings, f"training.rate={rate}", f"seed={given.seed}"]
            runs[pool.submit(run, name, given.recipe, settings, Path(folder) / chosen)] = chosen
        for finished in as_completed(runs):
            if finished.exception() is not None:
                log = Path(folder) / f"{runs[finished]}.log"
                text = log.read_text(encoding="utf-8")[-2000:] if log.exists() else ""
                print(f"{runs[finished]}: failed: {finished.exception()}\n{text}", flush=True)
                continue
            result = finished.result()
            curve = ", ".join(f"{update:,}: {score:.2f}" for update, score in result["validation"])
            print(f"{runs[finished]}: {curve}; test {result['test']}, {result['speed']:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
