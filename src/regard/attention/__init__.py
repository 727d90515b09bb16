"""The formula: energies, normalizers, masks, `attend`, `Weights`, `Contributions`. Imports PyTorch, nothing of ours."""

from .attend import attend, explain
from .contributions import Contributions, ContributionStats
from .dictionary_lookup import lookup
from .energies.energies import Cosine, Dot, Energy, Exact, Gaussian, InverseDistance, ScaledDot
from .energies.learned_energies import Additive, Concat, General, LearnedEnergy
from .energies.modifiers import Bias, Modified, Modifier, SoftCap
from .masks.causal_mask import causal
from .masks.dense_mask import dense
from .masks.document_mask import documents
from .masks.mask import Mask, mask_mod
from .masks.padding_mask import padding, prefix
from .masks.window_mask import window
from .normalizers.entmax import Entmax, Sparsemax
from .normalizers.hard import Hard
from .normalizers.normalizer import Normalizer
from .normalizers.proportional import Proportional
from .normalizers.softmax import Softmax
from .normalizers.unnormalized import Unnormalized
from .packed_sequences import attend_packed
from .positions.alibi import Alibi
from .positions.relative_bias import RelativeBias
from .positions.rotary import Rotary
from .select_backend import Plan
from .weights import Weights
from .weights.weight_statistics import Stats, Top

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
