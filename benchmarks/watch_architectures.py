"""python -m benchmarks.watch_architectures [name …]: watch a tiny model of every architecture of Transformers.

Each is run plainly and watched, and what is seen is compared with the weights that its own eager attention returns.
With --memory it also runs in bfloat16 at two lengths, and how the memory held grows with the length is measured.
Every architecture has a process of its own, so that none can stop the others. The results are in architectures.csv.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gc
import io
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import prove, watch
from regard.files import write_text
from tests.support import tiny_architectures

from .memory_held import LENGTHS, growth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).with_name("architectures.csv")
PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
COLUMNS = ("architecture", "verdict", "calls", "returned", "reason", "memory")
ALLOWED = 2e-5
SECONDS = 240
MEMORY = 12 << 30
"""Bytes that the process of one architecture may have."""


def weights_returned(output: Any) -> list[torch.Tensor]:
    """Every attention matrix among the outputs of a model."""
    if isinstance(output, dict):
        output = list(output.items())
        fields = [value for name, value in output if "attentions" in name or isinstance(value, dict)]
        return [x for field in fields for x in _tensors(field)]
    return []


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x] if x.dim() >= 3 else []
    if isinstance(x, dict):
        return weights_returned(x)
    return [y for part in x for y in _tensors(part)] if isinstance(x, list | tuple) else []


def first_tensor(output: Any) -> torch.Tensor | None:
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else [output]
    return next((x for x in values if isinstance(x, torch.Tensor)), None)


def examine(name: str) -> dict[str, str]:
    """One line of the table."""
    try:
        model, inputs = tiny_architectures.build(name)
    except tiny_architectures.CannotBuildError as error:
        return line(name, "not built", reason=str(error))
    with torch.no_grad():
        torch.manual_seed(0)
        plain = first_tensor(model(**copy.deepcopy(inputs)))
        torch.manual_seed(0)
        with watch(model) as seen:
            watched = first_tensor(model(**copy.deepcopy(inputs)))
        reason, theirs, own, other = "", [], None, None
        try:
            eager: Any = copy.deepcopy(model)
            eager.set_attn_implementation("eager")
            torch.manual_seed(0)
            with watch(eager) as own:
                output = eager(**copy.deepcopy(inputs), output_attentions=True)
            theirs, other = weights_returned(output), first_tensor(output)
            if any(bool(x.isnan().any()) for x in theirs):
                theirs, reason = [], "its eager attention returns NaN"
        except Exception as error:
            reason = f"no eager copy: {type(error).__name__}: {error}"
    if plain is not None and watched is not None and not torch.equal(plain.nan_to_num(), watched.nan_to_num()):
        return line(name, "CHANGED", len(seen), len(theirs), "the output differs when watched")
    faithful, missed = seen.faithful, "; ".join(seen.missed)
    unmatched = compare(seen, theirs)
    if not missed and (unmatched or not len(seen)):  # what mixes its tokens, then?
        missed = "; ".join(map(str, prove(model, **inputs).unseen))
    faithful = False if missed else faithful
    if unmatched and faithful and own is not None and own.faithful and plain is not None and other is not None:
        # Both copies are proved by their outputs: one returns other numbers than it uses, or their outputs differ.
        if compare(own, theirs):
            return line(name, "proved, returned otherwise", len(seen), len(theirs), "; ".join(unmatched[:1]))
        if not torch.allclose(plain, other, atol=1e-3, equal_nan=True):
            text = f"the outputs differ by {float((plain - other).abs().max()):.1e}; weights: {unmatched[0]}"
            return line(name, "proved, eager differs", len(seen), len(theirs), text)
    if unmatched:
        differs = any(x.startswith("differs") for x in unmatched)
        verdict = "WRONG" if faithful else "wrong, doubted" if differs else "named" if missed else "unseen"
        return line(name, verdict, len(seen), len(theirs), missed or "; ".join(unmatched[:3]))
    if not len(seen):
        return line(name, "named" if missed else "no attention", 0, len(theirs), missed or reason)
    if missed:
        return line(name, "named", len(seen), len(theirs), missed)
    if faithful is False:
        worst = next(call for call in seen if call.fidelity().faithful is False)
        text = f"{worst.name} ({worst.origin}): {worst.fidelity()[:3]}"
        return line(name, "doubted", len(seen), len(theirs), text)
    if faithful is None:
        first = seen.unproven[0]
        return line(name, "unproven", len(seen), len(theirs), f"{first.name}: {first.fidelity().remark}")
    return line(name, "proved" if theirs else "proved, nothing returned", len(seen), len(theirs), reason)


def compare(seen: Any, theirs: list[torch.Tensor]) -> list[str]:
    """What the model returns and no call shows."""
    ours = [call.weights.tile(slice(None), slice(None)) for call in seen if not call.fidelity().lost]
    problems = []
    for at, wanted in enumerate(theirs):
        same = [w for w in ours if w.numel() == wanted.numel() and w.shape[-1] == wanted.shape[-1]]
        errors = [float((w.reshape(wanted.shape) - wanted).abs().nan_to_num(1).max()) for w in same]
        if not errors:
            shapes = [list(w.shape) for w in ours[:4]]
            problems.append(f"no call like returned {at} {list(wanted.shape)}, there are {shapes}")
        elif min(errors) > ALLOWED:
            problems.append(f"differs by {min(errors):.1e}: returned {at} {list(wanted.shape)}")
    return problems


def line(name: str, verdict: str, calls: int = 0, returned: int = 0, reason: str = "") -> dict[str, str]:
    reason = re.sub(r" from '/[^']*'?", "", " ".join(reason.split()))[:300]  # where a module lies on this machine
    cells = (name, verdict, str(calls), str(returned), reason, "")
    return dict(zip(COLUMNS, cells, strict=True))


def in_a_process(
    name: str, memory: bool = False, measure: Callable[[], Iterator[dict[str, str]]] | None = None
) -> dict[str, str]:
    """The line of an architecture, or what `measure` gives last, computed in a child that is stopped after SECONDS."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for row in _measured(name, memory) if measure is None else measure():
            os.write(writer, json.dumps(row).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    data, end = b"", time.monotonic() + SECONDS
    while select.select([reader], [], [], max(end - time.monotonic(), 0))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lines = data.splitlines()
    return json.loads(lines[-1]) if lines else line(name, "error", reason="stopped: died, or took too long")


def _measured(name: str, memory: bool) -> Iterator[dict[str, str]]:
    """The line of an architecture, and again with the memory it holds."""
    try:
        row = examine(name)
    except BaseException as error:
        row = line(name, "error", reason=f"{type(error).__name__}: {error}")
    if not memory or row["verdict"] in ("not built", "no attention", "error"):
        yield row
        return
    yield row | {"memory": f"not run: took longer than {SECONDS} s"}
    try:
        yield row | {"memory": growth(name)}
    except BaseException as error:
        yield row | {"memory": f"not run: {type(error).__name__}: {error}"[:100]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    parser.add_argument("--memory", action="store_true", help="also measure the memory held in bfloat16")
    parser.add_argument("--rest", action="store_true", help="only what the file does not have yet")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Before the fork: importing these takes 2 s, an architecture 0.1 s.
    from transformers import AutoConfig, AutoModel, PreTrainedModel, logging  # noqa: F401

    logging.set_verbosity_error()
    gc.freeze()  # a child that collects garbage would copy the pages of all objects
    rows, start = [], time.monotonic()
    done = {row["architecture"] for row in kept(chosen.csv)} if chosen.rest and chosen.csv.exists() else set()
    for name in chosen.names or tiny_architectures.names():
        if name in done:
            continue
        rows.append(in_a_process(name, chosen.memory))
        keep(rows[-1:], chosen.csv)  # after each, so that a run that is stopped loses nothing
        print(*rows[-1].values(), sep="\t", flush=True)
    counts = Counter(row["verdict"] for row in rows)
    summary = ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common())
    print(f"{summary} ({time.monotonic() - start:.0f} s)")


def kept(file: Path = RESULTS) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def keep(rows: list[dict[str, str]], file: Path = RESULTS) -> None:
    """Write the rows in place of older ones of the same architectures, and the page made of them."""
    merged = {row["architecture"]: row for row in (kept(file) if file.exists() else [])}
    for row in rows:
        before = merged.get(row["architecture"], {})
        merged[row["architecture"]] = row | {"memory": row["memory"] or before.get("memory", "")}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(merged[name] for name in sorted(merged))
    write_text(file, text.getvalue())
    if file == RESULTS:
        write_text(PAGE, page(kept(file)))


MEANINGS = {
    "proved": "every weight is that of its eager attention within 2e-5, and W·v is the output",
    "proved, nothing returned": "W·v is the output; the model returns no weights to compare with",
    "proved, eager differs": "proved in both, whose weights differ: its fast and its eager attention are not the same",
    "proved, returned otherwise": "proved in both; what it returns is not what it multiplies with values",
    "unproven": "weights are shown, their product with values was not found",
    "doubted": "a fidelity error is larger than rounding explains, and said so",
    "wrong, doubted": "differs from eager attention, and is not called faithful",
    "WRONG": "differs from eager attention, and is called faithful",
    "named": "some modules cannot be seen, and `seen.missed` names them with the reason",
    "unseen": "attention ran unseen, and nothing says so",
    "no attention": "nothing was called",
    "error": "watching failed",
    "not built": "no tiny model could be built or fed by the generic rules of tests/support/tiny_architectures.py",
}


def page(rows: list[dict[str, str]]) -> str:
    """docs/architectures.md"""
    counts = Counter(row["verdict"] for row in rows)
    verdicts = [verdict for verdict in MEANINGS if counts[verdict]]
    lines = [
        "# Architectures of Transformers, watched",
        "",
        f"A tiny random model of each of {len(rows)} architectures in Transformers' model mapping, of which "
        f"{len(rows) - counts['not built']} could be built. `python -m benchmarks.watch_architectures --memory` makes "
        "this page, with names those lines.",
        "",
        "| verdict | architectures | meaning |",
        "|---|---:|---|",
        *(f"| {verdict} | {counts[verdict]} | {MEANINGS[verdict]} |" for verdict in verdicts),
        "",
    ]
    for verdict in verdicts:
        chosen = [row for row in rows if row["verdict"] == verdict]
        lines += [f"## {verdict}", ""]
        if verdict in ("proved", "no attention", "proved, nothing returned"):
            lines += [", ".join(f"{row['architecture']}" for row in chosen), ""]
            continue
        lines += ["| architecture | calls | reason |", "|---|---:|---|"]
        lines += [f"| {row['architecture']} | {row['calls']} | {_cell(row['reason'])} |" for row in chosen]
        lines += [""]
    return "\n".join(lines + memory_section(rows))


def memory_section(rows: list[dict[str, str]]) -> list[str]:
    """How the memory that a watch holds grows, in bfloat16."""
    measured = [row for row in rows if row["memory"]]
    other = [row for row in measured if row["memory"] not in ("linear", "fixed length")]
    square = [row for row in other if row["memory"].startswith("exponent")]
    linear, fixed = (sum(row["memory"] == kind for row in measured) for kind in ("linear", "fixed length"))
    return [
        "## Memory held in bfloat16",
        "",
        f"What a watch keeps alive, at two lengths of the input (text of {LENGTHS[0].text} and {LENGTHS[1].text} "
        f"tokens, pictures of {LENGTHS[0].picture} and {LENGTHS[1].picture} pixels). It grows linearly with queries "
        f"and keys in {linear} of {len(measured)} architectures; {fixed} have inputs of one length; {len(square)} hold "
        f"matrices (an exponent of 2 is a square), and {len(other) - len(square)} did not run at these lengths or "
        "have no weights.",
        "",
        "| architecture | memory |",
        "|---|---|",
        *(f"| {row['architecture']} | {_cell(row['memory'])} |" for row in other),
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:200]


if __name__ == "__main__":
    main()
