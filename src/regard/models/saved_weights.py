"""Models as folders: saving, loading, snapshots; model.safetensors is checked by its header and its SHA-256.

config.json may come from anybody. A width of 8,000 or a million layers would take minutes and gigabytes to build. So
the model is built on PyTorch's meta device first, where tensors have no memory, and only up to the tensors of the file.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from ..files import DamagedFileError, make_folder, read_object, replacing_file, sha256, write_text
from .configurations import Annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Int
    from torch import Tensor

    from .configurations import Config, TaskName
    from .encoders import Encoder

SPARE = 64
"""Parameters that a model may register beyond twice those in its file: tied ones are registered and then replaced."""
TABLES = 1 << 28
"""Numbers in tables that a model computes when it is built, such as positions, which are not in its file."""


UNSEALED = {"sha256": "0" * 64}
"""Metadata of a file to be sealed: `seal` writes the SHA-256 of the file, computed with these zeros, in their place."""
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_HEADER = 1 << 20  # bytes in which the seal is looked for; the metadata come first


class WeightsMismatch(ValueError):
    """The weights are not those that the configuration describes."""


def seal(file: Path) -> None:
    """Write the SHA-256 of a file into its header.

    safetensors writes the metadata in random order: sorted, equal weights are equal files with one SHA-256.
    """
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        opened.seek(8)
        opened.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size))
    place, digest = _digest(file)
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(digest)


def check_seal(file: Path) -> None:
    """Raise an error that names the file where it is not the one that was sealed. One without a seal is not checked."""
    with file.open("rb") as opened:
        sealed = _SEAL.search(opened.read(_HEADER))
    if sealed is not None and _digest(file)[1] != sealed[1]:
        raise DamagedFileError(f"{file} is damaged: its SHA-256 is not the one that was written; get it again")


def weights_sha256(file: Path) -> str:
    """What tells the weights of a file from others: its seal, or the SHA-256 of one without a seal."""
    with file.open("rb") as opened:
        sealed = _SEAL.search(opened.read(_HEADER))
    return sha256(file) if sealed is None else sealed[1].decode()


def _digest(file: Path) -> tuple[int, bytes]:
    """Where the seal is, and the SHA-256 of the file with zeros in its place."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        head = opened.read(_HEADER)
        sealed = _SEAL.search(head)
        assert sealed is not None
        digest.update(head[: sealed.start(1)] + b"0" * 64 + head[sealed.end(1) :])
        while block := opened.read(_HEADER):
            digest.update(block)
    return sealed.start(1), digest.hexdigest().encode()


def check_header(file: Path, build: Callable[[], nn.Module]) -> None:
    """Raise an error where `build` would not make the tensors that the file has. Allocates none of them."""
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:  # reads the header alone
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    try:
        with torch.device("meta"), _Undrawn(), _at_most(2 * len(shapes) + SPARE):
            model = build()
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise WeightsMismatch(f"its sizes are impossible: {' '.join(str(error).split())[:200]}") from None
    described = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in shapes.items():
        if name not in described:
            raise WeightsMismatch(f"the file has {name}, which the model has not")
        if described[name] != shape:
            raise WeightsMismatch(f"{name} is {list(shape)} in the file, and the model has {list(described[name])}")
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    tables = sum(tensor.numel() for tensor in model.buffers() if id(tensor) not in stored)
    if tables > TABLES:
        raise WeightsMismatch(f"the model would compute tables of {tables:,} numbers; at most {TABLES:,} are allowed")


class _Undrawn(TorchFunctionMode):
    """Inside the block nobody draws the random numbers that parameters begin with: a file is about to replace them.

    On the meta device, drawing would import `torch._dynamo`, which takes longer than to import torch.
    """

    DRAWS = frozenset({"normal_", "uniform_", "kaiming_uniform_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", None) in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Stop a model that registers more parameters than this."""
    thread, left = threading.get_ident(), count

    def register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal left
        if threading.get_ident() == thread:
            left -= 1
            if left < 0:
                raise WeightsMismatch(f"the model has far more than the {(count - SPARE) // 2:,} tensors of the file")

    hook = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()


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
            with _Undrawn():
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


Kind = Literal["update", "best"]


def snapshot_file(folder: Path, kind: Kind, update: int) -> Path:
    """The file of the weights after an update; "best" are those with the best score so far."""
    return folder / f"{kind}-{update:08d}.safetensors"


def snapshot_files(folder: Path, kind: Kind) -> list[Path]:
    """Those there are, the oldest first. Files that somebody copied beside them have other names."""
    files = (file for file in folder.glob(f"{kind}-*.safetensors") if re.fullmatch(rf"{kind}-[0-9]+", file.stem))
    return sorted(files, key=snapshot_update)


def snapshot_update(file: Path) -> int:
    """The update that the weights of a file are of."""
    return int(file.stem.split("-")[1])


def best_or_newest(folder: Path) -> Path | None:
    """The snapshot with the best score, or the newest before the first validation; None where there is none."""
    files = snapshot_files(folder, "best") or snapshot_files(folder, "update")
    return files[-1] if files else None
