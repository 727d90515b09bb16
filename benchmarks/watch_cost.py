"""python -m benchmarks.watch_cost: a real model over its whole context, plainly, watched, and asked about every head.

SmolLM2 (135M, 30 layers of 9 heads) over 8,192 random tokens, on one core: CPU seconds, which other work on
the machine does not change, and the peak of a fresh process. Weights kept by eager attention would be 72 GB.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from benchmarks.timing import PEAK, Row, row, write
from tools import performance_page as page

TOKENS = 8192

SETUP = """
import time, torch
torch.set_num_threads(1)
from regard.seeing.analysis import Patterns, TokenizedText
from regard.seeing.text_models import load_text_model
found = load_text_model("smollm2")
zipf = 1 / torch.arange(1, found.tokenizer.vocab_size + 1)  # as often as words of a language repeat
ids = torch.multinomial(zipf, TOKENS, replacement=True, generator=torch.Generator().manual_seed(0))
text = TokenizedText.from_ids(ids)
with torch.no_grad():
    found.model(text.ids[None, :256])
def plain():
    with torch.no_grad():
        found.model(text.ids[None])
def watched():
    return found.read(text)
def asked():
    seen = watched()
    patterns = Patterns()
    stats = patterns.add(seen, text, top=8)
    heads = patterns.heads()
    assert len(heads) == 270 and len(stats) == 30
    return patterns, stats, seen
"""

ONE = """
open("/proc/self/clear_refs", "w").write("5")  # the peak of loading the model is not the work's: begin from now
before = peak()
start = time.process_time()
kept = WORK()
print(time.process_time() - start, peak() - before)
"""


def measure(work: str) -> tuple[float, float]:
    """CPU seconds, and MiB by which the peak of a fresh process grew."""
    code = (PEAK + SETUP + ONE).replace("WORK", work).replace("TOKENS", str(TOKENS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, more = done.stdout.split()[-2:]
    return float(seconds), float(more)


def rows() -> list[Row]:
    torch.set_num_threads(1)
    name = f"SmolLM2-135M, {TOKENS:,} tokens"
    works = {
        "plain": "plain forward",
        "watched": "regard: watched forward",
        "asked": "regard: watched, then entropies, top 8, sinks and patterns of all 270 heads",
    }
    measured = {work: measure(work) for work in works}
    times = [row(f"{name}, CPU seconds", by, [measured[work][0]], "s") for work, by in works.items()]
    peaks = [row(f"{name}, memory beyond the model", by, [measured[work][1]], "MiB") for work, by in works.items()]
    return times + peaks


if __name__ == "__main__":
    found = rows()
    write(found)
    page.PAGE.write_text(page.page(), encoding="utf-8")
    for one in found:
        print(f"{one.work:50} {one.by:80} {one.p50:10.1f} {one.unit}")
