"""Hard attention: all the weight on one key. State: the index of that key, −1 for an empty row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from .normalizer import Normalizer, empty_rows
from .softmax import Softmax

if TYPE_CHECKING:
    from torch import Tensor

_SOFTMAX = Softmax()


class Hard(nn.Module, Normalizer):
    """w_ij = 1 for one key per query (Xu et al. 2015, section 4.1).

    `Hard()` takes the best key; no gradient reaches the energies, since moving them a little changes nothing.
    With `gradient` it is a module with two modes: in evaluation the best key, in training one sampled from the
    softmax of the energies, whose gradient is
    - "straight-through": that of the softmax, as if the weights had been soft (Bengio, Léonard & Courville 2013);
    - "reinforce": none through the weights. `attend(..., weights=True)` gives `Weights.log_prob()`, the log
      probability of what was sampled, to be multiplied by a reward (Williams 1992).
    """

    kernel = "hard"
    opaque = False
    selects_key = True

    def __init__(self, gradient: Literal["straight-through", "reinforce"] | None = None) -> None:
        super().__init__()
        if gradient not in (None, "straight-through", "reinforce"):
            raise ValueError(f'Hard takes gradient="straight-through", "reinforce" or None, got {gradient!r}')
        self.gradient = gradient

    def arguments(self) -> dict[str, Any]:
        return {}  # a trace has the keys already chosen; how gradients went is not part of it

    @property
    def samples(self) -> bool:  # type: ignore[override]
        return self.gradient is not None and self.training

    def forward(self, e: Tensor) -> Tensor:
        return self.both(e)[0]

    def both(self, e: Tensor) -> tuple[Tensor, Tensor]:
        selected = self.state(e)
        weights = self.weigh(e, selected[..., None], torch.arange(e.shape[-1], device=e.device))
        if self.samples and self.gradient == "straight-through":
            soft = _SOFTMAX(e)
            weights = weights + (soft - soft.detach())
        return weights, selected

    # nn.Module's own __call__, not Normalizer's: hooks work, and `forward` is the formula.
    __call__ = nn.Module.__call__

    def state(self, e: Tensor) -> Tensor:
        """The chosen index: a fresh sample at every call in training mode, the first best key otherwise."""
        x = e.detach()
        if not x.shape[-1]:
            return torch.full(x.shape[:-1], -1, device=x.device)  # no key to choose
        if self.samples:
            # The Gumbel-max trick: e_j − log(E_j), E_j ~ Exp(1), is largest with probability softmax(e)_j.
            x = x - torch.empty_like(x).exponential_().log()
        return x.argmax(dim=-1).masked_fill(empty_rows(e).squeeze(-1), -1)

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return (j == state).to(e.dtype)

    def extra_repr(self) -> str:
        return "" if self.gradient is None else f"gradient={self.gradient!r}"
