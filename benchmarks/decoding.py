"""Search: beam 5 of the Transformer that ships beside CTranslate2, and what a beam costs.

    python -m benchmarks.decoding FILE.tsv

FILE has English in its first column, as the test set of Tatoeba (`xzcat test.en-fr.tsv.xz > FILE.tsv`). CPU seconds of
one thread, which other work on the machine does not change; float32.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.timing import Row, alternate, row, write
from regard.decoding import CTranslate2, export_ctranslate2, model_folders
from regard.decoding.translation import ModelEngine, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODELS = ("tatoeba-transformer-en-fr", "tatoeba-bahdanau-en-fr")
MANY, ALONE = 64, 16  # sentences that are searched at once, and one after the other


def rows(file: Path) -> Iterator[Row]:
    texts = [line.split("\t")[0] for line in file.read_text(encoding="utf-8").splitlines()[:MANY]]
    for name in MODELS:
        loaded = model_folders.load(name)
        sources, _ = read(loaded.tokenizers.source, texts)
        engines: dict[str, Any] = {"regard": ModelEngine(loaded.model)}
        with tempfile.TemporaryDirectory() as place:
            if "transformer" in name:
                folder = export_ctranslate2(loaded.model, loaded.tokenizers, Path(place) / "exported")
                engines["CTranslate2"] = CTranslate2(folder, loaded.tokenizers)
            for beams in (5, 1):
                yield from _measured(f"{name}, {MANY} sentences at once, beam {beams}", engines, [sources], beams)
                alone = [[source] for source in sources[:ALONE]]
                yield from _measured(f"{name}, {ALONE} sentences one by one, beam {beams}", engines, alone, beams)


def _measured(work: str, engines: dict[str, Any], batches: list[list[Any]], beams: int) -> Iterator[Row]:
    def run(engine: Any) -> None:
        for batch in batches:
            engine(batch, beams=beams)

    functions: dict[str, Callable[[], object]] = {by: partial(run, engine) for by, engine in engines.items()}
    times = alternate(functions, 7, clock=time.process_time)
    for by, values in times.items():
        print(f"{work}: {by} {values[0]:.1f} ms, {values[0] / times[list(times)[-1]][0]:.2f} ×", flush=True)
        yield row(work, by, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    torch.set_num_threads(1)
    write(list(rows(parser.parse_args().file)))


if __name__ == "__main__":
    main()
