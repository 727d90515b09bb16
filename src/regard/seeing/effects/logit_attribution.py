"""Direct logit attribution: how much each head, MLP and the embedding adds to a logit, and each token through a head.

The logit of a token is W_U[t] · norm(x_L) + b. At the scale that the final norm really had, norm is linear, so that the
logit is a sum over everything that was added to the residual stream:

    logit = u · x_0 + Σ_l Σ_h g_lh · o_lh + Σ_l u · bias_l + Σ_l u · m_l + constant        g_lh = W_O,lhᵀ u

u is W_U[t] through the norm's gain, divided by its scale (and centred for a LayerNorm). Each head's part is in turn a
sum over source tokens, Σ_j w_ij (g · v_j): `Contributions`. The sum is exact up to the rounding of the model's own
arithmetic (Elhage et al. 2021; Wang et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .residual_stream import record_stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float

    from ...attention import Contributions
    from .residual_stream import ResidualStream


@dataclass(slots=True, eq=False)
class LogitAttribution:
    """The parts of a logit, or of the difference of two, for each entry of the batch."""

    logit: Float[Tensor, " b"]
    """What the output layer of the model computed."""
    constant: Float[Tensor, " b"]
    """Biases of the final norm and of the output layer."""
    embedding: Float[Tensor, " b"]
    heads: Float[Tensor, "b layers heads"]
    biases: Float[Tensor, "b layers"]
    """Biases of the output projections of attention."""
    mlps: Float[Tensor, "b layers"]
    directions: list[Float[Tensor, "b heads d"]]
    """g of each layer."""
    stream: ResidualStream
    rows: list[int]
    """The position of the logit in each entry."""

    @property
    def total(self) -> Float[Tensor, " b"]:
        """The sum of all parts."""
        return self.constant + self.embedding + sum(x.flatten(1).sum(1) for x in (self.heads, self.biases, self.mlps))

    def sources(self, layer: int, entry: int = 0) -> Contributions:
        """What each source token adds through each head of a layer, [heads, 1, T_k]. Its rows sum to `heads`."""
        call, row = self.stream.layers[layer].call, self.rows[entry]
        g = self.directions[layer].to(call.v.dtype)[:, :, None]  # one direction for the one row that is read
        lead = g if len(call.shape) > 3 else g[0]
        part = call.contributions(lead)
        return (part[entry] if len(call.shape) > 3 else part).rows(row)

    def strongest(self, count: int = 10) -> list[tuple[int, int, float]]:
        """(layer, head, mean over the batch) of the heads of largest size."""
        mean = self.heads.mean(0)
        order = mean.abs().flatten().argsort(descending=True)[:count].tolist()
        return [(n // mean.shape[1], n % mean.shape[1], float(mean.flatten()[n])) for n in order]


def logit_attribution(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    tokens: int | Sequence[int] | Tensor,
    minus: int | Sequence[int] | Tensor | None = None,
    *,
    position: int | Sequence[int] = -1,
    head: nn.Module | None = None,
) -> LogitAttribution:
    """Direct logit attribution from one run of the model.

        logit_attribution(model, {"input_ids": ids}, tokens=mary, minus=john).strongest(5)

    `tokens` are vocabulary indices, one for each entry of the batch or one for all; with `minus` the difference of two
    logits is attributed. `position` is where in the text the logit stands. `head` names the output layer of a model
    that has no `get_output_embeddings()`. See `residual_stream` for the models that are taken.
    """
    stream = record_stream(model, inputs, head=head)
    count, length = stream.last.shape[:2]
    positions = [position] * count if isinstance(position, int) else list(position)
    if len(positions) != count or not all(-length <= x < length for x in positions):
        raise ValueError(f"position is one of {length} tokens, for all or for each of {count} texts; got {position}")
    rows = [x % length for x in positions]
    at = torch.arange(count, device=stream.last.device), torch.tensor(rows, device=stream.last.device)
    chosen = _indices(tokens, count, stream)
    others = None if minus is None else _indices(minus, count, stream)
    u, constant = _unembedding(stream, chosen, others)
    u, offset = _through_norm(stream.norm, stream.last[at], stream.normed[at], u)
    logits = stream.logits[at].double()
    logit = logits.gather(1, chosen[:, None]).squeeze(1)
    if others is not None:
        logit = logit - logits.gather(1, others[:, None]).squeeze(1)
    heads, biases, mlps, directions = [], [], [], []
    for layer in stream.layers:
        g, bias = _transposed(layer.projection, layer.heads.shape[-1], u)
        g, outputs = (x.unflatten(-1, (layer.call.heads, -1)).double() for x in (g, layer.heads[at]))
        directions.append(g)
        heads.append((g * outputs).sum(-1))
        biases.append(bias)
        mlps.append((u * layer.rest[at].double()).sum(-1))
    embedding = (u * stream.layers[0].before[at].double()).sum(-1)
    return LogitAttribution(
        logit,
        constant + offset,
        embedding,
        torch.stack(heads, dim=1),
        torch.stack(biases, dim=1),
        torch.stack(mlps, dim=1),
        directions,
        stream,
        rows,
    )


def _indices(tokens: int | Sequence[int] | Tensor, count: int, stream: ResidualStream) -> Tensor:
    indices = torch.as_tensor(tokens, device=stream.logits.device).flatten()
    size = stream.logits.shape[-1]
    if len(indices) not in (1, count) or not bool(((indices >= 0) & (indices < size)).all()):
        raise ValueError(
            f"tokens are indices below {size}, the size of the vocabulary: one, or one for each of {count} texts; got "
            f"{indices.tolist()}"
        )
    return indices.expand(count)


def _unembedding(stream: ResidualStream, chosen: Tensor, others: Tensor | None) -> tuple[Tensor, Tensor]:
    """W_U[t] of each entry, less that of the other token, and the bias of the output layer."""
    with torch.enable_grad():
        z = torch.zeros_like(stream.normed[:, 0], requires_grad=True)
        logits = stream.head(z)
        logit = logits.gather(1, chosen[:, None]).squeeze(1)
        if others is not None:
            logit = logit - logits.gather(1, others[:, None]).squeeze(1)
        (u,) = torch.autograd.grad(logit.sum(), z)
    return u.double(), logit.detach().double()


@torch.no_grad()
def _through_norm(norm: nn.Module, x: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The direction before the norm, at the scale it had, and what its bias adds.

    A LayerNorm is y = γ (x − mean) s + β, a norm by root mean squares y = γ x s. The scale s is that of the real
    output, by least squares; if no scale gives that output, the norm is of another kind.
    """
    x, y = x.double(), y.double()
    beta = torch.zeros_like(x[0])
    if isinstance(norm, nn.LayerNorm):
        gain = torch.ones_like(beta) if norm.weight is None else norm.weight.double()
        beta = beta if norm.bias is None else norm.bias.double()
        centred = x - x.mean(-1, keepdim=True)
    else:
        parameter = next(norm.parameters(), y)
        gain = norm(torch.full_like(beta, 100, dtype=parameter.dtype)[None])[0].double()  # of equal numbers: γ
        centred = x
    before = gain * centred
    scale = (before * (y - beta)).sum(-1, keepdim=True) / before.square().sum(-1, keepdim=True)
    error = float(((before * scale + beta - y).norm(dim=-1) / y.norm(dim=-1)).max())
    if not error < 0.02:
        raise ValueError(
            f"the final norm, {type(norm).__name__}, is neither a LayerNorm nor a norm by root mean squares: "
            f"no scale gives its output (relative error {error:.2g}), so a logit is no sum of parts"
        )
    direction = gain * u
    if isinstance(norm, nn.LayerNorm):
        direction = direction - direction.mean(-1, keepdim=True)
    return direction * scale, u @ beta


def _transposed(projection: nn.Module, width: int, u: Tensor) -> tuple[Tensor, Tensor]:
    """W_Oᵀ u, from the module itself, whatever holds its weights, and u · bias."""
    dtype = next(projection.parameters()).dtype
    with torch.enable_grad():
        z = torch.zeros(len(u), width, dtype=dtype, device=u.device, requires_grad=True)
        y = projection(z)
        (g,) = torch.autograd.grad((y * u.to(dtype)).sum(), z)
    return g, (y.detach().double() * u).sum(-1)
