"""Retrieval heads: heads that copy from a long prompt while the model generates (Wu et al. 2024, arXiv 2404.15574)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .layer_stack import entry_weights

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..capture.recorded_calls import Seen


def retrieval_scores(
    seen: Seen, ids: Int[Tensor, " t"], needle: range, entry: int = 0
) -> Float[Tensor, "layers heads"]:
    """The share of the needle's tokens that each head copied. Above 0.1 it is a retrieval head.

    `ids` are prompt and answer; `needle` is where in the prompt the text to be found stands. A head copies a token if,
    at the step that generates it, its key of largest weight lies in the needle and is that token.
    """
    ids = ids.cpu()
    if not 0 <= needle.start < needle.stop <= seen.prompt:
        raise ValueError(f"the needle {needle} must lie in the prompt, which has {seen.prompt} tokens")
    scores = []
    for call in (call for call in seen if call.kind == "self"):
        queries = call.shape[-2]
        if queries <= seen.prompt or queries >= len(ids) + 1:
            raise ValueError(
                f"{call.name} saw {queries} queries: retrieval is about generation, prompt and answer of {len(ids)} "
                "tokens"
            )
        # The query at position i generates token i + 1, so the prompt's last query generates the first token.
        rows = range(seen.prompt - 1, queries)
        best = entry_weights(call, entry).rows(list(rows)).top(1).indices[..., 0].cpu()  # [heads, rows]
        generated = ids[seen.prompt : seen.prompt + len(rows)]
        hits = (best >= needle.start) & (best < needle.stop) & (ids[best] == generated)
        copied = [len(set(keys[hit].tolist())) for keys, hit in zip(best, hits, strict=True)]
        scores.append(torch.tensor(copied) / len(needle))
        call.forget()
    return torch.stack(scores)
