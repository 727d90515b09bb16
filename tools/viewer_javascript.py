"""What is made for and of the viewer's JavaScript: `python -m tools.viewer_javascript` writes it, `--check` compares.

- static/bundle/: what ships, minified by esbuild with a source map: page.js of shell/entry.js, page.css of all sheets.
- static/data/constants.js: numbers that both sides use.
- types/api.d.ts: types of the HTTP API, from its OpenAPI schema (by openapi-typescript, in node_modules).
- tests/static/expected.json: what regard computes, which tests/static/ compares the page's own computations with.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

import regard
from regard.attention.energies import NEAR
from regard.attention.modifiers import BASE
from regard.layers import SinusoidalPositions
from regard.seeing.habit import habit
from regard.viewer import export
from regard.viewer.library import Library
from regard.viewer.responses import SCRIPT, STATIC, STYLES
from regard.viewer.server import create_app
from regard.viewer.tiles import Tile

ROOT = Path(__file__).parent.parent
CONSTANTS = STATIC / "data" / "constants.js"
TYPES = ROOT / "types" / "api.d.ts"
EXPECTED = ROOT / "tests" / "static" / "expected.json"

PARAMETERS = {"sigma": 0.7, "temperature": 0.4, "alpha": 1.3, "slope": 0.3}
ENERGIES = {
    "Exact": regard.Exact(), "InverseDistance": regard.InverseDistance(), "Gaussian": regard.Gaussian(0.7),
    "Cosine": regard.Cosine(), "Dot": regard.Dot(), "ScaledDot": regard.ScaledDot(),
}  # fmt: skip
NORMALIZERS = {
    "Proportional": regard.Proportional(), "Softmax": regard.Softmax(0.4), "Sparsemax": regard.Sparsemax(),
    "Entmax": regard.Entmax(1.3), "Hard": regard.Hard(), "Unnormalized": regard.Unnormalized(),
}  # fmt: skip


def constants() -> str:
    """The module of shared numbers."""
    shared = {
        "TILE_SIDE": (export.SIDE, "cells along a tile of the map"),
        "SMALL_MAP_SIDE": (export.SMALL, "cells along a small map of the Model view"),
        "NEAR": (NEAR, "distances below this count as equal"),
        "ROTARY_BASE": (BASE, "of sinusoidal and rotary positions"),
    }
    lines = [f"export const {name} = {value!r}; // {words}\n" for name, (value, words) in shared.items()]
    return "// Numbers shared with Python. Written by tools/viewer_javascript.py: change them there.\n\n" + "".join(
        lines
    )


def api_types() -> str:
    """TypeScript's declarations of the API's schemas."""
    schema = create_app(Library([])).openapi()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "openapi.json", Path(folder) / "api.d.ts"
        source.write_text(json.dumps({**schema, "paths": {}}), encoding="utf-8")
        command = ["node", ROOT / "node_modules" / "openapi-typescript" / "bin" / "cli.js", source, "--output", target]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        return target.read_text(encoding="utf-8")


def bundles() -> dict[Path, str]:
    """The bundle's files. The map names the modules, which are served."""
    folders = ("shell", "draw", "views")
    sheets = [path.relative_to(STATIC) for folder in folders for path in (STATIC / folder).glob("*.css")]
    sheets.sort(key=lambda path: (folders.index(path.parts[0]), path.stem != path.parts[0], path.name))
    styles = "".join(f'@import "./{path.as_posix()}";\n' for path in sheets)
    return bundled("shell/entry.js", SCRIPT) | bundled("page.css", STYLES, styles)


def bundled(entry: str, target: str, text: str | None = None) -> dict[Path, str]:
    """What esbuild makes of a file of static/, or of `text` in its place: in a copy, where it may write."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "static"
        shutil.copytree(STATIC, copy, ignore=shutil.ignore_patterns("bundle"))
        if text is not None:
            (copy / entry).write_text(text, encoding="utf-8")
        esbuild = ["node", ROOT / "node_modules" / "esbuild" / "bin" / "esbuild", entry, f"--outfile={target}"]
        options = ["--bundle", "--minify", "--charset=utf8", "--sourcemap=external", "--sources-content=false"]
        script = ["--format=esm", "--target=es2022"] if entry.endswith(".js") else []
        subprocess.run([*esbuild, *options, *script], check=True, capture_output=True, cwd=copy)
        names = (target, f"{target}.map") if script else (target,)
        return {STATIC / name: (copy / name).read_text(encoding="utf-8") for name in names}


def expected() -> dict[str, Any]:
    """Inputs and what regard makes of them."""
    generator = torch.Generator().manual_seed(0)
    computed = {"lookup": _lookup(generator), "pooling": _pooling(generator), "float16": _float16()}
    return computed | {"positions": _positions(generator), "habit": [_habit(generator, x) for x in (True, False)]}


def _habit(generator: torch.Generator, is_causal: bool) -> dict[str, Any]:
    q, k = (2 * torch.randn(3, 6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    _, w = regard.attend(q, k, k, mask=regard.causal() if is_causal else None, weights=True)
    shape = dict(zip(("heads", "queries", "keys"), w.shape, strict=True))
    numbers = {"weights": w.dense().flatten().tolist(), "habit": habit(w, distances=is_causal).flatten().tolist()}
    return {**shape, "distances": is_causal, **numbers}


def _positions(generator: torch.Generator) -> dict[str, Any]:
    """Pictures of positions, and the energies of a query at position 4 with keys at 0, 1, …"""
    q, k = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((1, 6), (7, 6)))
    at, sinusoidal, slopes = 4, SinusoidalPositions(6), torch.tensor([PARAMETERS["slope"]], dtype=torch.float64)
    alibi = regard.Alibi(slopes, offset=at)
    energies = {
        "none": regard.Dot()(q, k),
        "sinusoidal": regard.Dot()(sinusoidal(q, first=at), sinusoidal(k)),
        "rotary": regard.Rotary(regard.Dot(), offset=at)(q, k),
        "alibi": regard.Modified(regard.Dot(), alibi)(q[None], k[None])[0],
    }
    return {
        "query": q[0].tolist(),
        "keys": k.tolist(),
        "at": at,
        "parameters": PARAMETERS,
        "energies": {name: e[0].tolist() for name, e in energies.items()},
    }


def _lookup(generator: torch.Generator) -> list[dict[str, Any]]:
    cases = []
    for energy, normalize in product(ENERGIES, NORMALIZERS):
        if normalize == "Proportional" and energy in ("Gaussian", "Cosine", "Dot", "ScaledDot"):
            continue  # energies below zero, which it refuses
        shapes = ((1, 3), (7, 3), (7, 2))
        q, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
        k[2] = q[0]  # an equal key, for Exact and for the distances
        visible = torch.tensor([[True] * 6 + [False]])
        z, w = regard.attend(
            q, k, v, energy=ENERGIES[energy], normalize=NORMALIZERS[normalize], mask=regard.dense(visible), weights=True
        )
        cases.append(
            {
                "energy": energy,
                "normalize": normalize,
                "parameters": PARAMETERS,
                "query": q[0].tolist(),
                "keys": k.tolist(),
                "values": v.tolist(),
                "mask": (~visible[0]).tolist(),
                "weights": w.dense()[0].tolist(),
                "z": z[0].tolist(),
            }
        )
    return cases


def _pooling(generator: torch.Generator) -> dict[str, Any]:
    """Cells of a tile, each pooled from its own part of the matrix."""
    matrix = torch.rand(21, 13, generator=generator)
    windows = [
        (0, 0, 21, 13, 21, 13),
        (0, 0, 21, 13, 6, 4),
        (0, 0, 21, 13, 5, 5),
        (4, 2, 20, 13, 4, 3),
        (8, 8, 9, 9, 1, 1),
    ]
    cases = []
    for window in windows:
        rows, columns = Tile(*window).edges
        parts = [[matrix[a:b, c:d] for c, d in pairwise(columns)] for a, b in pairwise(rows)]
        names = ("top", "left", "bottom", "right", "height", "width")
        cases.append(
            {
                "window": dict(zip(names, window, strict=True)),
                "edges": [rows, columns],
                "max": [part.max().item() for line in parts for part in line],
            }
        )
    return {"matrix": matrix.tolist(), "cases": cases}


def _float16() -> dict[str, Any]:
    values = torch.tensor([0.0, 1.0, -2.5, 0.1, 65504.0, 6e-8, 1e-5, 0.333], dtype=torch.float16)
    return {"bits": [x & 0xFFFF for x in values.view(torch.int16).tolist()], "values": values.float().tolist()}


def main(check: bool) -> None:
    texts = {CONSTANTS: constants(), TYPES: api_types(), **bundles()}
    if not check:
        texts[EXPECTED] = json.dumps(expected(), separators=(",", ":")) + "\n"
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    old = [
        path.relative_to(ROOT).as_posix()
        for path, text in texts.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if old:
        sys.exit(f"out of date: {', '.join(old)}; run: python -m tools.viewer_javascript")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
