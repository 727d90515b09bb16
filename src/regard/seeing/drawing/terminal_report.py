"""Reports for the terminal: what the heads of a model do, and the strongest links between its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from rich.table import Table
from rich.text import Text as Words

from ..analysis.head_patterns import ALL, THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..analysis.head_patterns import Head, Patterns
    from ..capture.call import Call
    from ..capture.seen import Seen

SHORT = {
    "next": "n",
    "previous": "p",
    "self": "s",
    "first": "F",
    "sink": "f",
    "delimiter": "d",
    "punctuation": ".",
    "broad": "b",
    "positional": "o",
    "identical": "=",
    "other sentence": "≈",
    "related": "~",
    "duplicate": "u",
    "induction": "i",
}
COLOURS = {
    "next": "cyan",
    "previous": "green",
    "self": "yellow",
    "first": "blue",
    "sink": "blue",
    "broad": "bright_black",
    "induction": "magenta",
    "identical": "red",
    "duplicate": "red",
}


class Link(NamedTuple):
    """A token that looks at another one more than at any other."""

    weight: float
    layer: int
    head: int
    query: int
    key: int


def grid(patterns: Patterns) -> Table:
    """Layers × heads, one letter for each label of a head; · for none."""
    heads = patterns.heads()
    width = max(head.head for head in heads) + 1
    table = Table("layer", *(str(n) for n in range(width)), box=None, title="what each head does", padding=(0, 1))
    for layer, _ in enumerate(patterns.names):
        row = [head for head in heads if head.layer == layer]
        table.add_row(str(layer), *(_letters(head) for head in row))
    used = dict.fromkeys(label for head in heads for label in head.labels)
    table.caption = "  ".join(f"{SHORT[name]} {name}" for name in THRESHOLDS if name in used) or "no label"
    return table


def _letters(head: Head) -> Words:
    words = Words()
    for name in head.labels[:2]:
        words.append(SHORT[name], style=COLOURS.get(name, ""))
    return words if head.labels else Words("·", style="dim")


def best(patterns: Patterns, count: int = 3) -> Table:
    """For each pattern the heads that score highest, with how likely chance is to do as well."""
    table = Table("pattern", "label above", "heads that score highest (layer.head score)", "p", box=None)
    for name in ALL:
        heads = patterns.strongest(name, count)
        if not heads or name not in heads[0].scores or name == "sink":
            continue
        shown = "  ".join(f"{x.layer}.{x.head} {x.scores[name]:.2f}" for x in heads)
        chance = f"{heads[0].p[name]:.2f}" if name in heads[0].p else ""
        table.add_row(name, f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else "", shown, chance)
    return table


def links(seen: Seen, count: int = 12, entry: int = 0) -> list[Link]:
    """The largest weights between tokens, one for each pair; of every head and query the best key is considered.

    In self-attention the token itself, its neighbours and the first token are left out: some heads look there whatever
    the words are, and others look at the first when they look at nothing.
    """
    found: dict[tuple[str, int, int], Link] = {}
    for layer, call in enumerate(seen):
        weights = call.weights[entry] if len(call.shape) > 3 else call.weights
        top = weights.top(1)
        values, keys = top.values[..., 0].cpu(), top.indices[..., 0].cpu()  # [heads, queries]
        if call.kind == "self":
            near = (keys - torch.arange(keys.shape[-1])).abs() <= 1
            values = values.masked_fill(near | (keys == 0), 0)
        largest = values.flatten().topk(min(count, values.numel()))
        for value, at in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
            head, query = divmod(at, values.shape[-1])
            link = Link(value, layer, head, query, int(keys[head, query]))
            pair = call.kind, link.query, link.key
            if value > 0 and (pair not in found or found[pair].weight < value):
                found[pair] = link
        call.forget()
    return sorted(found.values(), reverse=True)[:count]


def linked(seen: Seen, names: Callable[[Call], tuple[list[str], list[str]]], count: int = 12) -> Table:
    """The strongest links as words: who looks at whom, how much, in which head. `names` are a call's rows and keys."""
    table = Table("looks at", "", "weight", "layer.head", box=None, title="strongest links")
    for link in links(seen, count):
        rows, cols = names(seen[link.layer])
        query = rows[link.query] if link.query < len(rows) else str(link.query)
        key = cols[link.key] if link.key < len(cols) else str(link.key)
        table.add_row(Words(query), Words(f"→ {key}"), f"{link.weight:.2f}", f"{link.layer}.{link.head}")
    return table
