"""Writes the trace that the page opens with: MiniLM over one sentence, in half precision so that it is small.

    python -m tools.first_trace

The model itself runs in float16, so queries, keys, values and outputs are its own numbers, unrounded, and the weights
of the trace are checked against what the model computed.
"""

from __future__ import annotations

import shutil

import torch

from regard.seeing.text_models import load_text_model
from regard.viewer.trace_view import FOLDER, MODEL, TEXT

LARGEST = 300_000
"""Bytes of all its files."""


def main() -> None:
    torch.manual_seed(0)
    model = load_text_model(MODEL)
    model.model.half()
    seen = model.read(model.encode(TEXT))
    if not seen.faithful:
        raise SystemExit("the weights are not those the model used; the trace was not written")
    shutil.rmtree(FOLDER, ignore_errors=True)
    seen.save(FOLDER)
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{FOLDER} has {size:,} bytes, more than {LARGEST:,}: take a shorter sentence")
    print(f"wrote {FOLDER.name}: {len(seen)} layers, {len((seen.tokens or [[]])[0])} tokens, {size:,} bytes")


if __name__ == "__main__":
    main()
