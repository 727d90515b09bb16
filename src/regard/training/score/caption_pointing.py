"""The pointing game on scenes: how often a captioner attends to what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...data import END
from ...data.corpora import scenes
from ...seeing.alignment.pointing_game import pointing_hits
from ...seeing.alignment.word_level_weights import merge_pieces
from .translation_evaluation import forced_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair, TokenizerPair
    from ...models import EncoderDecoder


@torch.no_grad()
def pointing(model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> float | None:
    """The share, in percent, of the words with a place whose place gets the largest weight (`pointing_hits`).

    The true captions are the input. The maps of a Transformer are averaged. None for a model without attention.
    """
    hits = total = 0
    for batch in forced_batches(model, tokenizers, pairs, tokens=512):
        decoded = model(batch.source, batch.source_lengths, batch.target[:, :-1], weights=True)
        if decoded.weights is None:
            break
        maps = decoded.weights.float().mean(1).cpu()  # [batch, target, places]
        side = round(maps.shape[-1] ** 0.5)
        for row, looks, target in zip(batch.rows.tolist(), maps, batch.target.tolist(), strict=True):
            words = scenes.scene(pairs[row].source).words
            pieces = tokenizers.target.words([i for i in target if i > END])
            looks = merge_pieces(looks, pieces, range(looks.shape[-1]))  # from pieces to words
            batch_hits = pointing_hits(looks[: len(words)], (side, side), [word.boxes for word in words])
            hits, total = hits + batch_hits[0], total + batch_hits[1]
    return 100 * hits / total if total else None
