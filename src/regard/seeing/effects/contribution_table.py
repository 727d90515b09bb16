"""Contributions as a table: the largest of each query, with tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..result_table import ResultTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...attention import Contributions


def contribution_table(
    contributions: Contributions,
    count: int = 5,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> ResultTable:
    """The `count` contributions of largest size of every query: one row each, with its place in the batch.

    `queries` and `keys` are tokens. The columns of leading dimensions are called entry and head.
    """
    keys_there = contributions.shape[-1]
    values, indices = contributions.top(min(count, keys_there))
    lead, rows = contributions.weights.leading_shape, contributions.weights.queries
    names = ["entry", "head"][-len(lead) :] if 0 < len(lead) <= 2 else [f"dimension {n}" for n in range(len(lead))]
    flat = values.reshape(-1, len(rows), values.shape[-1])
    where = torch.unravel_index(torch.arange(len(flat)), lead) if lead else ()
    every = len(rows) * flat.shape[-1]
    columns: dict[str, Sequence[Any]] = {
        name: at.repeat_interleave(every).tolist() for name, at in zip(names, where, strict=True)
    }
    columns["query"] = [row for row in rows for _ in range(flat.shape[-1])] * len(flat)
    columns["key"] = indices.flatten().tolist()
    columns["contribution"] = values.flatten().tolist()
    for name, at, tokens in (("query token", columns["query"], queries), ("key token", columns["key"], keys)):
        if tokens is not None:
            columns[name] = [tokens[x] for x in at]
    return ResultTable(columns)
