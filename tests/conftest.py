"""Shared by all tests: each starts from the same state of its process."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from importlib.util import find_spec

import pytest

from tests.support.paths import SHARED
from tests.support.process_state import reset_process_state
from tests.support.triton_interpreter import interpreted

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported: no test waits for a network
# A process that a test or pytest-xdist starts and that crashes writes where, on its stderr.
os.environ["PYTHONFAULTHANDLER"] = "1"
_cache = tempfile.TemporaryDirectory(prefix="regard-test-cache-")
os.environ["REGARD_CACHE"] = _cache.name  # of converted models: no test uses the cache of the user
os.environ.setdefault("REGARD_DATA", str(SHARED / "data"))  # the corpora that recipes name

if find_spec("triton") is not None:
    with interpreted():  # before anything else imports it: Triton decides then whether its functions are interpreted
        import triton  # noqa: F401

# A machine with a GPU may have PyTorch and little else: what needs an extra that is not installed is not collected.
collect_ignore = []
if find_spec("fastapi") is None:
    collect_ignore += ["viewer", "browser"]
if find_spec("pydantic") is None:
    collect_ignore += ["commands"]


@pytest.fixture(autouse=True)
def _independent() -> None:
    """The same result whatever ran before in this process."""
    reset_process_state()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """What a process wrote on stderr is part of the failure, though subprocess leaves it out of its message."""
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired) and error.stderr:
        text = error.stderr if isinstance(error.stderr, str) else error.stderr.decode(errors="replace")
        error.add_note(text[-5000:])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An id that differs from process to process, such as one with an address, stops pytest-xdist."""
    differing = [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]+", item.nodeid)]
    if differing:
        raise pytest.UsageError(f"ids of tests must not name addresses; pass ids= to parametrize: {differing[:3]}")
