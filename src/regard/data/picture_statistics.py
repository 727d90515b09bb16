"""Statistics of the pictures a model was trained on, and how far another picture is from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float64, UInt8

COARSE = 16  # a picture is averaged to so many cells a side, so that fine noise does not count
MARGIN = 1.25
"""A picture is unlike the training pictures if it is farther from their mean than this times the farthest of them."""
TOLERANCE = 12
"""Levels of 255 by which neighbouring pixels of a plain area may differ. Fine grain is lost where a picture is made
smaller, so that a picture with it must not count as less plain."""
LEAST = 0.015  # standard deviation that is added to every feature, so that one that hardly varies does not decide alone


def picture_features(
    pixels: UInt8[np.ndarray, "size size 3"], tolerance: float = TOLERANCE
) -> Float64[np.ndarray, "features"]:
    """What a picture looks like in ten numbers: plain areas, brightness, colourfulness and edges.

    `tolerance`: the difference up to which neighbours count as equal; of averaged cells a third of it.
    """
    plain = (np.abs(np.diff(pixels.astype(int).sum(-1), axis=0)) <= 3 * tolerance).mean()
    cells = np.stack([_means(pixels[..., channel] / 255) for channel in range(3)], -1)  # [COARSE, COARSE, 3]
    grey, colour = cells.mean(-1), cells.max(-1) - cells.min(-1)
    edges = np.abs(np.diff(grey, axis=0))
    sizes = [(edges <= tolerance / 3 / 255).mean(), np.median(edges), edges.mean(), np.quantile(edges, 0.9)]
    shares = [plain, grey.mean(), grey.std(), colour.mean(), colour.std(), (colour > 0.25).mean()]
    return np.array([*shares, *np.log(np.array(sizes) + 1e-3)])


def _means(channel: Float64[np.ndarray, "size size"]) -> Float64[np.ndarray, "coarse coarse"]:
    """The mean of each of COARSE × COARSE cells; a picture with fewer pixels has a cell for each."""
    cells = min(COARSE, len(channel))
    starts = np.arange(cells) * len(channel) // cells
    sums = np.add.reduceat(np.add.reduceat(channel, starts, 0), starts, 1)
    counts = np.diff([*starts, len(channel)])
    return np.asarray(sums / np.outer(counts, counts))


@dataclass(frozen=True)
class PictureStatistics:
    """Mean and covariance of the features of training pictures, and the distance of the farthest of them.

    `tolerance` is that of their features; files of earlier versions name none, which is 0.
    """

    mean: list[float]
    covariance: list[list[float]]
    farthest: float
    tolerance: float = 0.0

    @classmethod
    def of(
        cls, pictures: Iterable[UInt8[np.ndarray, "size size 3"]], tolerance: float = TOLERANCE
    ) -> PictureStatistics:
        features = np.stack([picture_features(pixels, tolerance) for pixels in pictures])
        mean = features.mean(0)
        covariance = np.cov(features.T, bias=True) + LEAST**2 * np.eye(len(mean))
        statistics = cls(mean.round(6).tolist(), covariance.round(9).tolist(), 0.0, tolerance)
        farthest = max(statistics._distance(row) for row in features)
        return replace(statistics, farthest=round(farthest, 6))

    def unlike(self, pixels: UInt8[np.ndarray, "size size 3"]) -> bool:
        return self._distance(picture_features(pixels, self.tolerance)) > MARGIN * self.farthest

    def _distance(self, features: Float64[np.ndarray, "features"]) -> float:
        """Mahalanobis 1936: √((x − μ)ᵀ Σ⁻¹ (x − μ))."""
        away = features - np.array(self.mean)
        return float(np.sqrt(away @ np.linalg.solve(np.array(self.covariance), away)))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> PictureStatistics:
        try:
            statistics = cls(**values)
            sizes = np.array(statistics.mean, float).shape, np.array(statistics.covariance, float).shape
            valid = sizes == ((10,), (10, 10)) and statistics.farthest >= 0 and statistics.tolerance >= 0
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise ValueError("its statistics of training pictures are damaged: expected mean, covariance and farthest")
        return statistics
