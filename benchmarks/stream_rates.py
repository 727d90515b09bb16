"""python -m benchmarks.stream_rates [--pairs 400000]

What a stream costs the process that makes its batches: CPU seconds of one core to read, encode and deal out generated
pairs (those of `benchmarks.prepare_pairs`), with a vocabulary of 16,000 pieces. Every process of a training reads the
whole stream, encodes it, and makes its own batches. The pairs per second are those that all GPUs together get.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import chain, islice
from pathlib import Path

from benchmarks.prepare_pairs import write_pairs
from regard.data import EncodedCorpus, TokenizerPair
from regard.data.batches import Batches
from regard.data.corpus_stream import CorpusPart, PairStream

TOKENS = 25_000  # of a batch
PROCESSES = 8
BUFFER = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400_000)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.tsv"
        write_pairs(file, pairs, seed=1)
        stream = PairStream((CorpusPart((str(file),), (0, 1), "error"),))
        tokenizers = TokenizerPair.train("bpe", 16_000, islice(stream.readers()[0], 50_000))
        (Path(folder) / "tokenizers").mkdir()
        tokenizers.save(Path(folder) / "tokenizers")
        seconds, tokens = dict.fromkeys(("reading", "encoding", "batches"), 0.0), 0
        blocks = stream.blocks(0)
        count = 0
        while count < pairs:
            start = time.process_time()
            buffer = []
            while sum(len(each.pairs) for each in buffer) < BUFFER and (block := next(blocks, None)) is not None:
                buffer.append(block)
            read = time.process_time()
            encoded = EncodedCorpus.build(chain.from_iterable(block.pairs for block in buffer), tokenizers, longest=128)
            done = time.process_time()
            batches = Batches(encoded, tokens=TOKENS, world=PROCESSES)
            for _ in batches:
                pass
            seconds["reading"] += read - start
            seconds["encoding"] += done - read
            seconds["batches"] += time.process_time() - done
            count += sum(len(each.pairs) for each in buffer)
            tokens += int((encoded.target_lengths - 1).sum())
    print(f"{count:,} pairs, {tokens / count:.1f} target tokens each")
    names = {
        "reading": "reading",
        "encoding": "encoding",
        "batches": f"batches of one of {PROCESSES}",
    }
    for key, name in names.items():
        print(f"{name:>32}: {1e6 * seconds[key] / count:6.2f} μs a pair")
    total = sum(seconds.values())
    print(f"{'in all':>32}: {count / total:10,.0f} pairs/s, {tokens / total:,.0f} target tokens/s")


if __name__ == "__main__":
    main()
