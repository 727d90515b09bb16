"""fit: what is wrong is said before anything is made; what a caller or a recipe chooses; loggers."""

from __future__ import annotations

import csv
import math
import shutil
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard.models import HeadConfig, Loss, RecurrentEncoderConfig
from regard.models.saved_weights import weights_sha256
from regard.training import fit, recipe_files
from regard.training.recipe_sections import RecipeError
from regard.training.tasks import TrainingLoss
from tests.support.tiny_training import recipe_file

if TYPE_CHECKING:
    from pathlib import Path


class TestBefore:
    """What is an error before training, not after."""

    def test_a_run_is_not_overwritten(self, file: Path, tmp_path: Path) -> None:
        recipe = recipe_files.load_recipe(file, ["training.updates=2"])
        run = fit(recipe, tmp_path / "run")
        (run.folder / "notes.txt").write_text("mine")
        with pytest.raises(
            ValueError, match=r"holds a run; continue it with regard train --resume .*, or replace it with --force"
        ):
            fit(recipe, run.folder)
        assert (run.folder / "notes.txt").exists()
        began = run.last.stat().st_mtime_ns
        (run.data / "old").touch()
        fit(recipe, run.folder, force=True)
        assert run.last.stat().st_mtime_ns > began
        assert not (run.data / "old").exists(), "nothing of the old run is left"
        assert (run.folder / "notes.txt").exists(), "what others put there is"

    def test_a_mistake_in_the_data_does_not_take_the_folder(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "rows.tsv").write_text("one side alone\n", encoding="utf-8")
        wrong = ["training.updates=2", 'data.kind="files"', f'data.root="{tmp_path}"', "data.test=[]"]
        (tmp_path / "valid.tsv").write_text("a\tb\n", encoding="utf-8")
        wrong += ['data.train=["rows.tsv"]', 'data.valid=["valid.tsv"]']
        with pytest.raises(ValueError, match=r"rows\.tsv:1"):
            fit(recipe_files.load_recipe("seq2seq-multi30k", wrong), tmp_path / "run")
        right = recipe_files.load_recipe(file, ["training.updates=2"])
        assert fit(right, tmp_path / "run").model.exists()

    def test_what_is_no_run_is_never_replaced(self, file: Path, tmp_path: Path) -> None:
        recipe = recipe_files.load_recipe(file)
        with pytest.raises(ValueError, match="exists and is no run"):
            fit(recipe, tmp_path, force=True)
        assert file.exists()
        with pytest.raises(ValueError, match="exists and is no run"):
            fit(recipe, file, force=True)
        shutil.copy(file, tmp_path / "recipe.toml")  # a recipe does not make a folder a run
        with pytest.raises(ValueError, match="exists and is no run"):
            fit(recipe, tmp_path, force=True)
        assert file.exists()
        (tmp_path / "recipe.toml").unlink()
        with pytest.raises(ValueError, match=r"is no run: it holds no recipe\.toml"):
            fit(recipe, tmp_path, resume=True)

    def test_a_folder_that_cannot_be_made(self, file: Path) -> None:
        with pytest.raises(OSError, match="Not a directory"):
            fit(recipe_files.load_recipe(file), file / "run")

    def test_a_bad_row(self, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with (tmp_path / "train.tsv").open("a") as corpus:
            corpus.write("ba ba\n\tbaba\nba\n")
        with pytest.raises(ValueError, match=r"train.tsv:301: .* \(data\.on_bad=skip leaves such rows out\)$"):
            fit(recipe_files.load_recipe(file), tmp_path / "run")
        fit(recipe_files.load_recipe(file, ["data.on_bad=skip", "training.updates=1"]), tmp_path / "other")
        assert "train: 300 pairs" in (shown := capsys.readouterr().out)
        assert "3 bad rows skipped" in shown
        assert "3 rows skipped (2 " in shown
        assert "1 empty source)" in shown
        assert f"  {tmp_path / 'train.tsv'}:301: " in shown
        assert f"  {tmp_path / 'train.tsv'}:302: column 0 is empty" in shown
        assert "train.tsv:303" not in shown, "the first of a kind stands for all"

    def test_long_pairs_are_left_out_and_counted(
        self, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with (tmp_path / "train.tsv").open("a") as corpus:
            corpus.write("ba " * 30 + "\t" + "baba " * 30 + "\n")
        fit(recipe_files.load_recipe(file, ["data.longest=10", "training.updates=1"]), tmp_path / "run")
        assert "train: 300 pairs" in (shown := capsys.readouterr().out)
        assert "1 longer than 10 tokens left out" in shown

    @pytest.mark.parametrize(
        ("launcher", "environment"),
        [
            ("torchrun", {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}),
            ("Slurm", {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "mine", "SLURM_PROCID": "1"}),
        ],
    )
    def test_more_processes_than_the_recipe_knows_of(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, environment: dict[str, str]
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=rf"{launcher} started 2 processes, .* training\.devices = 1 "):
            fit(recipe_files.load_recipe(file), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_sharded_parameters_are_no_graph(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from regard.training.devices import uses_graphs

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        settings = ["training.accelerator=cuda"]
        assert uses_graphs(recipe_files.load_recipe(file, settings))
        assert not uses_graphs(recipe_files.load_recipe(file, [*settings, "training.strategy=fsdp"]))

    def test_a_model_that_branches_on_data_is_no_graph(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several decoders, and a part of a plug-in, which states nothing."""
        from regard.training.devices import uses_graphs

        class OwnEncoder(RecurrentEncoderConfig):
            pass

        class CapturableEncoder(RecurrentEncoderConfig):
            capturable = True

        class OwnHead(HeadConfig):
            pass

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        names = ("common-encoder", "bahdanau-phrasebook", "lstm-attention-opinions")
        several, single, classifier = (recipe_files.load_recipe(name, ["training.graphs=auto"]) for name in names)
        own = replace(single, encoder=OwnEncoder())
        head = replace(classifier, head=OwnHead())
        for recipe in (several, own, head):
            assert not uses_graphs(recipe)
            forced = recipe.with_settings("training", graphs=True)
            with pytest.raises(ValueError, match=r"training.graphs = true needs a model that a CUDA graph can record"):
                uses_graphs(forced)
        for recipe in (single, classifier, replace(single, encoder=CapturableEncoder())):
            assert uses_graphs(recipe)

    def test_no_gpu(self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match=r"training.accelerator is 'cuda'"):
            fit(recipe_files.load_recipe(file, ["training.accelerator=cuda"]), tmp_path / "run")
        with pytest.raises(ValueError, match=r"training.graphs = true needs one CUDA device"):
            fit(recipe_files.load_recipe(file, ["training.graphs=true"]), tmp_path / "other")


@pytest.mark.parametrize(("tokens", "remarked"), [(200, False), (1_000_000_000, True)])
def test_a_batch_that_holds_the_corpus_is_remarked(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: int, remarked: bool
) -> None:
    fit(recipe_files.load_recipe(file, [f"training.tokens={tokens}", "training.updates=1"]), tmp_path / "run")
    remark = "every update is an epoch: training.tokens = 1,000,000,000 has room for the whole corpus, 300 pairs"
    assert (remark in capsys.readouterr().out) == remarked


def test_a_root_starts_where_the_command_is_run_and_the_error_says_where(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.training.corpora import check

    data = recipe_files.load_recipe(file, ['data.root="."']).data
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"data.train: there is no {tmp_path}/elsewhere/train.tsv; data.root is '.'"):
        check(data)
    monkeypatch.chdir(tmp_path)
    check(data)
    # The error names the variable that the root has, and a file of a like name.
    data = recipe_files.load_recipe(file, ['data.root="."', 'data.train=["reviews.csv"]']).data
    with pytest.raises(ValueError, match=r"data\.root is '\.', from where the command is run: set it to the folder"):
        check(data)
    (tmp_path / "review.csv").touch()
    with pytest.raises(
        ValueError, match=rf"data\.train: there is no {tmp_path}/reviews\.csv; did you mean review\.csv\?$"
    ):
        check(data)
    data = recipe_files.load_recipe("transformer-multi30k").data
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"set it \(or the environment variable REGARD_DATA\) to the folder"):
        check(data)


def test_where_every_row_is_bad_the_first_is_reported(file: Path, tmp_path: Path) -> None:
    recipe = recipe_files.load_recipe(file, ["data.on_bad=skip"])
    (tmp_path / "valid.tsv").write_text("a\tb c d e f g\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"data.valid .* 0 bad rows skipped, and 1 row longer .* = 4"):
        fit(recipe_files.load_recipe(file, ["data.longest=4"]), tmp_path / "long")
    (tmp_path / "valid.tsv").write_text("a\n\tb\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"no row is left: 2 bad rows skipped; the first: .*valid\.tsv:1: the line has 1 column,"
    ):
        fit(recipe, tmp_path / "valid")
    (tmp_path / "train.tsv").write_text("a\t\n" * 3, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"no row is left: 3 bad rows skipped; the first: .*train\.tsv:1: column 1 is empty"
    ):
        fit(recipe, tmp_path / "train")


def test_a_misspelt_file_is_reported_before_there_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    (tmp_path / "mine.toml").write_text(
        f'''base = ["bahdanau"]
[data]
kind = "files"
root = "{tmp_path}"
train = ["pairs.tsv"]
hold_out = 10
valid = []
test = ["piars.tsv"]
''',
        encoding="utf-8",
    )
    recipe = recipe_files.load_recipe(tmp_path / "mine.toml")
    assert recipe.training.warmup > 0  # what a recipe of one's own starts from trains sensibly
    with pytest.raises(ValueError, match=r"data\.test: there is no .*piars\.tsv"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_float16_is_refused_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r'training\.precision = "16-mixed" is for CUDA GPUs.* set it to "32-true"'):
        fit(recipe_files.load_recipe(recipe_file(tmp_path), ["training.precision=16-mixed"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


TINY = ["training.updates=4", "training.validate_every=2", "training.save_every=2", "training.average=1"]


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)


def squared(model: Line, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return ((model.map(x) - y) ** 2).mean()


def slope(model: Line) -> float:
    return -abs(model.map.weight.item() - 3)


class Halved(TrainingLoss):
    kind = "my_losses:Halved"

    def __call__(self, model: Any, batch: Any) -> Loss:
        loss = model.loss(batch, smoothing=self.recipe.training.smoothing)
        return Loss(loss.total / 2, loss.nll, loss.tokens)


def column_of(run: Path, column: str) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row[column]) for row in csv.DictReader(file) if row[column]]


def given() -> dict[str, Any]:
    torch.manual_seed(0)
    batches = [(each, 3 * each + 1) for each in torch.linspace(-1, 1, 40).reshape(10, 4, 1)]
    settings = {"rate": 0.05, "schedule": "constant", "accelerator": "cpu"}
    return {"train": batches, "valid": batches, "loss": squared, "validate_every": 20, "save_every": 10, **settings}


def test_fit_takes_a_loss_a_metric_an_optimizer_and_callbacks(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []

    def ends(update: int, figures: dict[str, Any]) -> bool:
        seen.append((update, figures))
        return update >= 40

    sgd = partial(torch.optim.SGD, momentum=0.9)
    model = Line()
    run = fit(model, tmp_path / "run", **given(), updates=90, metric=slope, optimizer=sgd, callbacks=[ends])
    assert column_of(run.folder, "valid_slope")[-1] == pytest.approx(slope(model)) == seen[-1][1]["valid_slope"]
    assert [update for update, _ in seen] == [10, 20, 20, 30, 40, 40]
    assert 'optimizer = "given"' in (run.folder / "recipe.toml").read_text()


def test_a_run_goes_on_with_the_optimizer_it_was_given(tmp_path: Path) -> None:
    sgd = partial(torch.optim.SGD, momentum=0.9)
    fit(whole := Line(), tmp_path / "whole", **given(), updates=20, optimizer=sgd)
    torch.manual_seed(0)
    fit(half := Line(), tmp_path / "half", **given(), updates=10, optimizer=sgd)
    fit(half, tmp_path / "half", **given(), updates=20, optimizer=sgd, resume=True)
    assert torch.equal(whole.map.weight, half.map.weight)
    with pytest.raises(ValueError, match=r"training.optimizer cannot change in a run that has begun"):
        fit(Line(), tmp_path / "half", **given(), updates=30, optimizer="Adam", resume=True)


@pytest.mark.parametrize("name", ["tokens", "smoothing", "init"])
def test_keys_that_mean_nothing_for_a_model_of_ones_own_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"{name}: is for models of a recipe"):
        fit(Line(), tmp_path / "run", **given(), **{name: 1})
    assert not (tmp_path / "run").exists()


def test_a_recipe_names_its_loss_its_optimizer_and_what_is_best(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_losses")
    vars(module)["Halved"] = Halved
    monkeypatch.setitem(sys.modules, "my_losses", module)
    halved = [*TINY, "training.loss=my_losses:Halved", "training.smoothing=0.0", "training.log_every=1"]
    run = fit(recipe_files.load_recipe(file, [*halved, "training.best=loss", "training.optimizer=SGD"]), tmp_path / "a")
    for loss, nll in zip(column_of(run.folder, "loss"), column_of(run.folder, "nll"), strict=True):
        assert loss == pytest.approx(nll / 2)
    assert "Validation loss" in (run.model / "README.md").read_text()
    again = fit(recipe_files.load_recipe(file, [*TINY, "training.best=chrf"]), tmp_path / "b")
    assert len(column_of(again.folder, "valid_chrf")) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.optimizer=SDG", r"is 'SDG'; it should be a class of torch.optim: .*SGD"),
        ("training.best=accuracy", r'training.best is "accuracy".* one of "score", "loss", "bleu", "chrf"'),
        ("training.loss=focal", r"training.loss \(command line\): is 'focal'; it should be .* a plug-in"),
    ],
)
def test_a_wrong_choice_is_named(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_files.load_recipe("bahdanau-phrasebook", [setting])


def test_equal_trainings_have_one_sha256(file: Path, tmp_path: Path) -> None:
    """Also of a tied table, of which safetensors writes the metadata in random order."""
    recipe = recipe_files.load_recipe(file, ["training.updates=1", "tied=decoder"])
    runs = [fit(recipe, tmp_path / name) for name in "abcd"]
    assert len({weights_sha256(run.model / "model.safetensors") for run in runs}) == 1
    assert len({(run.model / "model.safetensors").read_bytes() for run in runs}) == 1


def test_a_full_disk_names_the_folder_and_how_to_go_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.training.checkpoint import Checkpoints

    def full(*_: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as during:
        during.setattr(Checkpoints, "write", full)
        with pytest.raises(OSError, match=rf"the disk of {tmp_path / 'run'} is full .* --resume {tmp_path / 'run'}"):
            fit(recipe_files.load_recipe(file, TINY), tmp_path / "run")
    fit(recipe_files.load_recipe(file, TINY), tmp_path / "run", resume=True)


def test_the_figures_of_a_language_model_do_not_depend_on_its_vocabulary() -> None:
    from types import SimpleNamespace

    from regard.data import Pair
    from regard.training.tasks import recipe_task

    tokenizers: Any = SimpleNamespace(target=SimpleNamespace(encode=lambda text: text.split()))
    task = recipe_task(recipe_files.load_recipe("lstm-phrases"))
    values = task.figures([""], [Pair("nothing", "né né né né", 0)], math.log(8), None, tokenizers)
    expected = {"loss": math.log(8), "perplexity": 8.0, "bits per byte": 12 / 15, "bits per character": 12 / 11}
    assert values == {name: pytest.approx(value) for name, value in expected.items()}
