"""Options of an attention kernel, the same for its forward and its backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


class KernelArguments(NamedTuple):
    """Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1], both or neither). Dropout repeats with its seed."""

    start: Int[Tensor, "_ _"] | None
    stop: Int[Tensor, "_ _"] | None
    seed: Int[Tensor, ""] | None
    scale: float
    dropout: float

    def expand(self, n: int, q: int) -> KernelArguments:
        """One start and stop per row; what was shared stays shared, by a stride of 0."""
        if self.start is None or self.stop is None:
            return self
        return self._replace(start=self.start.expand(n, q), stop=self.stop.expand(n, q))
