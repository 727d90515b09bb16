"""The console script `regard`: runs a command, and prints an error as one line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as missing:
        sys.exit(f"regard: the command line needs {missing.name}; install it with: pip install 'regard[cli]'")
    from .commands import app

    try:
        app(prog_name="regard")
    except Exception as error:
        if "REGARD_TRACEBACK" in os.environ:
            raise
        from .wording import redacted

        sys.exit(f"regard: {redacted(_error_line(error))}")


def _error_line(error: Exception) -> str:
    """The error as one line; an unexpected one with its type and how to see the traceback."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("regard"):
        return f"this command needs {error.name}; install all that regard can use with: pip install 'regard[all]'"
    message = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError):
        return message
    return f"{type(error).__name__}: {message} (set REGARD_TRACEBACK=1 to see where)"
