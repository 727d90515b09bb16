"""A power cut at any place of a run loses nothing that was saved: resumed, the run is the same to the bit.

`make power-cuts` tries 200 places.
"""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from regard.decoding import model_folders
from regard.models import EncoderDecoder
from regard.training import fit, recipe_files
from regard.training.loop import Training
from tests.support.power_cut import Recording
from tests.support.tiny_training import measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

PLACES = int(os.environ.get("REGARD_POWER_CUTS", "8"))
SETTINGS = [
    "training.updates=6",
    "training.save_every=2",
    "training.validate_every=3",
    "training.average=2",
    "search.beams=1",
    "data.longest=20",
]
CASES = range(PLACES)

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="open files are named by Linux's /proc")


@pytest.fixture(scope="module", params=[False], ids=["run"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, Path]:
    """A whole run, every write of it, and a mark `saved` whenever a checkpoint is said to be written.

    With the parameter True, it is then extended, after a mark `extension`.
    """
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("recorded")
    recipe = recipe_files.load_recipe(recipe_file(folder, rows=40), SETTINGS)
    (folder / "disk").mkdir()
    recording = Recording(folder / "disk")
    patch = pytest.MonkeyPatch()
    save = Training.save

    def saved(module: Training) -> None:
        save(module)
        recording.mark(f"saved {module.update}")

    patch.setattr(Training, "save", saved)
    with recording.recording(patch):
        fit(recipe, folder / "disk" / "run")
        if request.param:
            recording.mark("extension")
            extend(folder / "disk" / "run")
    patch.undo()
    return recording, folder


def extend(run: Path) -> None:
    """Two more updates."""
    fit(recipe_files.load_recipe(run / "recipe.toml", ["training.updates=8"]), run, resume=True)


def recover(file: Path, run: Path) -> None:
    """What a person does: resume, or train again where there is no run."""
    recipe = recipe_files.load_recipe(file, SETTINGS)
    fit(recipe, run, resume=(run / "recipe.toml").exists())


def checkpoint_update(run: Path) -> int:
    files = [run / "checkpoints" / name for name in ("last.ckpt", "previous.ckpt")]
    found = [torch.load(file, weights_only=True)["global_step"] for file in files if file.exists()]
    return max(found, default=0)


def test_the_recording_is_the_run(recorded: tuple[Recording, Path], tmp_path: Path) -> None:
    """Without a loss, what is replayed is what is on the disk."""
    recording, folder = recorded
    seed = next(
        n for n in range(100) if random.Random(f"{len(recording.events)} {n}").choice([*"ecss", "nothing"]) == "nothing"
    )
    recording.cut(len(recording.events), seed, tmp_path / "disk")
    disk = folder / "disk"
    files = {path.relative_to(disk): path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    copy = tmp_path / "disk"
    assert {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost(recorded: tuple[Recording, Path], tmp_path: Path, case: int) -> None:
    recording, folder = recorded
    # Spread over the run: one place drawn from each of as many stretches as there are cases.
    count = len(recording.events)
    place = random.Random(case).randint(1 + case * count // PLACES, (case + 1) * count // PLACES)
    recording.cut(place, case, tmp_path / "disk")
    run = tmp_path / "disk" / "run"
    saved = [int(event.kind.split()[1]) for event in recording.events[:place] if event.kind.startswith("saved")]
    assert checkpoint_update(run) >= max(saved, default=0), "a checkpoint that was said to be written is there"
    recover(folder / "tiny.toml", run)
    straight = folder / "disk" / "run"
    assert measured(run) == measured(straight)
    assert_same_models(run, straight)
    shutil.rmtree(tmp_path / "disk")


def assert_same_models(run: Path, straight: Path) -> None:
    expected = EncoderDecoder.from_pretrained(straight / "model").state_dict()
    for name, tensor in EncoderDecoder.from_pretrained(run / "model").state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("recorded", [True], indirect=True, ids=["extension"])
@pytest.mark.parametrize("case", CASES)
def test_an_extension_that_is_cut_has_the_old_model_or_becomes_the_new_one(
    recorded: tuple[Recording, Path], tmp_path: Path, case: int
) -> None:
    """Cut before its first checkpoint: the run can be used, and the same command makes the same model."""
    recording, folder = recorded
    kinds = [event.kind for event in recording.events]
    first = kinds.index("extension")
    count = kinds.index("saved 8") - first
    place = first + random.Random(case).randint(1 + case * count // PLACES, (case + 1) * count // PLACES)
    recording.cut(place, case, tmp_path / "disk")
    run, straight = tmp_path / "disk" / "run", folder / "disk" / "run"
    assert model_folders.load(run).model.task == "translate"
    extend(run)
    assert measured(run) == measured(straight)
    assert_same_models(run, straight)
    earlier = (EncoderDecoder.from_pretrained(each / "model-6").state_dict() for each in (run, straight))
    assert all(torch.equal(one, other) for one, other in zip(*(each.values() for each in earlier), strict=True))
    shutil.rmtree(tmp_path / "disk")
