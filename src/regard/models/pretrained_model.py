"""Models in folders, laid out as on the Hugging Face hub: config.json, model.safetensors, README.md."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from ..atomic_write import make_folder, replacing_file, write_text
from ..json_file import read_object
from .annotations import Annotations
from .weights_header import UNSEALED, check_header, check_seal, seal

if TYPE_CHECKING:
    import torch
    from jaxtyping import Int
    from torch import Tensor

    from .config_base import Config, TaskName
    from .encoders.encoder import Encoder


CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODEL_TYPES: dict[str, type[PretrainedModel]] = {}
"""The classes by the model_type in config.json. Each class that declares one enters itself."""


class PretrainedModel(nn.Module):
    """A model that its configuration describes completely. `config_class` reads that from config.json."""

    model_type: ClassVar[str]
    config_class: ClassVar[type[Config]]
    config: Any
    task: TaskName
    """What it is for: translate, write, classify, caption or spell."""
    encoder: Encoder

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "model_type" in cls.__dict__:  # not a user's subclass of a model
            MODEL_TYPES[cls.model_type] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        config.check()
        self.config, self.task = config, config.task

    def encode(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        annotations: Annotations = self.encoder(source, lengths)
        if not isinstance(annotations, Annotations):  # of an encoder of another package
            raise TypeError(
                f"{type(self.encoder).__name__}.forward returned a {type(annotations).__name__}; forward of an encoder "
                "returns regard.models.Annotations(vectors, lengths, summary)"
            )
        return annotations

    def save_pretrained(self, folder: str | Path, *, card: str | None = None, dtype: torch.dtype | None = None) -> None:
        """Writes `config.json`, `model.safetensors` and, if given, the model card as README.md; not the tokenizers.

        `dtype=torch.float16` halves the file; loaded, the model computes in float32 again.
        """
        from safetensors.torch import save_model

        folder = make_folder(folder)
        self.save_config(folder)
        if card is not None:
            write_text(folder / "README.md", card)
        with replacing_file(folder / WEIGHTS) as unfinished:
            save_model(self if dtype is None else copy.deepcopy(self).to(dtype), str(unfinished), dict(UNSEALED))
            seal(unfinished)

    def save_config(self, folder: Path) -> None:
        """Writes `config.json`."""
        values = {"model_type": self.model_type, **self.config.to_dict()}
        write_text(folder / CONFIG, json.dumps(values, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path, file: str = WEIGHTS) -> Self:
        """The model `save_pretrained` wrote, on the CPU and in evaluation mode; `file` has the weights."""
        from safetensors.torch import load_model

        folder = Path(folder)
        kind, values = read(folder)
        if kind != cls.model_type:
            raise ValueError(f"{folder / CONFIG} is of model_type {kind!r}; expected {cls.model_type!r}")
        try:
            config = cls.config_class.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG}: {error}") from None
        weights = folder / file
        if not weights.is_file():
            raise ValueError(f"{folder} holds no weights: there is no {file} in it")
        weights.open("rb").close()  # safetensors would report an unreadable file as missing
        check_seal(weights)
        try:
            check_header(weights, lambda: cls(config))
            model = cls(config)
            load_model(model, str(weights))
        except Exception as error:
            raise ValueError(f"{weights} does not hold the weights that config.json describes: {error}") from error
        return model.eval()


def load(folder: str | Path, file: str = WEIGHTS) -> PretrainedModel:
    """What `save_pretrained` wrote, on the CPU and in evaluation mode; config.json says which class it is.

    `file` has the weights: another one is a snapshot in checkpoints/ of a run.
    """
    kind, values = read(folder)
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        advice = f"known are {', '.join(sorted(MODEL_TYPES))}"
        if "transformers_version" in values:
            advice = "it is a model of transformers: load it there, or look at it with regard see"
        raise ValueError(f"{folder}/config.json is of model_type {kind!r:.60}; {advice}")
    return MODEL_TYPES[kind].from_pretrained(folder, file)


def read(folder: str | Path) -> tuple[object, dict[str, Any]]:
    """The model_type that a folder's config.json names, and its other keys."""
    file = Path(folder) / CONFIG
    if not file.is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json in it")
    values = read_object(file)
    return values.pop("model_type", None), values
