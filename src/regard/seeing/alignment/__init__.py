"""Alignment: links between words and their error rate, weights between words, the pointing game, time warping."""

from .alignment_error import Links, alignment_error_rate, best_links, parse_links
from .dynamic_time_warping import align_frames, cheapest_path
from .pointing_game import Region, pointing_hits
from .symmetrization import symmetrize
from .word_level_weights import (
    DecodedWeights,
    caption_word_weights,
    group_pieces,
    merge_pieces,
    sum_by_word,
    translation_word_weights,
    word_weights,
)

__all__ = [
    "DecodedWeights",
    "Links",
    "Region",
    "align_frames",
    "alignment_error_rate",
    "best_links",
    "caption_word_weights",
    "cheapest_path",
    "group_pieces",
    "merge_pieces",
    "parse_links",
    "pointing_hits",
    "sum_by_word",
    "symmetrize",
    "translation_word_weights",
    "word_weights",
]
