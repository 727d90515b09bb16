"""python -m benchmarks.prepare_pairs [--pairs 3000000] [--runs 1] [--folder DIR] [--source DIR] [--stream]

Seconds from the start of `regard train` to its first update, on generated pairs in one TSV file. Each line that the
command prints is shown with the time since its start.

The words of the pairs are made up, as frequent and as many as in news text; sentences have 12 words on average, and a
pair has about 140 bytes. --source names the src/ folder of another version, to compare with. --stream reads the same
file with data.kind = "stream", which prepares nothing. The memory is the most that the process had until then.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import numpy as np

WORDS = 1_000_000  # a side
CHUNK = 100_000  # pairs written together
RECIPE = """
[data]
kind = "files"
root = "."
train = ["pairs.tsv"]
valid = ["valid.tsv"]
longest = 128

[tokenizer]
kind = "bpe"
size = 16000
sample = 300000

[encoder]
kind = "rnn"
embedding = 16
width = 16

[decoder]
kind = "rnn"
embedding = 16
width = 16

[training]
updates = 10000
log_every = 1
validate_every = 10000
tokens = 4096
average = 1
"""


def made_up_words(seed: int, vowels: str) -> np.ndarray:
    """Words of syllables; frequent ones, which come first, are shorter."""
    random = np.random.default_rng(seed)
    syllables = np.array([a + b + c for a in "bdfglmnprst" for b in vowels for c in ("", "", "n", "r", "s")])
    counts = 1 + random.poisson(0.11 * np.log1p(np.arange(WORDS)))
    drawn = random.choice(syllables, int(counts.sum()))
    ends = counts.cumsum()
    return np.array(["".join(drawn[end - count : end]) for end, count in zip(ends, counts, strict=True)], object)


def cumulative_frequencies() -> np.ndarray:
    """Zipf's law with a steeper tail: as many different words as news text has, 41,000 in 285,000."""
    rank = np.arange(1, WORDS + 1, dtype=np.float64)
    frequency = np.where(rank <= 8000, 1 / rank, 8000**0.5 / rank**1.5)
    return np.asarray(frequency.cumsum() / frequency.sum())


def sentences(random: np.random.Generator, words: np.ndarray, law: np.ndarray, lengths: np.ndarray) -> list[str]:
    drawn = words[np.searchsorted(law, random.random(int(lengths.sum())))]
    ends = lengths.cumsum()
    return [" ".join(drawn[end - length : end]) + "." for end, length in zip(ends, lengths, strict=True)]


def write_pairs(path: Path, pairs: int, seed: int) -> None:
    sides = made_up_words(1, "aeiou"), made_up_words(2, "aeiouéàèêù")
    random, law = np.random.default_rng(seed), cumulative_frequencies()
    with path.open("w", encoding="utf-8") as file:
        for begin in range(0, pairs, CHUNK):
            lengths = np.clip(random.lognormal(2.35, 0.5, min(CHUNK, pairs - begin)), 2, 60).astype(np.int64)
            two = (sentences(random, words, law, lengths) for words in sides)
            file.writelines(f"{source}\t{target}\n" for source, target in zip(*two, strict=True))


def time_run(folder: Path, name: str, source: Path, *, stream: bool) -> None:
    """Start the command, and end it when metrics.csv has its first update."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    paths = f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "regard", "train", "recipe.toml", "--out", name]
    command += ["data.kind=stream", "data.root=.", 'data.train=["pairs.tsv"]', 'data.valid=["valid.tsv"]'] * stream
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    threading.Thread(target=_print_lines, args=(process.stdout, start), daemon=True).start()
    metrics = folder / name / "metrics.csv"
    while process.poll() is None and not (metrics.is_file() and len(metrics.read_bytes().splitlines()) > 1):
        time.sleep(0.05)
    wall = time.monotonic() - start
    memory = _peak_memory(process.pid)
    process.kill()
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{name}: first update after {wall:.1f} s and {cpu:.1f} CPU seconds, imports included; {memory} MB", flush=True
    )
    shutil.rmtree(folder / name)


def _peak_memory(pid: int) -> int:
    """In MB, of a process that runs."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1000


def _print_lines(stream: IO[str], start: float) -> None:
    for line in stream:
        print(f"  {time.monotonic() - start:6.1f} s  {line.rstrip()[:150]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files stay; else they are temporary")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--stream", action="store_true")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = choices.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "pairs.tsv").exists():
            write_pairs(folder / "pairs.tsv", choices.pairs, seed=1)
            write_pairs(folder / "valid.tsv", 500, seed=2)
        (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        size = (folder / "pairs.tsv").stat().st_size
        print(f"{choices.pairs:,} pairs, {size / 1e6:.0f} MB, {len(os.sched_getaffinity(0))} cores", flush=True)
        for run in range(1, choices.runs + 1):
            time_run(folder, f"run-{run}-{time.time_ns()}", choices.source.resolve(), stream=choices.stream)


if __name__ == "__main__":
    main()
