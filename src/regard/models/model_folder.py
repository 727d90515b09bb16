"""Models in folders, by the conventions of the Hugging Face hub: config.json, model.safetensors, README.md."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from torch import nn

from ..files import as_umask_says

if TYPE_CHECKING:
    import torch


class Config(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


class Saved(nn.Module):
    """A model that its config describes completely; a folder holds both."""

    model_type: ClassVar[str]
    config: Any

    @classmethod
    def read_config(cls, values: dict[str, Any]) -> Config:
        """The config, as its `to_dict` wrote it."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path, *, card: str | None = None, dtype: torch.dtype | None = None) -> None:
        """`config.json`, `model.safetensors` and, if given, the model card as README.md. Tokenizers save themselves.

        `dtype=torch.float16` halves the file; loaded, the model computes in float32 again.
        """
        from safetensors.torch import save_model

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = {"model_type": self.model_type, **self.config.to_dict()}
        _replace(folder / "config.json", json.dumps(written, indent=2) + "\n")
        if card is not None:
            _replace(folder / "README.md", card)
        half_done = folder / "model.safetensors.part"
        save_model(self if dtype is None else copy.deepcopy(self).to(dtype), str(half_done))
        as_umask_says(half_done)
        half_done.replace(folder / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model `save_pretrained` wrote, on the CPU and in evaluation mode."""
        from safetensors.torch import load_model

        folder = Path(folder)
        kind, values = read(folder)
        if kind != cls.model_type:
            raise ValueError(f"{folder / 'config.json'} is of model_type {kind!r}; expected {cls.model_type!r}")
        model = cls(cls.read_config(values))
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise ValueError(f"{folder} holds no weights: there is no model.safetensors in it")
        weights.open("rb").close()  # of a file it may not read, safetensors says that it is not there
        try:
            load_model(model, str(weights))
        except Exception as error:
            raise ValueError(f"{weights} does not hold the weights that config.json describes: {error}") from error
        return model.eval()


def read(folder: str | Path) -> tuple[object, dict[str, Any]]:
    """The model_type that a folder's config.json names, and the rest of it."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json in it")
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds no config: it should be a JSON object")
    return values.pop("model_type", None), values


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    half_done = path.with_name(path.name + ".part")
    half_done.write_text(text, encoding="utf-8")
    half_done.replace(path)
