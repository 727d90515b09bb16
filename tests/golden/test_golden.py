"""What users see of regard stays as it was written by `python -m tests.golden --write`."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("transformers")

from tests.golden.make import KINDS, compact, difference, documented

FOLDER = Path(__file__).parent
TOLERANCE = {"recipes": 1e-9, "traces": 1e-5, "http": 1e-4, "commands": 0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changed(kind: str, tmp_path: Path) -> None:
    golden = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    names, wrong = [], []
    for name, make in KINDS[kind](tmp_path):
        names.append(name)
        # through JSON, which knows no tuples and no numbers that are not float or int
        now = json.loads(json.dumps(compact(make())))
        wrong += [difference(now, golden.get(name), TOLERANCE[kind], name) or ""]
    assert names == list(golden)
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_number_is_noticed(kind: str) -> None:
    golden = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    assert difference(golden, golden, TOLERANCE[kind]) is None
    changed = [difference(other, golden, TOLERANCE[kind]) for other in _with_one_number_changed(golden)]
    assert changed
    assert all(changed)


def _with_one_number_changed(value: Any) -> list[Any]:
    """The value with its first, and with its last number changed by three times the largest tolerance."""
    text = json.dumps(value)
    found = [match for match in re.finditer(r"(?<=[ \[])-?\d+\.\d+(?=[,\]}])", text) if abs(float(match[0])) < 10]
    if not found:  # in texts
        found = list(re.finditer(r"(?<= )\d+\.\d+(?= )", text))
    changed = []
    for match in (found[0], found[-1]):
        digits = len(match[0].partition(".")[2])
        more = f"{float(match[0]) + max(3e-4, 3 * 10**-digits):.{digits}f}"
        changed.append(json.loads(text[: match.start()] + more + text[match.end() :]))
    return changed


def test_every_name_that_the_documentation_imported_is_still_there() -> None:
    frozen = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))
    listed = [(module, name) for module, names in frozen.items() for name in names]
    assert len(listed) > 60
    for module, name in [*listed, *documented()]:
        place = importlib.import_module(module)
        if name and not hasattr(place, name):
            importlib.import_module(f"{module}.{name}")
