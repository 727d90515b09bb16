"""The viewer of the site: prepared traces, the models that ship as ONNX graphs, and onnxruntime-web; no server.

`python -m tools.site_viewer FOLDER` writes it. MiniLM and SmolLM2 are traced where their packages are installed.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import regard
from regard.decoding.model_folders import load
from regard.decoding.onnx import export_onnx
from regard.viewer import guard
from regard.viewer import trace_view as first_trace
from regard.viewer.export import trace_responses
from regard.viewer.inside import inside_view
from regard.viewer.library import Library, ModelEntry, installed_models
from regard.viewer.responses import STATIC, request, styles, view_names
from regard.viewer.server import create_app

from .viewer_javascript import bundled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard.viewer.trace_view import TraceView

ROOT = Path(__file__).parent.parent
RUNTIME = ROOT / "node_modules" / "onnxruntime-web" / "dist"
SCRIPT, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
PACKED = "ort-wasm.bin"
"""The runtime's WebAssembly, compressed here: not every host does it. A quarter of its size (live/site_source.js)."""
SENTENCE = "The cat sat on the mat because it was tired, and the dog let it sleep."
PROMPT = "Attention is a way to look things up. A query meets keys that carry values, and"
TEXTS = [  # model, text, tokens to generate
    ("minilm", SENTENCE, 0),
    ("smollm2", PROMPT, 24),
    ("tatoeba-bahdanau-en-fr", "My sister has a small black dog.", 0),
    ("tatoeba-transformer-en-fr", "My sister has a small black dog.", 0),
    ("shakespeare-transformer", "ROMEO:\nBut soft, what light", 40),
]
NOT_LIVE = ("phrasebook-lstmn-en",)
"""Models that the page does not run: it draws a weight of each token for itself, and an LSTMN has none."""
INSIDE = "shakespeare-transformer", "My lord, the night is"
"""The model and the text of the Inside view; the text is the one that the view begins with (views/inside.js)."""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; \
connect-src 'self' data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>regard: look at attention</title>
<meta name="description" content="See which words a neural network looks at: type a sentence, in your browser.">
CARD<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="viewer.css">
<script type="module" src="viewer.js"></script>
</head>
<body class="regard-page">
<div id="regard"></div>
<p id="loading" role="status"></p>
<noscript>This page draws with JavaScript, which is switched off in this browser.</noscript>
</body>
</html>
"""
STYLE = """
#loading { position: fixed; inset: auto 1rem 1rem auto; margin: 0; z-index: 20; padding: 0.4rem 0.8rem;
  border-radius: 8px; background: CanvasText; color: Canvas; font: 14px/1.4 system-ui, sans-serif; }
#loading:empty { display: none; }
"""


def write(
    folder: Path, *, texts: list[tuple[str, str, int]] | None = None, card: str = "", graphs: bool = True
) -> None:
    """Write the viewer. `texts` are (model, text, tokens to generate), by default those of `TEXTS` that can be read.

    Without `graphs` the page cannot run its models.
    """
    if not (RUNTIME / SCRIPT).is_file():
        raise SystemExit(f"there is no {RUNTIME}; install it with: npm ci --ignore-scripts")
    data = folder / "data"
    (data / "traces").mkdir(parents=True)
    models = [model for model in installed_models() if model.ours and model.name not in NOT_LIVE]
    library = Library([], installed_models())
    traces = [first_trace.first_trace()]  # what the page opens on
    for name, text, count in TEXTS if texts is None else texts:
        if name in library.models:
            traces.append(library.read(name, text, generate=count))
        else:
            print(f"{name} is not installed: no trace of it")
    for trace in traces:
        responses = trace_responses(trace)
        _add_neurons(responses, trace)
        _write_json(data / "traces" / f"{trace.id}.json", responses)
    for model in models:
        _write_inside(library, model, data)
    about = {
        "version": regard.__version__,
        "models": [x.summary | ({} if x.name == INSIDE[0] else {"layers": 0}) for x in models],
        "traces": [trace.summary for trace in traces],
        "coming": 0,
        "views": view_names(),
        "opening": first_trace.STATE,
        "limits": guard.public(),
    }
    _write_json(data / "about.json", about)
    for name in ("length", "samples"):
        with ThreadPoolExecutor(1) as thread:  # an event loop may run already on this one
            answer = thread.submit(asyncio.run, request(create_app(Library([])), "GET", f"/api/{name}")).result()
        (data / f"{name}.json").write_bytes(answer.body)
    for model in models if graphs else []:
        _export(model, data / "models" / model.name)
    (folder / "ort").mkdir()
    shutil.copy(RUNTIME / SCRIPT, folder / "ort" / SCRIPT)
    (folder / "ort" / PACKED).write_bytes(gzip.compress((RUNTIME / BINARY).read_bytes(), 9, mtime=0))
    (script,) = [text for path, text in bundled("live/site_entry.js", "viewer.js").items() if path.suffix == ".js"]
    (folder / "viewer.js").write_text(script, encoding="utf-8")
    (folder / "viewer.css").write_text(styles() + STYLE, encoding="utf-8")
    (folder / "index.html").write_text(PAGE.replace("CARD", card), encoding="utf-8")
    shutil.copy(STATIC / "icon.svg", folder / "icon.svg")


def _write_inside(library: Library, model: ModelEntry, data: Path) -> None:
    """What the Inside view shows of one model over one text: every layer and head."""
    name, text = INSIDE
    if model.name != name:
        return
    loaded = library.loaded(model)
    heads = loaded.model.config.decoder.heads
    answers = {
        f"{layer}/{head}": inside_view(loaded, text, layer, head)
        for layer in range(model.layers)
        for head in range(heads)
    }
    content = json.dumps(_rounded({"text": text, "answers": answers}), ensure_ascii=False, separators=(",", ":"))
    (data / f"inside-{name}.bin").write_bytes(gzip.compress(content.encode(), 9, mtime=0))


def _rounded(value: Any) -> Any:
    """Four digits: the view shows three."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _export(model: ModelEntry, folder: Path) -> None:
    loaded = load(model.place)
    folder.parent.mkdir(exist_ok=True)
    export_onnx(loaded.model, loaded.tokenizers, folder)
    for file in folder.glob("*.json"):  # tokenizers are written with a line per entry
        _write_json(file, json.loads(file.read_text(encoding="utf-8")))


def _add_neurons(responses: dict[str, Any], trace: TraceView) -> None:
    """Queries and keys of the calls that are plain dot products without a mask, for the Neuron view."""
    for at, path, weights in _plain_calls(trace):
        energies, count = weights.detached, trace.seen.calls[at].heads
        responses["json"][path] = {"scale": energies.form.scale, "normalizer": type(weights.normalize).__name__}
        for name, side in (("queries", energies.a), ("keys", energies.b)):
            vectors = side.reshape(-1, *side.shape[-2:])[:count].half().contiguous()
            if len(vectors) == count:
                data = base64.b64encode(gzip.compress(vectors.numpy().tobytes(), 6, mtime=0)).decode()
                responses["arrays"][f"{path}/{name}"] = {"shape": list(vectors.shape), "type": "float16", "data": data}


def _plain_calls(trace: TraceView) -> Iterator[tuple[int, str, Any]]:
    for at, call in enumerate(trace.seen.calls):
        weights = call.weights
        energies = weights.detached
        masked = bool((weights.dense() == 0).any()) if call.shape[-1] <= 256 else True
        if energies.form.kernel == "dot" and not energies.modifiers and energies.groups == 1 and not masked:
            yield at, f"/api/traces/{trace.id}/calls/{at}/neuron", weights


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    if find_spec("onnx") is None:
        raise SystemExit("the models need onnx: pip install 'regard[export]'")
    torch.set_num_threads(2)
    write(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
