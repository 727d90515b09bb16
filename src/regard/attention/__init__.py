"""The formula: energies, normalizers, masks, `attend`, `Weights`, `Contributions`. Imports PyTorch, nothing of ours."""

from .attend import Plan, attend, attend_packed, explain, lookup
from .contributions import Contributions, ContributionStats
from .energies import (
    Additive,
    Concat,
    Cosine,
    Dot,
    Energy,
    Exact,
    Gaussian,
    General,
    InverseDistance,
    LearnedEnergy,
    ScaledDot,
)
from .masks import Mask, causal, dense, documents, mask_mod, padding, prefix, window
from .modifiers import Alibi, Bias, Modified, Modifier, RelativeBias, Rotary, SoftCap
from .normalizers import Entmax, Hard, Normalizer, Proportional, Softmax, Sparsemax, Unnormalized
from .statistics import Stats, Top
from .step import Memory, attend_step
from .weights import Weights

__all__ = [
    "Additive",
    "Alibi",
    "Bias",
    "Concat",
    "ContributionStats",
    "Contributions",
    "Cosine",
    "Dot",
    "Energy",
    "Entmax",
    "Exact",
    "Gaussian",
    "General",
    "Hard",
    "InverseDistance",
    "LearnedEnergy",
    "Mask",
    "Memory",
    "Modified",
    "Modifier",
    "Normalizer",
    "Plan",
    "Proportional",
    "RelativeBias",
    "Rotary",
    "ScaledDot",
    "SoftCap",
    "Softmax",
    "Sparsemax",
    "Stats",
    "Top",
    "Unnormalized",
    "Weights",
    "attend",
    "attend_packed",
    "attend_step",
    "causal",
    "dense",
    "documents",
    "explain",
    "lookup",
    "mask_mod",
    "padding",
    "prefix",
    "window",
]
