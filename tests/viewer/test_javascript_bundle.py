"""The bundle: modules joined into one script, and what cannot be joined refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from regard.viewer import javascript_bundle

if TYPE_CHECKING:
    from pathlib import Path


def test_modules_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(javascript_bundle, "STATIC", tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "main.js").write_text(
        'import { one, two as zwei } from "./deep/part.js";\nconst hidden = 1;\nexport const sum = one + zwei();\n'
    )
    (tmp_path / "deep" / "part.js").write_text(
        'import { base } from "../base.js";\nconst hidden = 2;\nexport const one = base;\nfunction two() {\n'
        "  return hidden;\n}\nexport { two };\n"
    )
    (tmp_path / "base.js").write_text("export const base = 40;\nexport async function later() {}\nexport class A {}\n")
    assert javascript_bundle.bundle("main.js") == (
        "const modules = {};\n"
        "modules['base.js'] = (() => {\nconst base = 40;\nasync function later() {}\nclass A {}\n\n"
        "return {base, later, A};\n})();\n"
        "modules['deep/part.js'] = (() => {\nconst { base } = modules['base.js'];\nconst hidden = 2;\n"
        "const one = base;\nfunction two() {\n  return hidden;\n}\n\nreturn {one, two};\n})();\n"
        "modules['main.js'] = (() => {\nconst { one, two: zwei } = modules['deep/part.js'];\nconst hidden = 1;\n"
        "const sum = one + zwei();\n\nreturn {sum};\n})();\n"
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('import thing from "./other.js";\n', "import thing"),
        ('import { a } from "https://elsewhere.example/a.js";\n', "import"),
        ("export default 1;\n", "export default"),
        ("export let changing = 1;\n", "export let"),
        ('export * from "./other.js";\n', "export"),
        ('const late = import("./other.js");\n', "import("),
        ("const here = import.meta.url;\n", "import.meta"),
        ('import { a } from "./main.js";\n', "main.js → main.js"),
        ('import { b } from "./a.js";\n', "main.js imports b, which a.js does not export"),
    ],
)
def test_what_cannot_be_joined_is_refused(
    text: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javascript_bundle, "STATIC", tmp_path)
    (tmp_path / "main.js").write_text(text)
    (tmp_path / "a.js").write_text("export const a = 1;\n")
    with pytest.raises(ValueError, match=re.escape(word)):
        javascript_bundle.bundle("main.js")


def test_the_page_can_be_joined() -> None:
    script = javascript_bundle.bundle("shell/shell.js", "data/file_source.js", "data/widget_source.js")
    assert script.index("modules['views/index.js']") < script.index("modules['shell/shell.js']")
