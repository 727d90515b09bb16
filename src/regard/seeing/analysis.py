"""Analysis: head patterns, induction and retrieval heads, rollout, ablation, effects, distances between heads."""

from .circuits import Circuits, circuits
from .effects import Effects, effects
from .interventions import Site, ablate, intervene
from .logit_attribution import (
    EnergyAttribution,
    LogitAttribution,
    contribution_table,
    energy_attribution,
    logit_attribution,
    logit_lens,
    next_tokens,
    value_weighted_attention,
)
from .patterns import THRESHOLDS, Patterns
from .rollout_and_distances import (
    classical_scaling,
    flow,
    head_distances,
    head_matches,
    induction_scores,
    repeated_sequence,
    repeated_sequence_scores,
    retrieval_scores,
    rollout,
)
from .text_models import TokenizedText

__all__ = [
    "THRESHOLDS",
    "Circuits",
    "Effects",
    "EnergyAttribution",
    "LogitAttribution",
    "Patterns",
    "Site",
    "TokenizedText",
    "ablate",
    "circuits",
    "classical_scaling",
    "contribution_table",
    "effects",
    "energy_attribution",
    "flow",
    "head_distances",
    "head_matches",
    "induction_scores",
    "intervene",
    "logit_attribution",
    "logit_lens",
    "next_tokens",
    "repeated_sequence",
    "repeated_sequence_scores",
    "retrieval_scores",
    "rollout",
    "value_weighted_attention",
]
