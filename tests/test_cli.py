"""The command line, as a user meets it: a process with arguments, an output and an exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import regard
from regard import cli
from tests.support.command_line import run_command

if TYPE_CHECKING:
    from pathlib import Path

RUN = "from regard.cli import main; main()"


def run(*arguments: str, code: str = RUN, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    # The terminal the tests run in must not decide what they see.
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "TERM")}
    env = {**plain, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, timeout=600, check=False)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("regard: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_help_names_the_commands_and_imports_nothing_heavy() -> None:
    code = f"import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); {RUN}"
    done = run("--help", code=code)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "completion" not in done.stdout
    assert done.stdout.endswith("False\n"), "torch was imported for a help page"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("translate --file absent.txt", "there is no file absent.txt"),
        ("classify absent.wav", "there is no file absent.wav"),
        ("classify --file absent.txt", "there is no file absent.txt"),
        ("score --file absent.tsv", "there is no file absent.tsv"),
        ("evaluate runs/mine absent.tsv", "there is no file absent.tsv"),
        ("patterns smollm2 absent.txt", "there is no file absent.txt"),
        ("effects smollm2 --file absent.tsv", "there is no file absent.tsv"),
        ("see smollm2 text --save .", ". exists"),
        ("serve mine --port {taken}", "choose another --port"),
        ("view --port {taken}", "choose another --port"),
    ],
)
def test_a_missing_file_and_a_taken_port_are_said_before_anything_heavy_is_imported(
    arguments: str, message: str
) -> None:
    code = f"import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); {RUN}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(*arguments.format(taken=taken.getsockname()[1]).split(), code=code)
    assert done.returncode == 1
    assert done.stdout == "False\n", "torch was imported"
    assert message in done.stderr


def test_importing_the_command_line_leaves_torch_and_rich_alone() -> None:
    done = run(code="import sys, regard.cli; print({'torch', 'rich', 'typer'} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"regard {regard.__version__}\n")


def test_no_arguments_show_the_help() -> None:
    done = run()
    assert "Usage: regard" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("demonstrate")
    assert done.returncode == 2
    assert "demonstrate" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(missing: str) -> None:
    # None in sys.modules makes `import` fail just as if the package were not there.
    done = run("--help", code=f"import sys; sys.modules[{missing!r}] = None; {RUN}")
    assert_one_line(done, missing, "pip install 'regard[cli]'")


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    return run("demo", "--quick", NO_COLOR="1")


class TestDemo:
    def test_shows_the_worked_examples(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        for answer in ("555-5678", "not listed", "May 5th 2000", "2/5 × 30 lb", "3/5 × 40 lb", "36.0", "6 × 512"):
            assert answer in done.stdout
        assert "1 × 30 lb" in done.stdout  # a box as large as one we know weighs what that one weighs

    def test_needs_no_colour(self, done: subprocess.CompletedProcess[str]) -> None:
        assert "\x1b" not in done.stdout
        assert all(shade in done.stdout for shade in "░▒▓█·")

    def test_fits_eighty_columns(self, done: subprocess.CompletedProcess[str]) -> None:
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "…" not in done.stdout

    def test_only_feed_forward_leaves_the_other_words_alone(self, done: subprocess.CompletedProcess[str]) -> None:
        attention, forward = (
            next(line for line in done.stdout.splitlines() if line.lstrip().startswith(name))
            for name in ("self-attention ", "feed-forward ")
        )
        assert attention.count("·") == 0
        assert forward.count("·") == 5

    def test_finds_the_needle(self, done: subprocess.CompletedProcess[str]) -> None:
        line = next(line for line in done.stdout.splitlines() if "rows(7700).top(3)" in line)
        assert "1234:" in line


class TestSave:
    def test_writes_a_small_picture_that_fetches_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "attention.svg"
        done = run_command("demo", "--save", str(file), NO_COLOR="1")
        assert (done.returncode, done.stdout) == (0, f"wrote {file}\n"), done.stderr
        svg = file.read_text(encoding="utf-8")
        assert "36.0" in svg
        assert "catches" in svg
        assert 'fill="#fde782"' in svg, "the largest weight is painted, whatever NO_COLOR says"
        assert len(svg.encode()) < 60_000
        assert "@font-face" not in svg
        assert svg.count("http") == svg.count("http://www.w3.org/2000/svg") == 1

    def test_a_path_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        file = tmp_path / "absent" / "attention.svg"
        assert_one_line(run_command("demo", "--save", str(file)), str(file), "No such file or directory")

    def test_a_name_of_another_kind_is_one_line(self, tmp_path: Path) -> None:
        file = tmp_path / "attention.png"
        assert_one_line(run_command("demo", "--save", str(file)), str(file), ".svg")
        assert not file.exists()


class TestErrors:
    """Without a process: what `main` makes of what a command raises."""

    def raising(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def app(prog_name: str) -> None:
            raise error

        monkeypatch.setattr("regard.commands.app", app)

    def test_an_expected_error_is_its_own_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raising(monkeypatch, ValueError("two\nlines"))
        with pytest.raises(SystemExit, match=r"^regard: two lines$"):
            cli.main()

    def test_an_error_has_no_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REGARD_TOKEN", "my-secret-1")
        self.raising(
            monkeypatch, OSError("no answer from https://me:pw12@host/?token=abc&n=1 with my-secret-1, tokens=3")
        )
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == "regard: no answer from https://***@host/?token=***&n=1 with ***, tokens=3"

    def test_an_unexpected_error_has_a_name_and_a_way_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
        self.raising(monkeypatch, ZeroDivisionError("division by zero"))
        with pytest.raises(SystemExit, match=r"^regard: ZeroDivisionError: division by zero .*REGARD_TRACEBACK=1"):
            cli.main()

    def test_the_traceback_is_there_for_those_who_ask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REGARD_TRACEBACK", "1")
        self.raising(monkeypatch, ZeroDivisionError("division by zero"))
        with pytest.raises(ZeroDivisionError):
            cli.main()


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "regard", "--help"], capture_output=True, text=True, check=True)
    assert "train" in done.stdout
