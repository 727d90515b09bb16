"""Bundle: the page's modules joined into one script, for a notebook and for the single file.

Why no bundler from npm: the widget and the single file are written where regard is installed, and installing must not
need Node. A bundler would move its output into the repository or its run into the build. The modules keep to a part of
the language instead: named imports of files beside them and named exports of functions, classes and constants. Whatever
else stands there is refused. Each module becomes a function that is called once and returns its exports.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..static_files import STATIC

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";[ \t]*\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
LIST = re.compile(r"^export \{([\w\s,]*)\};[ \t]*\n", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*|(?<![\w.])import\s*\(.*|\bimport\.meta\b.*", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|^[ \t]*//.*", re.MULTILINE | re.DOTALL)


def bundle(entry: str, *also: str) -> str:
    """A script that leaves `modules`: {"shell/shell.js": {start, …}, …}, everything these files and theirs export."""
    exports: dict[str, list[str]] = {}
    parts: list[str] = []
    for name in (entry, *also):
        _add(STATIC / name, exports, parts, ())
    return "const modules = {};\n" + "".join(parts)


def _add(path: Path, exports: dict[str, list[str]], parts: list[str], importers: tuple[str, ...]) -> str:
    """Append a module after those it imports; returns its name."""
    path = path.resolve()
    name = path.relative_to(STATIC.resolve()).as_posix()
    if name in importers:
        raise ValueError(f"modules import each other in a circle: {' → '.join((*importers, name))}")
    if name in exports:
        return name
    text = path.read_text(encoding="utf-8")
    imports = []
    for names, where in IMPORT.findall(text):
        module = _add(path.parent / where, exports, parts, (*importers, name))
        missing = {part.split(" as ")[0] for part in _listed(names)} - {*exports[module]}
        if missing:
            raise ValueError(f"{name} imports {', '.join(sorted(missing))}, which {module} does not export")
        imports.append(f"const {{{names.replace(' as ', ': ')}}} = modules[{module!r}];\n")
    body = IMPORT.sub("", text)
    exports[name] = [*EXPORT.findall(body), *(part for names in LIST.findall(body) for part in _listed(names))]
    body = LIST.sub("", EXPORT.sub(lambda match: match[0].removeprefix("export "), body))
    wrong = OTHER.search(COMMENT.sub("", body))
    if wrong:
        raise ValueError(f"{name}: {wrong[0]!r} is not a kind of import or export that can be joined")
    parts.append(
        f"modules[{name!r}] = (() => {{\n{''.join(imports)}{body}\nreturn {{{', '.join(exports[name])}}};\n}})();\n"
    )
    return name


def _listed(names: str) -> list[str]:
    return [part.strip() for part in names.split(",") if part.strip()]
