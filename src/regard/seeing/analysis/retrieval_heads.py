"""Retrieval heads: heads that copy what is written out of a long text (Wu et al. 2024, arXiv 2404.15574)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..capture.seen import Seen

THRESHOLD = 0.1


def retrieval(seen: Seen, ids: Int[Tensor, " t"], needle: range, entry: int = 0) -> Float[Tensor, "layers heads"]:
    """The share of the needle's tokens that a head copied while the model wrote. Above 0.1 it is a retrieval head.

    `ids` are prompt and answer; `needle` is where in the prompt the text to be found stands. A head copies a token
    where, at the step that writes it, its best key lies in the needle and is that token.
    """
    ids = ids.cpu()
    if not 0 <= needle.start < needle.stop <= seen.prompt:
        raise ValueError(f"the needle {needle} must lie in the prompt, which has {seen.prompt} tokens")
    found = []
    for call in (call for call in seen if call.kind == "self"):
        queries = call.shape[-2]
        if queries <= seen.prompt or queries >= len(ids) + 1:
            raise ValueError(
                f"{call.name} saw {queries} queries: retrieval is about generation, prompt and answer of {len(ids)} "
                "tokens"
            )
        # The query at place i writes token i + 1, so the first written token comes of the prompt's last query.
        rows = range(seen.prompt - 1, queries)
        weights = call.weights[entry] if len(call.shape) > 3 else call.weights
        best = weights.rows(list(rows)).top(1).indices[..., 0].cpu()  # [heads, rows]
        written = ids[seen.prompt : seen.prompt + len(rows)]
        inside = (best >= needle.start) & (best < needle.stop) & (ids[best] == written)
        copied = [len(set(keys[hit].tolist())) for keys, hit in zip(best, inside, strict=True)]
        found.append(torch.tensor(copied) / len(needle))
        call.forget()
    return torch.stack(found)
