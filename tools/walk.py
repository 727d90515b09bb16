"""Which source files a reader meets who follows one call through regard: python -m tools.walk WALK | COMMAND …

    python -m tools.walk attend | watch | tile                   one of WALKS, below
    python -m tools.walk translate --show "The small dog."    a command line of `regard`
    python -m tools.walk script.py                            any script (with PYTHONPATH, of any version of regard)

Every function counts once, at its first call, in the order of the calls, one thread after the other. A switch is a
change of file between one function and the next. Functions that run while a module is imported do not count.
"""

from __future__ import annotations

import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

FUNCTION = 0x1  # CO_OPTIMIZED: set for functions, not for the bodies of modules and classes
WALKS = {
    "attend": """
import torch, regard
x = torch.randn(2, 100, 64)
energy = regard.Additive(64, 64, 32)
walk()
regard.attend(x, x, x, energy=energy, mask=regard.padding([100, 70]))
""",
    "watch": """
import torch, transformers, regard
config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1)
model, ids = transformers.GPT2Model(config).eval(), torch.tensor([[3, 4, 5, 6]])
walk()
with torch.no_grad(), regard.watch(model) as seen:
    model(ids)
seen[0].head(1).top(3)
seen[0].fidelity()
""",
    "tile": """
import urllib.request
import torch, regard
from torch import nn
from regard.viewer.library import Library
from regard.viewer.trace_view import TraceView
from regard.viewer.server import serving
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
with torch.no_grad(), regard.watch(model) as seen:  # "watch" walks through this
    model(torch.randn(1, 300, 64))
library = Library([TraceView.of(seen)])
walk()
with serving(library, token=False) as server:
    calls = f"{server.address}/api/traces/{next(iter(library.traces))}/calls"
    urllib.request.urlopen(f"{calls}/0/tile?top=0&left=0&bottom=300&right=300&height=64&width=64").read()
""",
}


class Walk:
    """The functions of one package in the order of their first calls, by thread."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.threads: dict[int, list[CodeType]] = {}
        self._known: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._known:
            return
        self._known.add(code)
        if self._counts(code) and not self._importing(frame):
            self.threads.setdefault(threading.get_ident(), []).append(code)

    def _counts(self, code: CodeType) -> bool:
        return (
            bool(code.co_flags & FUNCTION) and code.co_filename.startswith(str(self.source)) and code.co_name[0] != "<"
        )

    def _importing(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return True
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(self.source)):
                self._known.discard(frame.f_code)
                return True
            frame = frame.f_back
        return False

    @property
    def functions(self) -> list[CodeType]:
        return [code for codes in self.threads.values() for code in codes]

    @property
    def files(self) -> list[str]:
        """Per function, the file it is in."""
        return [str(Path(code.co_filename).relative_to(self.source)) for code in self.functions]

    def report(self) -> str:
        files = self.files
        switches = sum(a != b for a, b in pairwise(files))
        names: dict[str, list[str]] = {}
        for file, code in zip(files, self.functions, strict=True):
            names.setdefault(file, []).append(code.co_name)
        lines = [f"{at:3d} {file}: {', '.join(dict.fromkeys(names[file]))}" for at, file in enumerate(names, 1)]
        return "\n".join([*lines, f"{len(names)} files, {len(files)} functions, {switches} switches"])


def follow(walk: Walk | None) -> None:
    """In this thread and in those that begin later; None ends it."""
    threading.setprofile(walk)  # type: ignore[arg-type]
    sys.setprofile(walk)


def main() -> None:
    import regard

    walk = Walk(Path(regard.__file__).parent)
    first, *rest = sys.argv[1:] or ["--help"]
    try:
        if first in WALKS or first.endswith(".py"):
            script = WALKS.get(first) or Path(first).read_text(encoding="utf-8")
            exec(compile(script, first, "exec"), {"walk": lambda: follow(walk)})
        else:
            from regard.cli import main as command

            sys.argv = ["regard", first, *rest]
            follow(walk)
            command()
    except SystemExit as done:
        if done.code:
            raise
    finally:
        follow(None)
    print(walk.report())


if __name__ == "__main__":
    main()
