"""The command line inside the test's process, where importing PyTorch again in another would be most of the time."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from regard.cli import main


def run_command(*arguments: str, **environment: str) -> CompletedProcess[str]:
    """What `regard` with these arguments prints and returns. Its output is no terminal."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr("sys.argv", ["regard", *arguments])
        for name in ("FORCE_COLOR", "COLUMNS", "TERM"):  # the terminal the tests run in must not decide what they see
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:  # as Python ends: a message is printed, and the status is then 1
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                errors.write(f"{end.code}\n")
    return CompletedProcess(["regard", *arguments], code, out.getvalue(), errors.getvalue())


def command_output(*arguments: str, stdin: str | None = None) -> str:
    """What `regard` with these arguments prints. Raises SystemExit where it fails, and what was printed is printed."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["regard", *arguments])
        if stdin is not None:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            with redirect_stdout(out):
                main()
        except SystemExit as end:
            if end.code:
                print(out.getvalue(), end="")
                raise
    return out.getvalue()
