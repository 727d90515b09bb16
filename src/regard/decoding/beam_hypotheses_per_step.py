"""The history of a beam search: the hypotheses after every step, for display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .beam_search import decode_steps, limits
from .beam_state import NEVER, Beam, Hypothesis, Ranking

if TYPE_CHECKING:
    from ..models.annotations import Annotations
    from ..models.decoders.decoder import Decoder


@torch.no_grad()
def beam_history(
    decoder: Decoder[Any],
    annotations: Annotations,
    *,
    beams: int,
    length_penalty: float = 1.0,
    longest: int | None = None,
) -> list[list[Hypothesis]]:
    """For one sentence the hypotheses after every step of `search`, likeliest first; a finished one ends in </s>."""
    if len(annotations.lengths) != 1:
        raise ValueError(f"a beam history is of one sentence, got {len(annotations.lengths)}")
    most, ranking = limits(annotations.lengths, longest, decoder.most_steps), Ranking(length_penalty)
    beam = Beam.start(most, beams, 1, None, apart=False)
    count = int(most) + 1  # </s> is a step too
    state = decoder.start(annotations, beams=beams, steps=count)
    written: list[list[int]] = [[] for _ in range(beams)]
    steps: list[list[Hypothesis]] = []
    for at, _, done in decode_steps(decoder, state, beam, count, ranking, None, None):
        parents, tokens = done.parents[0].tolist(), done.tokens[0].tolist()
        written = [[*written[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        scores = ranking(done.logprobs, at + 1)[0].tolist()
        hypotheses = zip(written, scores, done.logprobs[0].tolist(), strict=True)
        steps.append([Hypothesis(list(ids), score, logprob) for ids, score, logprob in hypotheses if logprob > NEVER])
        if bool(done.beam.done(ranking, prune=True)):  # on a GPU, `decode_steps` checks this only every few steps
            break
    return steps
