"""Contributions: what each key added to each output along a direction."""

from .contribution_matrix import Contributions
from .contribution_statistics import ContributionStats

__all__ = ["ContributionStats", "Contributions"]
