"""CTranslate2 in int8 beside torch: size, greedy translations that are the same, BLEU; of the Transformer that ships.

    python -m benchmarks.int8_agreement FILE.tsv [--sentences 200]

FILE has English and French in two columns, as the test set of Tatoeba (`xzcat test.en-fr.tsv.xz > FILE.tsv`).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.decoding import CTranslate2, export_ctranslate2, model_folders, translate
from regard.training.scores import bleu

if TYPE_CHECKING:
    from regard.decoding import Translation

MODEL = "tatoeba-transformer-en-fr"


def report(name: str, size: int, texts: list[str], expected: list[Translation], references: list[str]) -> None:
    same = sum(text == each.text for text, each in zip(texts, expected, strict=True))
    score = bleu(texts, references).value
    print(f"  {name}: {size / 1e6:.1f} MB, {same} of {len(texts)} the same, BLEU {score:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = options.file.read_text(encoding="utf-8").splitlines()[: options.sentences]
    sources, references = map(list, zip(*(line.split("\t")[:2] for line in lines), strict=True))
    loaded = model_folders.load(MODEL)
    expected = list(translate(loaded.model, loaded.tokenizers, sources, beams=1))
    print(f"{MODEL}: torch BLEU {bleu([each.text for each in expected], references).value:.2f}")
    for kind in ("none", "int8"):
        with tempfile.TemporaryDirectory() as place:
            folder = export_ctranslate2(loaded.model, loaded.tokenizers, Path(place) / "ct2", quantization=kind)  # type: ignore[arg-type]
            engine = CTranslate2(folder, loaded.tokenizers)
            texts = [each.text for each in translate(engine, loaded.tokenizers, sources, beams=1)]
            report(f"quantization {kind}", (folder / "model.bin").stat().st_size, texts, expected, references)


if __name__ == "__main__":
    main()
