"""Analysis: head patterns, induction and retrieval heads, rollout, ablation, effects, distances between heads."""

from ..capture.tokenized_text import TokenizedText
from ..effects.contribution_table import contribution_table
from ..effects.effect_sweep import effects
from ..effects.effect_table import Effects
from ..effects.energy_attribution import EnergyAttribution, energy_attribution
from ..effects.logit_attribution import LogitAttribution, logit_attribution
from ..effects.logit_lens import logit_lens, next_tokens
from ..effects.value_weighted_attention import value_weighted_attention
from .ablation import ablate, output_difference
from .attention_rollout import flow, rollout
from .distance_between_heads import classical_scaling, head_distances, head_matches
from .head_patterns import THRESHOLDS, Patterns
from .induction_heads import induction_scores, repeated_sequence
from .retrieval_heads import retrieval_scores

__all__ = [
    "THRESHOLDS",
    "Effects",
    "EnergyAttribution",
    "LogitAttribution",
    "Patterns",
    "TokenizedText",
    "ablate",
    "classical_scaling",
    "contribution_table",
    "effects",
    "energy_attribution",
    "flow",
    "head_distances",
    "head_matches",
    "induction_scores",
    "logit_attribution",
    "logit_lens",
    "next_tokens",
    "output_difference",
    "repeated_sequence",
    "retrieval_scores",
    "rollout",
    "value_weighted_attention",
]
