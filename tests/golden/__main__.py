"""`python -m tests.golden --write` writes the golden outputs of the code that is there, as JSON files beside this one.

Only do so when a difference is wanted and CHANGELOG.md explains it.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.golden.make import KINDS, compact, documented

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        sys.exit("usage: python -m tests.golden --write [recipes|traces|http|commands] …")
    torch.set_num_threads(1)
    names: dict[str, list[str]] = {}
    for module, name in documented():
        names.setdefault(module, []).append(name)
    (FOLDER / "names.json").write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as work:
        for kind in sys.argv[2:] or KINDS:
            folder = Path(work, kind)
            folder.mkdir()
            made = {name: compact(make()) for name, make in KINDS[kind](folder)}
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(made[name], ensure_ascii=False)}" for name in made)
            (FOLDER / f"{kind}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
            print(kind, len(made))
