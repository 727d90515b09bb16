"""The formula: energies, normalizers, masks, `attend`, and `Weights`. Imports PyTorch and nothing of ours."""

from .attend import attend, explain
from .dictionary_lookup import lookup
from .energies import Cosine, Dot, Energy, Exact, Gaussian, InverseDistance, ScaledDot
from .learned_energies import Additive, Concat, General, LearnedEnergy
from .masks import Mask, causal, dense, documents, padding, prefix, window
from .modifiers import Alibi, Bias, Modified, Modifier, SoftCap
from .normalizers.entmax import Entmax, Sparsemax
from .normalizers.hard import Hard
from .normalizers.normalizer import Normalizer, Proportional, Softmax
from .select_backend import Plan
from .weight_statistics import Stats, Top
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
