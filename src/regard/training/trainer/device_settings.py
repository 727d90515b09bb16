"""What the device of a run decides: precision, CUDA graphs, threads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..recipe.recipe import Recipe
    from ..recipe.recipe_sections import TrainingSection

NARROW = 128
"""Widths up to which a recurrent model is trained by one thread."""


@contextmanager
def one_thread(recipe: Recipe) -> Iterator[None]:
    """One thread for a narrow recurrent model on a CPU, and for nothing else.

    Its operations are so short that a second thread saves nothing, and where another process keeps a core busy each
    of them waits for it. The recipe alone decides: how many threads there are shows in the last digits of the sums.
    """
    import torch

    parts = [part for part in (recipe.encoder, recipe.decoder) if part is not None]
    narrow = any(part.recurrent for part in parts) and all(part.width <= NARROW for part in parts)
    threads = torch.get_num_threads()
    if narrow and accelerator(recipe.training) == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def accelerator(settings: TrainingSection) -> str:
    import torch

    if settings.accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("training.accelerator is 'cuda', and PyTorch finds no CUDA device here; leave it at 'auto'")
    return settings.accelerator


def require_precision(settings: TrainingSection) -> None:
    """Refuse float16 where there is no GPU, before the run's folder is made."""
    if settings.precision == "16-mixed" and accelerator(settings) != "cuda":
        raise ValueError(
            'training.precision = "16-mixed" is for CUDA GPUs, and this run is on a CPU, which computes float16 '
            'slowly or not at all; set it to "32-true" or "bf16-mixed"'
        )


def uses_graphs(recipe: Recipe) -> bool:
    """Whether CUDA graphs are used.

    They cannot exchange gradients with other processes, use sharded parameters, read the random state (activation
    checkpointing), scale a loss, or record a model that branches on data (`ModuleConfig.capturable`).
    """
    settings = recipe.training
    alone = settings.devices * settings.nodes == 1 and settings.strategy != "fsdp"
    plain = not settings.activation_checkpointing and settings.precision != "16-mixed"
    possible = alone and plain and accelerator(settings) == "cuda"
    if settings.graphs is True and not possible:
        raise ValueError(
            "training.graphs = true needs one CUDA device, and not FSDP, activation checkpointing or 16-mixed; leave "
            "it at 'auto'"
        )
    if settings.graphs is True and not recipe.capturable:
        raise ValueError(
            "training.graphs = true needs a model that a CUDA graph can record: one decoder, and parts whose "
            "configuration says capturable = True; leave it at 'auto'"
        )
    return (possible and recipe.capturable) if settings.graphs == "auto" else settings.graphs
