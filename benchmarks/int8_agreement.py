"""int8 exports beside torch: size, greedy translations that are the same, and BLEU, of the translators that ship.

    python -m benchmarks.int8_agreement FILE.tsv [--sentences 200]

FILE has English and French in two columns, as the test set of Tatoeba (`xzcat test.en-fr.tsv.xz > FILE.tsv`).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch

from regard.decoding import CTranslate2, export_ctranslate2, load_model_and_tokenizers, translate
from regard.decoding.onnx import export_onnx
from regard.special_tokens import BEGIN, END
from regard.training.scores import bleu

if TYPE_CHECKING:
    from regard.decoding import Translation

MODELS = ("tatoeba-transformer-en-fr", "tatoeba-bahdanau-en-fr")


def graph(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def greedy(encoder: Any, decoder: Any, source: list[int]) -> list[int]:
    """The likeliest token at every step, without </s>."""
    start = encoder({"source": np.array([source]), "lengths": np.array([len(source)])})
    state, memory = ({k: v for k, v in start.items() if k.startswith(f"{x}.")} for x in ("state", "memory"))
    tokens = [BEGIN]
    while tokens[-1] != END and len(tokens) <= 3 * len(source) + 10:
        values = decoder({"token": np.array(tokens[-1:]), **memory, **state})
        state = {k.replace("next.", "state."): v for k, v in values.items() if k.startswith("next.")}
        tokens.append(int(values["logits"][0, END:].argmax()) + END)  # <pad> and <s> are no words
    return tokens[1:-1] if tokens[-1] == END else tokens[1:]


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
    for name in MODELS:
        loaded = load_model_and_tokenizers.load(name)
        model, tokenizers = loaded.model, loaded.tokenizers
        expected = list(translate(model, tokenizers, sources, beams=1))
        print(f"{name}: torch BLEU {bleu([each.text for each in expected], references).value:.2f}")
        for kind in ("none", "int8"):
            with tempfile.TemporaryDirectory() as place:
                folder = export_onnx(model, tokenizers, Path(place) / "onnx", quantization=kind)  # type: ignore[arg-type]
                parts = [graph(folder / f"{part}.onnx") for part in ("encoder", "decoder")]
                texts = [tokenizers.target.decode(greedy(*parts, each.source_tokens)) for each in expected]
                size = sum(file.stat().st_size for file in folder.glob("*.onnx"))
                report(f"ONNX, quantization {kind}", size, texts, expected, references)
                if "transformer" not in name:
                    continue
                folder = export_ctranslate2(model, tokenizers, Path(place) / "ct2", quantization=kind)  # type: ignore[arg-type]
                engine = CTranslate2(folder, tokenizers)
                texts = [each.text for each in translate(engine, tokenizers, sources, beams=1)]
                size = (folder / "model.bin").stat().st_size
                report(f"CTranslate2, quantization {kind}", size, texts, expected, references)


if __name__ == "__main__":
    main()
