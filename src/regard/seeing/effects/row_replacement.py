"""Replacing attention outputs and embeddings and masking tokens, another one in each part of a batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .interventions import ModelIntervention, without_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Site:
    """A place that an intervention changes: a head, all heads of a layer, or a token."""

    layer: int | None = None
    """The number of the attention call in the forward pass."""
    head: int | None = None
    token: int | None = None
    module: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOutput:
    """The output of one attention call, and where its heads are."""

    module: str
    tensor: Tensor
    dim: int
    count: int | None

    def arranged(self, x: Tensor) -> Float[Tensor, "b heads t d"]:
        """A tensor of the output's shape with batch and heads first."""
        return by_heads(x, self.dim, self.count)

    @property
    def by_heads(self) -> Float[Tensor, "b heads t d"]:
        return self.arranged(self.tensor.detach())


class OutputRecorder(ModelIntervention):
    """Records the outputs of all attention calls of a forward pass, with their graph if there is one."""

    def __init__(self, model: nn.Module, gradients: bool = False) -> None:
        super().__init__(model)
        self.gradients = gradients
        self.outputs: list[RecordedOutput] = []

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        if self.gradients and not out.requires_grad:
            out = out.detach().requires_grad_()  # no parameter needs a gradient: the graph begins here
        self.outputs.append(RecordedOutput(name, out, dim, count))
        return out.clone()  # the model may change what it gets in place


class RowReplacement(ModelIntervention):
    """One change for each part of a batch that was repeated: in part n, site n."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        batch: int,
        outputs: Sequence[Float[Tensor, "b heads t d"] | None],
        modules: Sequence[str],
    ) -> None:
        """`outputs` replace those of each attention call, None for zeros; `modules` made these calls, in order."""
        super().__init__(model)
        self.sites, self.batch, self.replacements = sites, batch, outputs
        self.tokens = [site.token for site in sites if site.token is not None]
        self._calls: dict[tuple[str, int], int] = {}
        for at, module in enumerate(modules):
            self._calls[module, list(modules[:at]).count(module)] = at
        self._count: Counter[str] = Counter()

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        call = self._calls.get((name, self._count[name]))
        self._count[name] += 1
        own = [at for at, site in enumerate(self.sites) if site.layer is not None and site.layer == call]
        if call is None or not own:
            return out
        out, new = out.clone(), self.replacements[call]
        parts = by_heads(out, dim, count)
        for at in own:
            head = self.sites[at].head
            heads = slice(None) if head is None else slice(head, head + 1)
            rows = slice(at * self.batch, (at + 1) * self.batch)
            parts[rows, heads] = 0 if new is None else new[:, heads].to(out.dtype)
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """In part n of the batch, without token n."""
        queries, keys = q.shape[-2], k.shape[-2]
        if not self.tokens or self.is_cross(name, mask is None and not is_causal and 1 < queries != keys):
            return mask, is_causal
        closed = torch.zeros(len(self.sites), keys, dtype=torch.bool, device=q.device)
        for at, token in enumerate(self.tokens):
            closed[at, token] = True
        rows = closed.repeat_interleave(self.batch, dim=0)[:, None, None]
        return without_keys(rows, mask, is_causal, q), False


class EmbeddingHook:
    """A forward hook on the embedding: records its output, or replaces one token in each part of the batch."""

    def __init__(self, sites: Sequence[Site] = (), batch: int = 0, replacement: Tensor | None = None) -> None:
        self.sites, self.batch, self.replacement = sites, batch, replacement
        self.output: Tensor | None = None
        self.gradients = False

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if self.replacement is None:
            if self.gradients and not output.requires_grad:
                output = output.detach().requires_grad_()
            self.output = output
            return output.clone()  # the model may change what it gets in place
        output = output.clone()
        for at, site in enumerate(self.sites):
            rows = slice(at * self.batch, (at + 1) * self.batch)
            output[rows, site.token] = self.replacement[:, site.token].to(output.dtype)
        return output


def by_heads(out: Tensor, dim: int, count: int | None) -> Float[Tensor, "b heads ..."]:
    """A view of an output with batch and heads first."""
    dim %= out.dim()
    if count is not None and out.shape[dim] != count:
        out, dim = out.unflatten(dim, (-1, count)), dim + 1
    return out.movedim(dim, 1)
