"""The console script `regard`: runs a command, and prints an error as one line."""

from __future__ import annotations

import gc
import os
import sys

IMPORTED = 500_000  # objects that Python may make before it looks for garbage; to import PyTorch makes 270,000


def main() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as missing:
        sys.exit(f"regard: the command line needs {missing.name}; install it with: pip install 'regard[cli]'")
    from .commands import app

    _collect_after_imports()
    try:
        app(prog_name="regard")
    except Exception as error:
        if "REGARD_TRACEBACK" in os.environ:
            raise
        from .wording import redacted

        sys.exit(f"regard: {redacted(_error_line(error))}")


def _collect_after_imports() -> None:
    """Python looks for garbage again and again while PyTorch is imported, a tenth of the time, and there is none."""
    usual = gc.get_threshold()

    def collected(phase: str, _: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(collected)
            gc.set_threshold(*usual)

    gc.callbacks.append(collected)
    gc.set_threshold(IMPORTED)


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
