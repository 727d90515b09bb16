"""A test that starts a process which crashes fails with the place of the crash."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CODE = "import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()"


def test_the_report_of_a_failure_has_the_stack_of_the_process(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    def start() -> None:
        subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, cwd=tmp_path)

    call = pytest.CallInfo.from_call(start, "call")
    report = request.config.hook.pytest_runtest_makereport(item=request.node, call=call)
    assert 'File "<string>", line 3 in crash' in report.longreprtext
