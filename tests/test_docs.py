"""Every block of Python in the documentation runs, and what it prints is what stands under it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
BASES = ("", "src/regard", "src/regard/attention", "src/regard/viewer", "src/regard/viewer/static")
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def _blocks(name: str) -> list[tuple[str, str | None]]:
    return [(code, printed or None) for code, printed in BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("README.md", 1),
        ("CONTRIBUTING.md", 1),
        ("docs/tour.md", 15),
        ("docs/translation.md", 1),
        ("docs/training.md", 1),
        ("docs/seeing.md", 4),
        ("docs/effects.md", 5),
        ("docs/language_models.md", 1),
        ("docs/image_captioning.md", 1),
        ("docs/http_api.md", 1),
        ("docs/viewer.md", 1),
    ],
)
def test_code_runs_and_prints_what_it_says(name: str, least: int) -> None:
    blocks = _blocks(name)
    assert len(blocks) >= least
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    for code, printed in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), scope)
        if printed is not None:
            assert out.getvalue() == printed, f"in {name}, after:\n{code}"


def test_the_script_for_an_exported_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with what the command above it exports."""
    pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    from tests.support.command_line import run_command

    monkeypatch.chdir(tmp_path)
    section = (ROOT / "docs/serving.md").read_text(encoding="utf-8").split("## Use the ONNX graphs\n")[1]
    command = re.search(r"```sh\nregard (.*)\n```", section)
    assert command is not None
    assert run_command(*command[1].split()).returncode == 0
    code, printed = _blocks("docs/serving.md")[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/serving.md", "exec"), {})
    assert out.getvalue() == printed
    translated = run_command("translate", "--model", "tatoeba-bahdanau-en-fr", "--beams", "1", "I like this red car.")
    assert translated.stdout.strip() in out.getvalue()


def _recipe(page: str, name: str) -> str:
    """The TOML block that begins with the name of its file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"```toml\n# {re.escape(name)}\n(.*?)```", text, re.DOTALL)
    return str(block)


@pytest.mark.parametrize("name", ["reviews.toml", "mine.toml", "sounds.toml"])
def test_the_recipes_of_the_classification_page_train(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside files as the page describes them, with fewer updates."""
    pytest.importorskip("pydantic")
    from regard.decoding.model_folders import load
    from regard.training import fit, recipe_files

    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(_recipe("docs/classification.md", name), encoding="utf-8")
    texts = [(f"what a {mood}, {place} film", mood) for mood in ("good", "bad") for place in "abcdefghijkl"]
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in texts), encoding="utf-8")
    rows = "".join(f'"{text}",{label}\n' for text, label in texts)
    (tmp_path / "reviews.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    labels = {"good", "bad"}
    if name == "sounds.toml":
        soundfile = pytest.importorskip("soundfile")
        (tmp_path / "sounds").mkdir()
        labels = {"dog", "cat"}
        files = [(f"{label}{n}.wav", label) for label in labels for n in range(10)]
        for n, (file, _) in enumerate(files):
            soundfile.write(tmp_path / "sounds" / file, torch.sin(torch.arange(4000) / (n + 2)).numpy(), 8000)
        rows = "".join(f"{file},{label}\n" for file, label in files)
        (tmp_path / "sounds" / "labels.csv").write_text(f"file,label\n{rows}", encoding="utf-8")
    quick = ["training.updates=2", "training.accelerator=cpu"]
    run = fit(recipe_files.load_recipe(tmp_path / name, quick), tmp_path / "run")
    assert run.recipe.task == "classify"
    assert set(load(str(run.model)).tokenizers.target.names) == labels


def test_the_keys_beside_those_of_other_libraries_are_keys_of_a_recipe() -> None:
    pytest.importorskip("pydantic")
    from regard.training import recipe_files

    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    section = text.split("## Names of other libraries\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    keys = []
    for cell in cells:
        first, *others = re.findall(r"`([a-z_.]+)", cell.split(":")[0])
        keys += [first, *(name if "." in name else f"{first.rpartition('.')[0]}.{name}" for name in others)]
    assert len(keys) > 17
    recipe = recipe_files.load_recipe("bahdanau-multi30k")
    for key in keys:
        value: object = recipe
        for name in key.split("."):
            assert hasattr(value, name), key
            value = getattr(value, name)


def test_the_encoder_of_the_training_page_does_not_depend_on_padding() -> None:
    code = next(code for code, _ in _blocks("docs/training.md") if "class Neighbours" in code)
    scope: dict[str, Any] = {}
    exec(compile(code, "docs/training.md", "exec"), scope)
    encoder = scope["Neighbours"](width=4).build(9, 20)
    words, lengths = torch.tensor([[5, 6, 7]]), torch.tensor([3])
    short = encoder(words, lengths)
    before = encoder.embedding(torch.tensor([6])) + encoder.embedding(torch.tensor([5]))
    assert torch.equal(short.vectors[:, 0], encoder.embedding(words[:, 0]))
    assert torch.equal(short.vectors[:, 1], before)
    for padding in (0, 8):
        long = encoder(torch.nn.functional.pad(words, (0, 4), value=padding), lengths)
        assert torch.equal(long.vectors[:, :3], short.vectors)
        assert not long.vectors[:, 3:].any()
        assert torch.allclose(long.summary, short.summary)


def test_every_local_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_path_of_the_source_that_is_named_exists() -> None:
    """`attention/energies.py` may stand for `src/regard/attention/energies.py`."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for path in re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|js))?)`", page.read_text(encoding="utf-8")):
            existing = [(ROOT / base / path).exists() for base in BASES]
            assert any(existing) or path.startswith(("runs/", "model/", "photos/")), f"{page.name} names {path}"


def test_the_performance_page_is_what_the_benchmarks_printed() -> None:
    from tools.performance_page import PAGE, page

    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m tools.performance_page"


def test_the_readmes_claims_about_its_ten_lines() -> None:
    """The comment says `< 1e-5`; the line itself only evaluates it."""
    scope: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(_blocks("README.md")[0][0], scope)
    assert float(scope["w"].fidelity(scope["v"], scope["z"]).max()) < 1e-5
    assert len([line for line in _blocks("README.md")[0][0].splitlines() if line.strip()]) <= 14


def test_every_promise_names_the_test_that_holds_it() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    promises = [row for row in re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE) if row[1] != "test"]
    assert len(promises) > 15
    for promise, tests in promises:
        files = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert files, promise
        for file in files:
            assert (ROOT / file).is_file(), file
