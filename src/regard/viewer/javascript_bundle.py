"""JavaScript bundle: the page's modules as one script, for the page, the notebook widget and the single file.

It is made where regard is installed, so a bundler from npm would need Node there, or its output in the repository.
Instead, modules may use only named imports by relative path, and named exports of functions, classes and constants;
any other import or export is an error. Each module becomes a function that is called once and returns its exports.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from .static_files import STATIC, files

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";[ \t]*\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
LIST = re.compile(r"^export \{([\w\s,]*)\};[ \t]*\n", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*|(?<![\w.])import\s*\(.*|\bimport\.meta\b.*", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|^[ \t]*//.*", re.MULTILINE | re.DOTALL)


def bundle(entry: str, *also: str) -> str:
    """A script that defines `modules`: the exports of these files and of their imports, by file name."""
    exports: dict[str, list[str]] = {}
    parts: list[str] = []
    for name in (entry, *also):
        _add(STATIC / name, exports, parts, ())
    return "const modules = {};\n" + "".join(parts)


def page_script() -> str:
    """The script of the page that the server serves; made again where a file has changed."""
    return _page_script(tuple(path.stat().st_mtime_ns for path in files().values()))


@lru_cache(maxsize=1)
def _page_script(_stamps: tuple[int, ...]) -> str:
    return bundle("shell/entry.js")


def _add(path: Path, exports: dict[str, list[str]], parts: list[str], importers: tuple[str, ...]) -> str:
    """Append a module to `parts`, after the modules it imports; returns its name."""
    path = path.resolve()
    name = path.relative_to(STATIC.resolve()).as_posix()
    if name in importers:
        raise ValueError(f"circular import: {' → '.join((*importers, name))}")
    if name in exports:
        return name
    text = path.read_text(encoding="utf-8")
    imports = []
    for names, file in IMPORT.findall(text):
        module = _add(path.parent / file, exports, parts, (*importers, name))
        missing = {part.split(" as ")[0] for part in _split(names)} - {*exports[module]}
        if missing:
            raise ValueError(f"{name} imports {', '.join(sorted(missing))}, which {module} does not export")
        imports.append(f"const {{{names.replace(' as ', ': ')}}} = modules[{module!r}];\n")
    body = IMPORT.sub("", text)
    exports[name] = [*EXPORT.findall(body), *(part for names in LIST.findall(body) for part in _split(names))]
    body = LIST.sub("", EXPORT.sub(lambda match: match[0].removeprefix("export "), body))
    wrong = OTHER.search(COMMENT.sub("", body))
    if wrong:
        raise ValueError(f"{name}: {wrong[0]!r} is an import or export that cannot be bundled")
    parts.append(
        f"modules[{name!r}] = (() => {{\n{''.join(imports)}{body}\nreturn {{{', '.join(exports[name])}}};\n}})();\n"
    )
    return name


def _split(names: str) -> list[str]:
    return [part.strip() for part in names.split(",") if part.strip()]
