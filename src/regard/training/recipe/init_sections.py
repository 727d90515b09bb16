"""The sections that a recipe with `training.init` may leave out: they are those of the model it starts from."""

from __future__ import annotations

from typing import Any

from ...data.source_reader import READER
from ...decoding.load_model_and_tokenizers import find
from ...json_file import read_object
from ...models.pretrained_model import MODEL_TYPES, read
from .source_section import NoSource, PictureSource, SoundSource

SOURCE_KEYS = {key for section in (PictureSource, SoundSource, NoSource) for key in section.model_fields}


def fill_sections(values: dict[str, Any]) -> None:
    """Add what is missing of task, source, encoder, decoder or head, tied and data.longest to a recipe's values."""
    training = values.get("training")
    init = training.get("init") if isinstance(training, dict) else None
    if not isinstance(init, str) or not init or ("encoder" in values and {"decoder", "head"} & set(values)):
        return  # a recipe in full; that of a run that goes on no longer needs the model
    try:
        folder, _ = find(init)
        kind, config = read(folder)
        if kind not in MODEL_TYPES:
            raise ValueError(f"{folder} is no model of regard: its model_type is {kind!r:.40}")
        model: Any = MODEL_TYPES[str(kind)].config_class.from_dict(config)
    except ValueError as error:
        raise ValueError(f"training.init = {init!r}: {error}") from None
    if "encoder" not in values:
        values["encoder"] = config["encoder"]
        reader = folder / READER
        stored = read_object(reader) if reader.is_file() else {"kind": model.encoder.reads}
        # A reader also stores what it learned from the training set; that is no setting.
        values.setdefault("source", {key: value for key, value in stored.items() if key in SOURCE_KEYS})
        data = values.get("data")
        if isinstance(data, dict):
            data.setdefault("longest", config["longest"])
    if not {"decoder", "head"} & set(values):
        values.update({part: config[part] for part in ("decoder", "head") if part in config})
        values.setdefault("tied", config.get("tied", "none"))
        values.setdefault("task", model.task)
