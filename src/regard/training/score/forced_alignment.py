"""The alignment of given pairs: attention weights while the reference is decoded, links, and their error rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...noun_count import count_of
from ...seeing.alignment.word_alignment import alignment_error_rate, best_links
from .gold_links import gold_links, text_words
from .translation_evaluation import alignments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...data import Pair, TokenizerPair
    from ...models import EncoderDecoder
    from ...seeing.alignment.word_alignment import Links


@dataclass(frozen=True)
class ForcedAlignment:
    """The words of a pair and the weights between them; `sure` and `possible` are gold links, None if not given."""

    source: list[str]
    target: list[str]
    weights: Float[Tensor, "target source"]
    unknown: list[str]
    """Words that the model's vocabularies do not have."""
    sure: Links | None
    possible: Links

    @property
    def links(self) -> Links:
        """Each target word with the source word of its largest weight."""
        return best_links(self.weights)


def force_align(
    model: EncoderDecoder, tokenizers: TokenizerPair, pairs: list[Pair], layer: int | None = None
) -> list[ForcedAlignment]:
    """The alignment of each pair. `layer` counts attention layers from 0; None takes their mean."""
    for pair in pairs:
        if not pair.source.strip() or not pair.target.strip():
            raise ValueError(f"{pair.where or 'the pair'} has an empty side; an alignment needs a source and a target")
    gold = [gold_links(pair, tokenizers) for pair in pairs]
    made = []
    for pair, (sure, possible), weights in zip(pairs, gold, alignments(model, tokenizers, pairs), strict=False):
        if layer is not None and layer >= len(weights):
            raise ValueError(
                f"layer is {layer}, and this model has {count_of(len(weights), 'layer')} of attention, from 0"
            )
        source, unknown_source = text_words(tokenizers.source, pair.source)
        target, unknown_target = text_words(tokenizers.target, pair.target)
        mean = weights.mean(0) if layer is None else weights[layer]
        made.append(ForcedAlignment(source, target, mean, unknown_source + unknown_target, sure, possible))
    if not made:
        raise ValueError("this model has no attention, so it aligns nothing; give one that attends to the source")
    return made


def error_rate(made: list[ForcedAlignment]) -> float | None:
    """The alignment error rate over the pairs with gold links; None where there are none."""
    gold = [alignment for alignment in made if alignment.sure is not None]
    if not gold:
        return None
    links = [alignment.links for alignment in gold]
    return alignment_error_rate(links, [x.sure or set() for x in gold], [x.possible for x in gold])
