"""The types that describe an attention call, found in what a watch holds: python -m tools.class_diagram

Watches a forward pass and a generation, asks for statistics and a proof, and follows every reference from the traces.
Classes of regard that are met are written into docs/architecture.md between <!-- classes --> and <!-- end -->, each
below the class that holds it. Parts (forms, masks, modifiers, normalizers) are what users choose; they are one line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers

import regard
from regard.attention.parts import Part

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BETWEEN = re.compile(r"(<!-- classes -->\n).*?(<!-- end -->)", re.DOTALL)


def examples() -> list[Any]:
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad(), regard.watch(model) as forward:
        model(ids)
    with regard.watch(model) as generation:
        model.generate(ids, max_new_tokens=3, do_sample=False)
    for seen in (forward, generation):
        seen[0].fidelity()
        seen[0].weights.stats(entropy=True)
    return [forward, generation]


def held(x: object) -> list[object]:
    """What an object refers to: its fields, or the items of a container."""
    if isinstance(x, dict):
        return list(x.values())
    if isinstance(x, (list, tuple, set)) and type(x).__module__ == "builtins":
        return list(x)
    slots = [name for cls in type(x).__mro__ for name in getattr(cls, "__slots__", ())]
    return [*getattr(x, "__dict__", {}).values(), *(getattr(x, name) for name in slots if hasattr(x, name))]


def tree(starts: list[Any]) -> list[str]:
    """A line for each class of regard, indented below the class in which it was met first; then the parts."""
    below: dict[str, list[type]] = {"": []}
    parts: set[str] = set()
    queue, met = [(x, "") for x in starts], set()
    for x, owner in queue:
        cls = type(x)
        if id(x) in met or isinstance(x, (torch.Tensor, torch.nn.Module, type, str)):
            continue
        met.add(id(x))
        if isinstance(x, Part):
            parts.add(cls.__name__)
        elif cls.__module__.startswith("regard."):
            if cls.__name__ not in below:
                below[cls.__name__] = []
                below[owner].append(cls)
            queue += [(y, cls.__name__) for y in held(x)]
        elif isinstance(x, (dict, list, tuple, set)):
            queue += [(y, owner) for y in held(x)]

    def lines(owner: str, depth: int) -> list[str]:
        out = []
        for cls in below[owner]:
            about = re.split(r"[:.;,] |\.?\n|\.$", cls.__doc__ or "")[0]
            out += [f"{'    ' * depth}{cls.__name__:<{28 - 4 * depth}} {about}", *lines(cls.__name__, depth + 1)]
        return out

    return [*lines("", 0), f"{'parts':<28} {', '.join(sorted(parts))}"]


def main() -> None:
    text = "\n".join(["```text", *tree(examples()), "```"])
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BETWEEN.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
