"""Directions in the residual stream: through a norm at its real scale, through a projection; parts along one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..result_table import ResultTable

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float, Int

    from ...attention import Contributions
    from .residual_stream import ResidualStream


@dataclass(slots=True, eq=False)
class StreamAttribution:
    """A number that is linear in the residual stream at one position, as a sum over what was added to the stream."""

    constant: Float[Tensor, " b"]
    """What does not depend on the stream: biases after it."""
    embedding: Float[Tensor, " b"]
    heads: Float[Tensor, "b layers heads"]
    biases: Float[Tensor, "b layers"]
    """Biases of the output projections of attention."""
    mlps: Float[Tensor, "b layers"]
    directions: list[Float[Tensor, "b heads d"]]
    """g of each layer."""
    stream: ResidualStream
    rows: list[int]
    """The position in each entry."""

    @property
    def total(self) -> Float[Tensor, " b"]:
        """The sum of all parts."""
        return self.constant + self.embedding + sum(x.flatten(1).sum(1) for x in (self.heads, self.biases, self.mlps))

    @property
    def size(self) -> Float[Tensor, " b"]:
        """The sum of the sizes of all parts, which rounding errors of the sum are relative to."""
        parts = (self.heads, self.biases, self.mlps)
        return self.constant.abs() + self.embedding.abs() + sum(x.abs().flatten(1).sum(1) for x in parts)

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

    def table(self) -> ResultTable:
        """One row per part of each entry: what it is, its layer and head where it has one, and what it adds."""
        rows: list[tuple[int, str, int | None, int | None, float]] = []
        for entry in range(len(self.heads)):
            rows.append((entry, "constant", None, None, float(self.constant[entry])))
            rows.append((entry, "embedding", None, None, float(self.embedding[entry])))
            for layer, (heads, bias, mlp) in enumerate(
                zip(self.heads[entry].tolist(), self.biases[entry].tolist(), self.mlps[entry].tolist(), strict=True)
            ):
                rows += [(entry, "head", layer, head, value) for head, value in enumerate(heads)]
                rows += [(entry, "bias", layer, None, bias), (entry, "mlp", layer, None, mlp)]
        names = ("entry", "part", "layer", "head", "value")
        return ResultTable({name: [row[at] for row in rows] for at, name in enumerate(names)})

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def save(self, path: str | Path) -> None:
        """Write the table to .csv or .parquet."""
        self.table().save(path)


def stream_parts(
    stream: ResidualStream,
    depth: int,
    at: tuple[Int[Tensor, " b"], Int[Tensor, " b"]],
    u: Float[Tensor, "b d"],
    constant: Float[Tensor, " b"],
) -> StreamAttribution:
    """The parts along u of the stream after `depth` layers, at the positions `at` (entries, rows)."""
    count = len(u)
    heads, biases, mlps, directions = [], [], [], []
    for layer in stream.layers[:depth]:
        g, bias = through_projection(layer.projection, layer.heads.shape[-1], u)
        g, outputs = (x.unflatten(-1, (layer.call.heads, -1)).double() for x in (g, layer.heads[at]))
        directions.append(g)
        heads.append((g * outputs).sum(-1))
        biases.append(bias)
        mlps.append((u * layer.rest[at].double()).sum(-1))
    embedding = (u * stream.layers[0].before[at].double()).sum(-1)
    none = u.new_zeros(count, 0)
    return StreamAttribution(
        constant,
        embedding,
        torch.stack(heads, dim=1) if heads else u.new_zeros(count, 0, stream.layers[0].call.heads),
        torch.stack(biases, dim=1) if biases else none,
        torch.stack(mlps, dim=1) if mlps else none,
        directions,
        stream,
        at[1].tolist(),
    )


@torch.no_grad()
def through_norm(norm: nn.Module, x: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
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
            f"the norm {type(norm).__name__} is neither a LayerNorm nor a norm by root mean squares: no scale gives "
            f"its output (relative error {error:.2g}), so what follows it is no sum of parts of the stream"
        )
    direction = gain * u
    if isinstance(norm, nn.LayerNorm):
        direction = direction - direction.mean(-1, keepdim=True)
    return direction * scale, u @ beta


def through_projection(projection: nn.Module, width: int, u: Tensor) -> tuple[Tensor, Tensor]:
    """W_Oᵀ u, from the module itself, whatever holds its weights, and u · bias."""
    dtype = next(projection.parameters()).dtype
    with torch.enable_grad():
        z = torch.zeros(len(u), width, dtype=dtype, device=u.device, requires_grad=True)
        y = projection(z)
        (g,) = torch.autograd.grad((y * u.to(dtype)).sum(), z)
    return g, (y.detach().double() * u).sum(-1)
