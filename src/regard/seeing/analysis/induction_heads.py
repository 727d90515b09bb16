"""Induction heads: heads that attend to the token after an earlier occurrence (Olsson et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .layer_stack import entry_weights, layer_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..capture.recorded_calls import Seen


def repeated_sequence(vocabulary: int, length: int, seed: int = 0, avoid: Sequence[int] = ()) -> Int[Tensor, " twice"]:
    """Random tokens, twice in a row; `avoid` are tokens not to use."""
    allowed = torch.tensor([x for x in range(vocabulary) if x not in set(avoid)])
    half = allowed[torch.randint(len(allowed), (length,), generator=torch.Generator().manual_seed(seed))]
    return torch.cat([half, half])


def induction_scores(seen: Seen, length: int) -> Float[Tensor, "layers heads"]:
    """On `repeated_sequence(…, length)`: the mean weight from the second half to the token after the same one.

    The diagonal at offset 1 − length (TransformerLens).
    """
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] >= 2 * length]
    if not calls:
        raise ValueError(f"no self-attention over a sequence of twice {length} tokens was seen")
    rows = slice(calls[0].shape[-2] - length, None)
    scores = []
    for call in layer_stack(calls):
        offsets = entry_weights(call, 0).rows(rows).stats(offsets=[1 - length]).offsets
        assert offsets is not None
        scores.append(offsets[..., 0].mean(-1).cpu())
        call.forget()
    return torch.stack(scores)
