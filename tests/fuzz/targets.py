"""Targets: what is fuzzed. Each makes one input from a random generator, and gives it to regard.

An input is accepted, or refused with a ValueError or an OSError that says why. Anything else is a defect.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .mutators import VALUES, mutated_bytes, mutated_json, mutated_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Target = Callable[[Random, Path], None]

REFUSALS = (ValueError, OSError)
REMOVED = "<removed>"


@cache
def base(name: str) -> Path:
    """A folder with the undamaged files of a target; made once."""
    folder = Path(tempfile.mkdtemp(prefix=f"regard-fuzz-{name}-"))
    BASES[name](folder)
    return folder


def recipes(chance: Random, folder: Path) -> None:
    from regard.training import recipe_files
    from regard.training.recipe import recipe_toml

    name = chance.choice(["bahdanau-phrasebook", "mean-opinions", "transformer-multi30k"])
    text = mutated_text(recipe_toml(recipe_files.load_recipe(name)), chance)
    if chance.random() < 0.3:
        text = f"base = {json.dumps([chance.choice([name, 'a.toml', 'transformer', '']) for _ in range(3)])}\n{text}"
    (folder / "a.toml").write_text(text, encoding="utf-8", errors="replace")
    overrides = [f"{chance.choice(['training.rate', 'seed', 'data', 'x.y', ''])}={chance.choice(VALUES)}"]
    recipe_files.load_recipe(folder / "a.toml", overrides if chance.random() < 0.3 else [])


def traces(chance: Random, folder: Path) -> None:
    trace = folder / "trace"
    shutil.copytree(base("traces"), trace)
    about = json.loads((trace / "trace.json").read_text(encoding="utf-8"))
    del about["own_sha256"]
    about["format"] = 1 if chance.random() < 0.9 else 2
    for call in about["calls"]:
        if chance.random() < 0.7:  # a forger writes digests that fit
            call.pop("sha256", None)
    if chance.random() < 0.6:
        about = mutated_json(about, chance)
    content = json.dumps(about).encode()
    (trace / "trace.json").write_bytes(mutated_bytes(content, chance) if chance.random() < 0.2 else content)
    if chance.random() < 0.5:
        file = trace / chance.choice(["0000.safetensors", "0001.safetensors"])
        _damage_tensors(file, chance) if chance.random() < 0.7 else file.write_bytes(
            mutated_bytes(file.read_bytes(), chance)
        )
    _open_trace(trace)


def _open_trace(trace: Path) -> None:
    import regard
    from regard.viewer.trace_view import TraceView

    seen = regard.load_trace(trace)
    repr(seen)
    seen.faithful  # noqa: B018
    view = TraceView.of(seen)
    view.describe()
    for number in range(len(seen)):
        view.statistics(number, 0)
        view.thumbnails(number, 0, 8, "max")
    view.patterns(0)


def _damage_tensors(file: Path, chance: Random) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {name: x.clone() for name, x in load_file(file).items()}
    name = chance.choice(sorted(tensors))
    x = tensors[name]
    changes: list[Callable[[], Any]] = [
        lambda: x[:0],
        lambda: x[None],
        lambda: x.flatten(),
        lambda: x.to(chance.choice([torch.float16, torch.float64, torch.int8, torch.bool])),
        lambda: torch.full_like(x.float(), chance.choice([torch.nan, torch.inf, 1e38, 0.0])),
        lambda: x.narrow(-1, 0, max(1, x.shape[-1] - 1)),
        lambda: torch.cat([x, x]),
    ]
    tensors[name] = chance.choice(changes)()
    if chance.random() < 0.1:
        del tensors[name]
    save_file({key: value.contiguous() for key, value in tensors.items()}, file)


def model_folders(chance: Random, folder: Path) -> None:
    from regard.decoding import model_folders as loader

    shipped = loader.SHIPPED / chance.choice(["digits-cnn", "opinions-lstm", "scenes-soft", "tatoeba-bahdanau-en-fr"])
    model = folder / "model"
    model.mkdir()
    for file in shipped.iterdir():
        (model / file.name).symlink_to(file)
    name = chance.choice(sorted(file.name for file in shipped.iterdir() if file.name != "README.md"))
    content = (model / name).read_bytes()
    (model / name).unlink()
    if name.endswith(".json") and chance.random() < 0.7:
        content = json.dumps(mutated_json(json.loads(content), chance)).encode()
    else:
        content = mutated_bytes(content, chance)
    (model / name).write_bytes(content)
    loader.load(model)


def corpora(chance: Random, folder: Path) -> None:
    from regard.data.rows import reader

    source = chance.choice(sorted(base("corpora").iterdir()))
    file = folder / source.name
    file.write_bytes(mutated_bytes(source.read_bytes(), chance))
    named = source.suffix in (".jsonl", ".parquet") or chance.random() < 0.2
    for _ in reader(file)(file, ("a", "b") if named else chance.choice([None, (0, 1), (1, 0), (3, 9)])):
        pass


def media(chance: Random, folder: Path) -> None:
    from regard.data.media import PictureReader, SoundReader

    source = chance.choice(sorted(base("media").iterdir()))
    file = folder / source.name
    file.write_bytes(mutated_bytes(source.read_bytes(), chance))
    reader: Any = SoundReader() if source.suffix in (".wav", ".flac", ".ogg") else PictureReader(16)
    reader.encode(str(file))


def attend(chance: Random, folder: Path) -> None:
    """Shapes that fit or not, and every option; what is computed is compared with the definition in float64."""
    import regard

    lead = chance.choice([(), (2,), (2, 3), (1, 2, 2)])
    queries, keys, width, values = (chance.choice([0, 1, 2, 5, 17]) for _ in range(4))
    other = lead if chance.random() < 0.8 else chance.choice([(), (1,), (3,), (2, 1)])
    torch.manual_seed(chance.randrange(1000))
    scale = chance.choice([1.0, 1.0, 30.0, 0.0])
    q = torch.randn(*lead, queries, width, dtype=torch.float64) * scale
    k = torch.randn(*other, keys, chance.choice([width, width, width, 3]), dtype=torch.float64)
    v = torch.randn(*other, chance.choice([keys, keys, keys, 4]), values, dtype=torch.float64)
    mask = chance.choice([None, None, regard.causal(), regard.window(chance.choice([1, 3, 100]))])
    normalize = chance.choice([None, regard.Softmax(), regard.Sparsemax(), regard.Unnormalized()])
    energy = chance.choice([None, None, regard.Gaussian(), _product if q.shape[-1] == k.shape[-1] else None])
    options = {name: x for name, x in (("mask", mask), ("normalize", normalize), ("energy", energy)) if x is not None}
    z = regard.attend(q, k, v, **options)
    expected = regard.attend(q, k, v, **options, backend="reference")
    assert z.shape == expected.shape
    torch.testing.assert_close(z, expected, rtol=1e-8, atol=1e-9, equal_nan=True)


def _product(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.mT


def _make_trace(folder: Path) -> None:
    from tests.support.viewer_client import seen_of

    folder.rmdir()
    seen_of().save(folder)


def _make_corpora(folder: Path) -> None:
    import gzip
    import lzma

    rows = [(f"un mot {n}", f"a word {n}") for n in range(20)]
    table = "".join(f"{a}\t{b}\n" for a, b in rows)
    (folder / "a.tsv").write_text(table)
    (folder / "a.csv").write_text("".join(f'"{a}","{b}"\n' for a, b in rows))
    (folder / "a.jsonl").write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows))
    (folder / "b.tsv.gz").write_bytes(gzip.compress(table.encode()))
    (folder / "b.tsv.xz").write_bytes(lzma.compress(table.encode()))
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        return
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "a.parquet")


def _make_media(folder: Path) -> None:
    from PIL import Image

    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 255, (20, 30, 4), np.uint8)
    for suffix in ("png", "gif", "bmp", "tiff", "webp", "jpg", "ppm"):
        image = Image.fromarray(pixels if suffix in ("png", "webp", "tiff") else pixels[..., :3].copy())
        image.save(folder / f"a.{suffix}")
    Image.fromarray(chance.integers(0, 60_000, (9, 9), np.uint16)).save(folder / "grey.png")
    import soundfile

    samples = chance.standard_normal((4000, 2)) / 8
    for suffix in ("wav", "flac", "ogg"):
        stream = io.BytesIO()
        soundfile.write(stream, samples, 8000, format=suffix.upper())
        (folder / f"a.{suffix}").write_bytes(stream.getvalue())


def edited(value: Any, changes: dict[str, Any]) -> Any:
    """The value with others at dotted places: "calls.0.batch"; `REMOVED` removes a place."""
    for place, new in changes.items():
        *above, last = place.split(".")
        holder = value
        for key in above:
            holder = holder[int(key) if isinstance(holder, list) else key]
        key = int(last) if isinstance(holder, list) else last
        if new == REMOVED:
            del holder[key]
        else:
            holder[key] = new
    return value


def read_trace(folder: Path, changes: dict[str, Any]) -> None:
    """Open a trace whose trace.json was changed, as `traces` does."""
    shutil.copytree(base("traces"), folder / "trace")
    file = folder / "trace" / "trace.json"
    about = json.loads(file.read_text(encoding="utf-8"))
    del about["own_sha256"]
    file.write_text(json.dumps(edited(about | {"format": 1}, changes)), encoding="utf-8")
    _open_trace(folder / "trace")


def read_model(folder: Path, shipped: str, changes: dict[str, Any]) -> None:
    """Load a model that ships after its config.json was changed."""
    from regard.decoding import model_folders as loader

    shutil.copytree(loader.SHIPPED / shipped, folder / "model")
    file = folder / "model" / "config.json"
    file.write_text(json.dumps(edited(json.loads(file.read_text(encoding="utf-8")), changes)), encoding="utf-8")
    loader.load(folder / "model")


BASES: dict[str, Callable[[Path], None]] = {"traces": _make_trace, "corpora": _make_corpora, "media": _make_media}
TARGETS: dict[str, Target] = {
    "recipes": recipes,
    "traces": traces,
    "model folders": model_folders,
    "corpora": corpora,
    "media": media,
    "attend": attend,
}


def run(target: str, seed: int) -> str:
    """Run one case: "accepted", or "refused" with a reason. Anything else that it raises is a defect."""
    from random import Random

    with tempfile.TemporaryDirectory(prefix="regard-fuzz-") as folder:
        try:
            TARGETS[target](Random(f"{target} {seed}"), Path(folder))
        except REFUSALS as error:
            if not str(error).strip():
                raise AssertionError(f"a {type(error).__name__} without a reason") from error
            return "refused"
        except TypeError:
            if target == "attend":  # a wrong argument of a call
                return "refused"
            raise
    return "accepted"
