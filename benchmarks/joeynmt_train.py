"""Training a translator beside JoeyNMT 2.3: each library as its users run it, on one corpus, with its own batches.

    PYTHONPATH=<folder with joeynmt 2.3.0 and what it needs> python -m benchmarks.joeynmt_train [--device cuda]

Both read the same files (Multi30k, English to German, one token for each word, below $REGARD_DATA), have the same
sizes, and batches of at most as many tokens, padding included. regard trains by `fit`, which is `regard train`;
JoeyNMT by its own `train`, with its mixed precision (`fp16: True`) switched on. On a CPU JoeyNMT switches that off
again; on a GPU it also trains in float32, and the faster one counts.

JoeyNMT draws sentences of any length into a batch, so it multiplies more padding than regard, which puts sentences of
like length together. `benchmarks.joeynmt` gives both the same batches of like length.

Each trainer is a process of its own. They take turns, a few updates at a time. What is counted is the time from the
beginning of an update to the beginning of the next, with the making of the batch: CPU seconds on a CPU. Rates are
tokens of the target without padding.
"""

from __future__ import annotations

import argparse
import logging
import lzma
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.joeynmt_models import VOCABULARY, ours, their_parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from regard.data.batches import Batch

FILES = {"train": "train", "dev": "val"}
"""Names of JoeyNMT's splits, and how the files of Multi30k begin."""


def write_corpus(folder: Path) -> None:
    """The two languages of each split as text files, which both libraries read."""
    root = Path(os.environ.get("REGARD_DATA", "../shared/data")) / "multi30k"
    for split, name in FILES.items():
        with lzma.open(root / f"{name}.lc.norm.tok.en-de-fr.tsv.xz", "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t")[:2] for line in file]
        for language, texts in zip(("en", "de"), zip(*rows, strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("\n".join(texts) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Training:
    """What a process trains."""

    library: str  # "regard" or "JoeyNMT"
    mixed: bool
    kind: str  # of model: "bahdanau" or "transformer"
    folder: Path
    tokens: int  # in a batch
    device: str
    threads: int

    @property
    def name(self) -> str:
        if not self.mixed or (self.library == "JoeyNMT" and self.device == "cpu"):  # which switches it off there
            return f"{self.library} in float32"
        return f"{self.library} in {'bfloat16' if self.library == 'regard' else 'float16'}"


class Turns:
    """Called at the beginning of every update: reports the time since the last call, and waits for the next turn."""

    def __init__(self, connection: Connection, device: str) -> None:
        self._connection, self._on_gpu = connection, device == "cuda"
        self._clock = time.perf_counter if self._on_gpu else time.process_time
        self._start, self._tokens = 0.0, 0

    def __call__(self, tokens: int) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        if self._tokens:
            self._connection.send((self._clock() - self._start, self._tokens))
            self._connection.recv()
        self._start, self._tokens = self._clock(), tokens


def train_regard(training: Training, turn: Callable[[int], None]) -> None:
    from regard.training import Recipe, fit
    from regard.training.loop import Training as Loop
    from regard.training.recipe_sections import Reader

    config = ours(training.kind).config
    recipe = Reader().read(Recipe, {
        "name": training.kind,
        "data": {
            "kind": "files", "root": str(training.folder), "tokenised": True,
            "train": [["train.en", "train.de"]], "valid": [["dev.en", "dev.de"]],
        },
        "tokenizer": {"kind": "word", "size": VOCABULARY, "joint": False},
        "encoder": config.encoder,
        "decoder": config.decoder,
        "training": {
            "updates": 10**6, "tokens": training.tokens, "validate_every": 10**6, "save_every": 10**6, "rate": 1e-4,
            "schedule": "constant", "smoothing": 0.1,
            "precision": "bf16-mixed" if training.mixed else "32-true",
            "accelerator": training.device,
        },
    }, "the benchmark")  # fmt: skip
    backward = Loop.backward

    def counted(self: Loop, batches: list[Batch]) -> torch.Tensor:
        turn(sum(int((batch.target_lengths - 1).sum()) for batch in batches))
        return backward(self, batches)

    Loop.backward = counted  # type: ignore[method-assign]
    fit(recipe, training.folder / training.name / training.kind)


def train_joeynmt(training: Training, turn: Callable[[int], None]) -> None:
    from joeynmt.training import TrainManager, train

    encoder, decoder = their_parts(ours(training.kind).config)
    folder = training.folder / training.name / training.kind
    folder.mkdir(parents=True)
    side = {"level": "word", "lowercase": False, "max_length": 256, "min_length": 1, "voc_limit": VOCABULARY}
    config = {
        "name": training.kind,
        "model_dir": str(folder),
        "use_cuda": training.device == "cuda",
        "fp16": training.mixed,
        "data": {
            "train": str(training.folder / "train"), "dev": str(training.folder / "dev"), "dataset_type": "plain",
            "src": {"lang": "en", **side}, "trg": {"lang": "de", **side},
        },
        "testing": {"beam_size": 1},
        "training": {
            "epochs": 10**6, "batch_size": training.tokens, "batch_type": "token", "normalization": "tokens",
            "optimizer": "adamw", "learning_rate": 1e-4, "label_smoothing": 0.1, "clip_grad_norm": 1.0,
            "logging_freq": 10**6, "validation_freq": 10**6, "early_stopping_metric": "loss",
            "scheduling": "warmupinversesquareroot",
        },
        "model": {"encoder": encoder, "decoder": decoder},
    }  # fmt: skip
    update = TrainManager._train_step

    def step(self: Any, batch: Any) -> Any:
        turn(int(batch.ntokens))
        return update(self, batch)

    TrainManager._train_step = step
    train(rank=0, world_size=None, cfg=config, skip_test=True)


def work(training: Training, connection: Connection) -> None:
    """The whole life of a process, until it is killed."""
    torch.set_num_threads(training.threads)
    logging.disable(logging.INFO)
    train = train_regard if training.library == "regard" else train_joeynmt
    try:
        train(training, Turns(connection, training.device))
    except RuntimeError as error:  # JoeyNMT's recurrent decoder may fail in float16
        connection.send(f"{training.name}: {error}".splitlines()[0])


@dataclass
class Measured:
    """Of one trainer: each turn's seconds and tokens."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]


def measure(trainings: list[Training], turns: int, updates: int, warmup: int) -> dict[str, Measured]:
    """Turns of so many updates, one trainer after the other, after so many updates that do not count."""
    context = get_context("spawn")
    measured = {training.name: Measured() for training in trainings}
    connections, processes = {}, []
    for training in trainings:
        connections[training.name], other = context.Pipe()
        processes.append(context.Process(target=work, args=(training, other), daemon=True))
        processes[-1].start()
        other.close()
    try:
        for number in range(turns + 1):
            for name, connection in list(connections.items()):
                reports = []
                for _ in range(updates if number else warmup):
                    reports.append(connection.recv())
                    if isinstance(reports[-1], str):
                        print(reports[-1], flush=True)
                        del connections[name], measured[name]
                        break
                    connection.send(True)
                else:
                    if number:
                        measured[name].seconds.append(sum(seconds for seconds, _ in reports))
                        measured[name].tokens.append(sum(tokens for _, tokens in reports))
    finally:
        for process in processes:
            process.kill()  # interrupted, both would save their models first
            process.join()
    return measured


def summary(measured: dict[str, Measured], updates: int) -> str:
    """Tokens per second of each and in an update, and the median of the ratios to the faster JoeyNMT."""
    middle = {name: statistics.median(each.rates) for name, each in measured.items()}
    parts = [
        f"{name} {middle[name]:,.0f} tokens/s ({sum(each.tokens) / len(each.tokens) / updates:,.0f} in an update)"
        for name, each in measured.items()
    ]
    own, other = (
        max((name for name in measured if name.startswith(library)), key=middle.__getitem__)
        for library in ("regard", "JoeyNMT")
    )
    ratios = [ours / theirs for ours, theirs in zip(measured[own].rates, measured[other].rates, strict=True)]
    ratio = f"{statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{', '.join(parts)}; {own} ÷ {other}: {ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, default=1500, help="in a batch, padding included")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--updates", type=int, default=6, help="in a turn")
    parser.add_argument("--warmup", type=int, default=3, help="updates before the first turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=["bahdanau", "transformer"])
    given = parser.parse_args()
    precisions = [("regard", True), ("JoeyNMT", True)]
    if given.device == "cuda":
        precisions.append(("JoeyNMT", False))
    for kind in given.models:
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder))
            trainings = [
                Training(library, mixed, kind, Path(folder), given.tokens, given.device, given.threads)
                for library, mixed in precisions
            ]
            measured = measure(trainings, given.turns, given.updates, given.warmup)
            print(f"{kind}: {summary(measured, given.updates)}", flush=True)


if __name__ == "__main__":
    main()
