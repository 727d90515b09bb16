"""Options that several commands share: which model, on which device, how it searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from ..decoding.pretrained import Pretrained
    from ..decoding.search import Settings

BEAMS = 1000  # more than any search gains from; memory grows with them, times the vocabulary

Model = Annotated[
    str | None, typer.Option("--model", metavar="RUN", help="A run's folder, a model's folder, or one that ships.")
]
Beams = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=BEAMS, help="Hypotheses kept alive; 1 is greedy. [default: the run's, or 5]"),
]
LengthPenalty = Annotated[
    float | None, typer.Option(metavar="X", min=0.0, help="α of Wu et al. 2016. [default: the run's, or 1]")
]
CoveragePenalty = Annotated[
    float | None, typer.Option(metavar="X", min=0.0, help="β of Wu et al. 2016. [default: the run's, or 0]")
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]
EngineName = Annotated[
    Literal["torch", "ctranslate2"],
    typer.Option("--engine", help="What runs the model; ctranslate2 after `regard export`."),
]
Tokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Source tokens of a batch. [default: 2048, on a GPU 16384]"),
]


def find_device(name: str) -> str:
    """The device of this name, if PyTorch can use it here."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()  # read back: the device `meta` takes numbers and keeps none
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return name


def settings(
    loaded: Pretrained, beams: int | None, length_penalty: float | None, coverage_penalty: float | None
) -> Settings:
    """What was asked for, over what the run's recipe says."""
    found: Settings = {"beams": 5, "length_penalty": 1.0, "coverage_penalty": 0.0, **loaded.search}
    if beams is not None:
        found["beams"] = beams
    if length_penalty is not None:
        found["length_penalty"] = length_penalty
    if coverage_penalty is not None:
        found["coverage_penalty"] = coverage_penalty
    return found
