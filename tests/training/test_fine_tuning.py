"""Training that starts from another model: what is taken, frozen, said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.data import TokenizerPair
from regard.models import load
from regard.training import Run, fit, recipe_files
from regard.training.recipe_sections import RecipeError
from tests.support.tiny_training import WORDS, measured, recipe_file

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    return fit(recipe_files.load_recipe(recipe_file(folder), ["training.updates=8", "tied=none"]), folder / "run")


def started(trained: Run, folder: Path, *settings: str, updates: int = 1) -> Run:
    """A run that begins with a trained model."""
    file = trained.folder.parent / "tiny.toml"
    given = [f"training.init={trained.folder}", f"training.updates={updates}", "training.rate=1e-30", "tied=none"]
    given += settings
    return fit(recipe_files.load_recipe(file, given), folder / "run")


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load(run.model).state_dict()


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Up to an update at a rate of 1e-30."""
    return tensor.shape == other.shape and bool(((tensor - other).abs() < 1e-20).all())


def test_a_model_that_ships_is_fine_tuned_as_a_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in the recipe but the corpus and the model; its sections are those of the model."""
    monkeypatch.chdir(tmp_path)
    rows = [f"I see {n} birds.\tJe vois {n} oiseaux." for n in ("two", "three", "four", "five", "six")] * 8
    (tmp_path / "birds.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "birds.toml").write_text("""
[data]
kind = "files"
root = "."
train = ["birds.tsv"]
valid = []
hold_out = 10
[training]
init = "tatoeba-bahdanau-en-fr"
updates = 4
rate = 0.0003
schedule = "constant"
tokens = 512
validate_every = 4
average = 1
accelerator = "cpu"
[search]
beams = 1
""")
    done = CliRunner().invoke(app, ["train", "birds.toml", "--out", "run"], catch_exceptions=False)
    assert done.exit_code == 0
    shipped = load(recipe_files.SHIPPED.parent / "shipped" / "tatoeba-bahdanau-en-fr")
    tuned = load(tmp_path / "run" / "model")
    assert tuned.config == shipped.config
    losses = [float(row[3]) for row in measured(tmp_path / "run") if row[3]]
    assert losses[0] < 4, "it begins with what the model knows; a new one has a loss of log 8,000 = 9"
    moved = [name for name, tensor in tuned.state_dict().items() if not torch.equal(tensor, shipped.state_dict()[name])]
    assert moved
    translated = CliRunner().invoke(app, ["translate", "--model", "run", "I see two birds."], catch_exceptions=False)
    assert translated.exit_code == 0


def test_all_is_taken_with_the_vocabulary(trained: Run, tmp_path: Path) -> None:
    run = started(trained, tmp_path)
    before, after = weights(trained), weights(run)
    assert all(same(after[name], before[name]) for name in before)
    assert TokenizerPair.load(run.model).target.to_json() == TokenizerPair.load(trained.model).target.to_json()


def test_chosen_parts_are_taken_and_frozen(trained: Run, tmp_path: Path) -> None:
    parts = "['encoder', 'decoder.embedding']"
    settings = [f"training.init_parts={parts}", f"training.freeze={parts}", "training.rate=0.01"]
    run = started(trained, tmp_path, *settings, updates=2)
    before, after = weights(trained), weights(run)
    for name in before:
        taken = name.startswith(("encoder.", "decoder.embedding."))
        assert same(after[name], before[name]) == taken, name


def test_the_encoder_of_a_translator_begins_a_classifier(trained: Run, tmp_path: Path) -> None:
    rows = [f"{word} {other}\t{word[0]}" for word in WORDS[:6] for other in WORDS]
    (tmp_path / "letters.csv").write_text("\n".join(["text,label", *(row.replace("\t", ",") for row in rows)]))
    (tmp_path / "mine.toml").write_text(f"""
task = "classify"
[data]
kind = "files"
root = '{tmp_path}'
train = ["letters.csv"]
valid = []
hold_out = 5
columns = ["text", "label"]
[head]
pooling = "mean"
[training]
init = '{trained.model}'
init_parts = ["encoder"]
freeze = ["encoder"]
updates = 2
accelerator = "cpu"
""")
    run = fit(recipe_files.load_recipe(tmp_path / "mine.toml"), tmp_path / "run")
    before, after = weights(trained), weights(run)
    shared = [name for name in before if name.startswith("encoder.")]
    assert shared
    assert all(torch.equal(after[name], before[name]) for name in shared)
    assert TokenizerPair.load(run.model).target.names == ["b", "d"]


def test_what_the_model_brings_is_measured_before_the_first_update(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported, not judged, and changes nothing that follows; a run that begins anew has it once."""
    from regard.training.loop import Training

    run = started(trained, tmp_path, "training.rate=0.01", updates=3)
    first, *others = measured(run.folder)
    assert capsys.readouterr().out.count("update 0: validation loss ") == 1
    assert (first[0], first[2]) == ("0", "")
    unmoved = measured(started(trained, tmp_path / "unmoved").folder)  # after one update, at a rate of 1e-30
    assert (unmoved[0], unmoved[-1][0]) == (first, "1")
    assert float(unmoved[-1][5]) == pytest.approx(float(first[5]))
    assert torch.load(run.last, weights_only=True)["regard"]["standing"]["best_update"] == 3

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_validate_init", lambda self: None)
        without = started(trained, tmp_path / "without", "training.rate=0.01", updates=3)
    assert measured(without.folder) == others
    with monkeypatch.context() as patch:
        patch.setattr(Training, "backward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            started(trained, tmp_path / "killed", "training.rate=0.01", updates=3)
    killed = tmp_path / "killed" / "run"
    assert len(measured(killed)) == 1
    fit(Run.open(killed).recipe, killed, resume=True)
    assert measured(killed) == [first, *others]


def test_a_run_that_goes_on_does_not_need_the_model_it_began_with(trained: Run, tmp_path: Path) -> None:
    import shutil

    init = tmp_path / "init"
    shutil.copytree(trained.model, init)
    file = trained.folder.parent / "tiny.toml"
    settings = [f"training.init={init}", "tied=none", "training.updates=3"]
    run = fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
    before = weights(run)
    shutil.rmtree(init)
    shutil.rmtree(run.model)
    fit(run.recipe, run.folder, resume=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(run).items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.init=nowhere"], r"training\.init = 'nowhere': no model is called nowhere: give the folder"),
        (
            ["decoder.width=24"],
            r"training\.init = .*decoder\.\S+ is \[.*\] there, and \[.*24.*\] in this",
        ),
        (["encoder.layers=2"], r"that model has no parameter encoder\.\S+; use the same sizes"),
        (["tied=decoder"], r'tied = "none" there, and tied = "decoder" in this recipe would share tables that differ'),
        (["training.init_parts=['encodr']"], r"training\.init_parts names 'encodr', and .*it has .*encoder"),
        (["training.freeze=['decodr']"], r"training\.freeze names 'decodr', and"),
        (["training.freeze=['encoder', 'decoder']"], r"leaves no parameter to learn"),
    ],
)
def test_what_cannot_be_done_is_named(trained: Run, tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(trained, tmp_path, *settings)


def test_rules_between_keys(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.init_parts needs training\.init"):
        recipe_files.load_recipe("bahdanau-phrasebook", ["training.init_parts=['encoder']"])


def test_a_model_of_another_kind_has_its_sections(tmp_path: Path) -> None:
    """A recipe with only data and training.init is that of the model, whatever it reads."""
    for name, data in {
        "scenes-soft": ["data.kind=scenes"],
        "digits-cnn": ["data.kind=tones"],
        "shakespeare-transformer": ["data.kind=phrases"],
        "opinions-lstm": ["data.kind=opinions"],
    }.items():
        file = tmp_path / "mine.toml"
        file.write_text(f'[training]\ninit = "{name}"\n')
        recipe = recipe_files.load_recipe(file, data)
        assert recipe.encoder == load(recipe_files.SHIPPED.parent / "shipped" / name).config.encoder


def pairs_recipe(folder: Path, rows: list[str], *lines: str) -> Path:
    """A recipe for rows of a file and nothing else."""
    (folder / "rows.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    file = folder / "mine.toml"
    data = f'[data]\nkind = "files"\nroot = \'{folder}\'\ntrain = ["rows.tsv"]\nvalid = []\nhold_out = 4\n'
    training = ["[training]", "updates = 1", 'accelerator = "cpu"', *lines]
    file.write_text(data + "\n".join(training) + "\n", encoding="utf-8")
    return file


def test_a_classifier_is_no_start_for_pairs_of_sentences(tmp_path: Path) -> None:
    file = pairs_recipe(tmp_path, ["a dull film\tun film ennuyeux", "a good film\tun bon film"] * 8)
    recipe = recipe_files.load_recipe(file, ["training.init=opinions-lstm"])
    with pytest.raises(ValueError, match=r"no label is called .*; training\.init = 'opinions-lstm' is a classifier"):
        fit(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("base", "init", "message"),
    [
        (
            "transformer",
            "opinions-lstm",
            r"'opinions-lstm' is a classifier, and the model of this recipe writes \(task",
        ),
        (
            "text-mean",
            "tatoeba-bahdanau-en-fr",
            r"-fr' is no classifier, and the model of this recipe classifies \(task",
        ),
    ],
)
def test_a_model_of_another_kind_is_named_as_such(tmp_path: Path, base: str, init: str, message: str) -> None:
    file = pairs_recipe(tmp_path, ["a\tb", "c\td"] * 8)
    file.write_text(f'base = ["{base}"]\n' + file.read_text())
    with pytest.raises(ValueError, match=message):
        fit(recipe_files.load_recipe(file, [f"training.init={init}"]), tmp_path / "run")


def test_the_share_of_unknown_tokens_is_said_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["школа жук\técole", "дом щит\tmaison"] * 8
    file = pairs_recipe(tmp_path, rows, 'init = "tatoeba-bahdanau-en-fr"')
    fit(recipe_files.load_recipe(file), tmp_path / "run")
    said = " ".join(capsys.readouterr().out.split())
    assert "% of the source tokens are <unk>: the vocabulary is that of training.init" in said
    assert "a new model learns one of its own" in said
    assert "of the target tokens are <unk>" not in said
    with pytest.raises(RecipeError, match=r"training\.init_vocabulary .*: is no key any more: train a new model"):
        recipe_files.load_recipe(file, ["training.init_vocabulary=extend"])
