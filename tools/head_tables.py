"""python -m tools.head_tables: what the heads of MiniLM and SmolLM2 do on real text; writes docs/seeing.md's tables.

The text is WikiText-2's test set, which lies outside the repository; nothing of it is printed. What stands between
<!-- heads: minilm --> and <!-- end --> is rewritten, and docs/minilm-heads.svg and docs/smollm2-heads.svg are drawn.
"""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.seeing.analysis import (
    THRESHOLDS,
    Patterns,
    TokenizedText,
    induction_scores,
    repeated_sequence,
)
from regard.seeing.figures import save_head_maps
from regard.seeing.patterns import PATTERNS
from regard.seeing.text_models import load_text_model

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seeing.md"
CORPUS = ROOT.parent / "shared" / "data" / "text" / "wikitext2.test.txt.xz"
TEXTS, LENGTH, REPEATED = {"minilm": 40, "smollm2": 8}, 256, 64
DRAWN = ("next", "previous", "self", "first", "delimiter", "punctuation", "identical", "other sentence", "related")


def paragraphs(count: int) -> list[tuple[str, str]]:
    """Paragraphs as two parts, each whole sentences."""
    found = []
    with lzma.open(CORPUS, "rt", encoding="utf-8") as file:
        for line in file:
            sentences = line.strip().split(" . ")
            if len(line) > 400 and len(sentences) > 3:
                half = len(sentences) // 2
                found.append((" . ".join(sentences[:half]) + " .", " . ".join(sentences[half:])))
            if len(found) == count:
                break
    return found


def minilm() -> tuple[Patterns, dict[str, Tensor]]:
    """Pairs of parts, as BERT was trained on pairs of sentences."""
    text_model, patterns = load_text_model("minilm"), Patterns()
    text_model.max_length = LENGTH
    for first, second in paragraphs(TEXTS["minilm"]):
        text = text_model.encode(first, second)
        patterns.add(text_model.read(text), text)
    return patterns, {name: patterns.scores(name) for name in DRAWN}


def smollm2() -> tuple[Patterns, dict[str, Tensor]]:
    """Whole paragraphs; and random tokens said twice, on which nothing but induction helps."""
    text_model, patterns = load_text_model("smollm2"), Patterns()
    text_model.max_length = LENGTH
    for first, second in paragraphs(TEXTS["smollm2"]):
        text = text_model.encode(f"{first} {second}")
        patterns.add(text_model.read(text), text)
    ids = repeated_sequence(text_model.tokenizer.vocab_size, REPEATED, avoid=text_model.tokenizer.all_special_ids)
    said_twice = induction_scores(text_model.read(TokenizedText.from_ids(ids)), REPEATED)
    grids = {name: patterns.scores(name) for name in ("previous", "self", "first", "duplicate", "induction")}
    return patterns, {**grids, "induction, said twice": said_twice}


def table(patterns: Patterns, grids: dict[str, Tensor]) -> str:
    """For each pattern, the heads that score highest, and p of the first."""
    lines = ["| pattern | label above | heads that score highest (layer.head score) | p |", "|---|---:|---|---:|"]
    known = [name for name in PATTERNS if name in patterns.heads()[0].scores and name != "sink"]
    for name in [*known, *(x for x in grids if x not in PATTERNS)]:
        scores = grids[name] if name not in PATTERNS else patterns.scores(name)
        chance = patterns.p(name) if name in PATTERNS else None
        best = scores.flatten().topk(4).indices.tolist()
        shown = ", ".join(f"{at // scores.shape[1]}.{at % scores.shape[1]} {scores.flatten()[at]:.2f}" for at in best)
        least = f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else ""
        lines.append(f"| {name} | {least} | {shown} | {'' if chance is None else f'{chance.flatten()[best[0]]:.2f}'} |")
    lines += [
        f"\n{patterns.texts} texts of at most {LENGTH} tokens; {patterns.sink_share():.0%} of the heads are sinks."
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    if not CORPUS.is_file():
        sys.exit(f"there is no {CORPUS}: the heads are looked for on WikiText-2")
    torch.set_num_threads(1)
    for name, find in (("minilm", minilm), ("smollm2", smollm2)):
        patterns, grids = find()
        save_head_maps(ROOT / "docs" / f"{name}-heads.svg", grids)
        between = re.compile(rf"(<!-- heads: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = table(patterns, grids)
        PAGE.write_text(
            between.sub(lambda found, text=text: found[1] + text + found[2], PAGE.read_text(encoding="utf-8")),  # type: ignore[misc]
            encoding="utf-8",
        )
        print(name, text, sep="\n")


if __name__ == "__main__":
    main()
