"""Head reports for the terminal: labels and scores of heads, the strongest links between tokens, one head drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from .heads import entry_weights
from .patterns import PATTERNS, THRESHOLDS, Patterns
from .terminal import heatmap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from .call import Call
    from .patterns import HeadScores
    from .trace import Seen

MAX_TOKENS = 120
"""Tokens up to which a head is drawn in the terminal."""
LABELS = {
    "next": ("n", "cyan"),
    "previous": ("p", "green"),
    "self": ("s", "yellow"),
    "first": ("F", "blue"),
    "sink": ("f", "blue"),
    "delimiter": ("d", ""),
    "punctuation": (".", ""),
    "broad": ("b", "bright_black"),
    "positional": ("o", ""),
    "identical": ("=", "red"),
    "other sentence": ("≈", ""),
    "related": ("~", ""),
    "duplicate": ("u", "red"),
    "induction": ("i", "magenta"),
}
"""The letter and the colour of each label."""


class TokenLink(NamedTuple):
    """A query token and its key token of largest weight."""

    weight: float
    layer: int
    head: int
    query: int
    key: int


def label_table(patterns: Patterns) -> Table:
    """Layers × heads, with a letter for each label of a head; · for none."""
    heads = patterns.heads()
    width = max(head.head for head in heads) + 1
    table = Table("layer", *(str(n) for n in range(width)), box=None, title="what each head does", padding=(0, 1))
    for layer, _ in enumerate(patterns.names):
        row = [head for head in heads if head.layer == layer]
        table.add_row(str(layer), *(_letters(head) for head in row))
    used = dict.fromkeys(label for head in heads for label in head.labels)
    table.caption = "  ".join(f"{LABELS[name][0]} {name}" for name in THRESHOLDS if name in used) or "no label"
    return table


def _letters(head: HeadScores) -> Text:
    return Text.assemble(*(LABELS[name] for name in head.labels[:2])) if head.labels else Text("·", style="dim")


def best_heads_table(patterns: Patterns, count: int = 3) -> Table:
    """For each pattern the heads with the highest scores, and the p value of the first."""
    table = Table("pattern", "label above", "heads that score highest (layer.head score)", "p", box=None)
    for name in PATTERNS:
        heads = patterns.strongest(name, count)
        if not heads or name not in heads[0].scores or name == "sink":
            continue
        scores = "  ".join(f"{x.layer}.{x.head} {x.scores[name]:.2f}" for x in heads)
        p = f"{heads[0].p[name]:.2f}" if name in heads[0].p else ""
        table.add_row(name, f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else "", scores, p)
    return table


def strongest_links(seen: Seen, count: int = 12, entry: int = 0) -> list[TokenLink]:
    """The largest weights between tokens, one link for each pair; each head and query contributes its best key.

    In self-attention the token itself, its neighbours and the first token are left out: many heads attend there
    whatever the words are.
    """
    links: dict[tuple[str, int, int], TokenLink] = {}
    for layer, call in enumerate(seen):
        top = entry_weights(call, entry).top(1)
        values, keys = top.values[..., 0].cpu(), top.indices[..., 0].cpu()  # [heads, queries]
        if call.kind == "self":
            near = (keys - torch.arange(keys.shape[-1])).abs() <= 1
            values = values.masked_fill(near | (keys == 0), 0)
        largest = values.flatten().topk(min(count, values.numel()))
        for value, at in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
            head, query = divmod(at, values.shape[-1])
            link = TokenLink(value, layer, head, query, int(keys[head, query]))
            pair = call.kind, link.query, link.key
            if value > 0 and (pair not in links or links[pair].weight < value):
                links[pair] = link
        call.forget()
    return sorted(links.values(), reverse=True)[:count]


def link_table(seen: Seen, count: int = 12) -> Table:
    """The strongest links: query token, key token, weight and head."""
    table = Table("looks at", "", "weight", "layer.head", box=None, title="strongest links")
    for link in strongest_links(seen, count):
        rows, cols = row_and_column_tokens(seen, seen[link.layer])
        query = rows[link.query] if link.query < len(rows) else str(link.query)
        key = cols[link.key] if link.key < len(cols) else str(link.key)
        table.add_row(Text(query), Text(f"→ {key}"), f"{link.weight:.2f}", f"{link.layer}.{link.head}")
    return table


def row_and_column_tokens(seen: Seen, call: Call) -> tuple[list[str], list[str]]:
    """The tokens of a call's rows and columns; a row of a decoder is labelled by the token it generates.

    Where each token attends to those before it, as in an LSTMN, the first token has no row and the last no column.
    """
    if seen.sides and call.kind == "cross":
        return seen.sides["target"], seen.sides["source"]
    if seen.sides and "decoder" in call.name:
        return seen.sides["target"], seen.sides["read"]
    tokens = seen.sides["source"] if seen.sides else (seen.tokens or [[]])[0]
    *_, queries, keys = call.shape
    if queries == keys == len(tokens) - 1:
        return tokens[1:], tokens[:-1]
    return tokens, tokens


def check_head(seen: Seen, layer: int, head: int) -> None:
    """Refuse a head that does not exist, or one too wide for a terminal."""
    if layer >= len(seen) or head >= seen[layer].heads:
        raise ValueError(f"there are {len(seen)} layers of {seen[0].heads} heads; there is no {layer}.{head}")
    longest = max(seen[layer].shape[-2:])
    if longest > MAX_TOKENS:
        raise ValueError(
            f"a head is drawn up to {MAX_TOKENS} tokens, there are {longest}; leave --layer out, and keep all with "
            "--save"
        )


def report(seen: Seen, layer: int | None, head: int, links: int) -> Iterator[RenderableType]:
    """The table of calls, the head patterns if the model read one text, the strongest links, and one head drawn.

    Calls that do not reproduce the model's output are in the table only.
    """
    yield seen
    wrong = [call.name for call in seen if call.fidelity().faithful is False]
    if wrong:
        yield Text(f"\n{', '.join(wrong)}: not what the model computed, so no pattern or link is shown", style="red")
    if seen.text is not None and not wrong:
        patterns = Patterns()
        patterns.add(seen, seen.text)
        yield ""
        yield label_table(patterns)
        yield ""
        yield best_heads_table(patterns)
    if links and not wrong:
        yield ""
        yield link_table(seen, links)
    if layer is not None:
        call = seen[layer]
        if call.name in wrong:
            yield Text(f"{call.name} is not drawn", style="red")
            return
        *_, queries, keys = call.shape
        rows, cols = row_and_column_tokens(seen, call)
        yield ""
        yield heatmap(call.head(head).tile(slice(None), slice(None)).cpu(), _pad(rows, queries), _pad(cols, keys))


def _pad(names: list[str], count: int) -> list[str]:
    """Exactly `count` labels; a search may run one step further than it keeps."""
    return [*names[:count], *("" for _ in range(count - len(names)))]
