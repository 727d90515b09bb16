"""Analysis: head patterns, induction and retrieval heads, circuits, rollout, interventions, effects, distances.

The most used of these are found as `regard.effects` and so on too.
"""

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
    record_stream,
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
from .text_models import TextModel, TokenizedText, load_text_model

__all__ = [
    "THRESHOLDS",
    "Circuits",
    "Effects",
    "EnergyAttribution",
    "LogitAttribution",
    "Patterns",
    "Site",
    "TextModel",
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
    "load_text_model",
    "logit_attribution",
    "logit_lens",
    "next_tokens",
    "record_stream",
    "repeated_sequence",
    "repeated_sequence_scores",
    "retrieval_scores",
    "rollout",
    "value_weighted_attention",
]
