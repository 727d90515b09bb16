"""Effects: the results of a sweep, as tensors and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..result_table import ResultTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .row_replacement import Site


@dataclass(slots=True, eq=False)
class Effects:
    """The metric with each head, layer or token replaced, for each entry of the batch. It prints as a table."""

    of: str
    by: str
    sites: list[Site]
    base: Float[Tensor, " b"]
    """The metric without a change; of patching, on the corrupted inputs."""
    values: Float[Tensor, "sites b"]
    """The metric with one change; NaN where it was estimated only."""
    target: Float[Tensor, " b"] | None = None
    """Of patching, the metric on the inputs that parts come from."""
    estimates: Float[Tensor, "sites b"] | None = None
    """The estimate of `differences` from one backward pass."""
    measured: Bool[Tensor, " sites"] | None = None
    """Which sites were run; None: all. The metric of a run may be NaN itself."""

    @property
    def differences(self) -> Float[Tensor, "sites b"]:
        """The metric with one change less that without."""
        return self.values - self.base

    @property
    def recovered(self) -> Float[Tensor, " sites"]:
        """Of patching: the share of the distance from the corrupted to the clean metric that one part recovers."""
        if self.target is None:
            raise ValueError('recovered is of by="patch": the share of the distance between two runs')
        return self.differences.mean(1) / (self.target - self.base).mean()

    def mean(self) -> Float[Tensor, " sites"]:
        """The mean difference over the batch; the estimate where no run was made."""
        mean = self.differences.mean(1)
        if self.estimates is None or self.measured is None:
            return mean
        return torch.where(self.measured, mean, self.estimates.mean(1))

    def matrix(self) -> Float[Tensor, "layers heads"]:
        """`mean` of heads as a matrix; NaN for heads that a layer does not have."""
        if self.of != "heads":
            raise ValueError(f"a matrix is layers × heads; these are effects of {self.of}")
        where = [(site.layer or 0, site.head or 0) for site in self.sites]
        matrix = torch.full([max(x) + 1 for x in zip(*where, strict=True)], torch.nan, dtype=torch.float64)
        layers, heads = torch.tensor(where).T
        matrix[layers, heads] = self.mean()
        return matrix

    def strongest(self, count: int = 10) -> list[tuple[Site, float]]:
        """The sites of largest mean difference, by size."""
        mean = self.mean()
        order = mean.abs().argsort(descending=True)[:count].tolist()
        return [(self.sites[at], float(mean[at])) for at in order]

    def table(self) -> ResultTable:
        """One row per site."""
        columns: dict[str, Sequence[Any]] = {}
        for name in ("layer", "head", "token"):
            values = [getattr(site, name) for site in self.sites]
            if values and values[0] is not None:
                columns[name] = values
        if self.of != "tokens":
            columns["module"] = [site.module for site in self.sites]
        columns["metric"] = self.values.mean(1).tolist()
        columns["difference"] = self.differences.mean(1).tolist()
        if self.target is not None:
            columns["recovered"] = self.recovered.tolist()
        if self.estimates is not None:
            columns["estimate"] = self.estimates.mean(1).tolist()
        return ResultTable(columns)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def save(self, path: Any) -> None:
        """Write the table to .csv or .parquet."""
        self.table().save(path)

    def __repr__(self) -> str:
        base = f"metric {float(self.base.mean()):.4g} without a change, mean of {len(self.base)}"
        lines = [f"Effects of {len(self.sites)} {self.of} by {self.by}; {base}"]
        for site, value in self.strongest(10):
            name = f"layer {site.layer}" if site.head is None else f"{site.layer}.{site.head}"
            name = name if site.token is None else f"token {site.token}"
            lines.append(f"  {name:12} {value:+.4f}")
        return "\n".join(lines)
