"""The formula: energies, normalizers, masks, `attend`, and `Weights`. Imports PyTorch and nothing of ours."""

from .attend import attend, explain
from .choose import Plan
from .energies import Cosine, Dot, Energy, Exact, Gaussian, InverseDistance, ScaledDot
from .hard import Hard
from .learned import Additive, Concat, General, LearnedEnergy
from .lookup import lookup
from .masks import Mask, causal, dense, documents, padding, prefix, window
from .modifiers import Alibi, Bias, Modified, Modifier, SoftCap
from .normalizers import Normalizer, Proportional, Softmax
from .sparse import Entmax, Sparsemax
from .statistics import Stats, Top
from .weights import Weights

__all__ = [
    "Additive",
    "Alibi",
    "Bias",
    "Concat",
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
    "Modified",
    "Modifier",
    "Normalizer",
    "Plan",
    "Proportional",
    "ScaledDot",
    "SoftCap",
    "Softmax",
    "Sparsemax",
    "Stats",
    "Top",
    "Weights",
    "attend",
    "causal",
    "dense",
    "documents",
    "explain",
    "lookup",
    "padding",
    "prefix",
    "window",
]
