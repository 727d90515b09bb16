"""What tests of the Heads view share: a layer, and its weights by the library beside those that are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from regard.seeing import Seen

CALL = 2
HALF = 1e-3  # float16 keeps eleven bits
READY = "drawn.links.length > 0"


def weights(seen: Seen, call: int = CALL) -> torch.Tensor:
    return torch.stack([seen[call].head(head).dense() for head in range(seen[call].heads)])


def same(links: list[dict[str, Any]], w: torch.Tensor) -> None:
    """Every link has the library's weight."""
    assert links
    given = torch.tensor([link["weight"] for link in links])
    where = [torch.tensor([link[name] for link in links]) for name in ("head", "query", "key")]
    torch.testing.assert_close(given, w[where[0], where[1], where[2]].float(), rtol=HALF, atol=1e-6)
