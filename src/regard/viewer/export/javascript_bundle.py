"""Bundle: the page's modules joined into one, for where files cannot be fetched one by one: a notebook, a single file.

The modules keep to a part of the language: at the top of a file imports by name from files beside it, one a line;
exports by name of functions, classes and constants. Each becomes a function that is called once and gives its exports.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..static_files import STATIC

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";[ \t]*\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
LIST = re.compile(r"^export \{([^}]*)\};[ \t]*\n", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(entry: str, *also: str) -> str:
    """A script that leaves `modules`: {"main.js": {start, …}, …}, everything these files and theirs export."""
    done: dict[str, str] = {}
    for name in (entry, *also):
        _add(STATIC / name, done, ())
    return "const modules = {};\n" + "".join(done.values())


def _add(path: Path, done: dict[str, str], within: tuple[str, ...]) -> str:
    path = path.resolve()
    name = path.relative_to(STATIC.resolve()).as_posix()
    if name in within:
        raise ValueError(f"modules import each other in a circle: {' → '.join((*within, name))}")
    if name in done:
        return name
    text = path.read_text(encoding="utf-8")
    needed = []
    for names, where in IMPORT.findall(text):
        found = _add(path.parent / where, done, (*within, name))
        needed.append(f"const {{{names.replace(' as ', ': ')}}} = modules[{found!r}];\n")
    body = IMPORT.sub("", text)
    given = [*EXPORT.findall(body), *(x.strip() for names in LIST.findall(body) for x in names.split(",") if x.strip())]
    body = LIST.sub("", EXPORT.sub(lambda match: match[0].removeprefix("export "), body))
    wrong = OTHER.search(body)
    if wrong:
        raise ValueError(f"{name}: {wrong[0]!r} is not a kind of import or export that can be joined")
    done[name] = f"modules[{name!r}] = (() => {{\n{''.join(needed)}{body}\nreturn {{{', '.join(given)}}};\n}})();\n"
    return name
