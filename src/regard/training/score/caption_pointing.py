"""How often a captioner looks at what it names, on scenes, where that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...data import END, Batches, EncodedCorpus
from ...data.corpora import scenes
from ...seeing.alignment import merge_pieces, pointing_hits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...data import Pair, TokenizerPair
    from ...models import EncoderDecoder


@torch.no_grad()
def pointing(model: EncoderDecoder, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> float | None:
    """The share, in percent, of the words with a place that are pointed at, by `seeing/pointing.py`.

    The captions are the true ones, word by word, and the model is in evaluation mode. A Transformer points with the
    mean of its maps. None where the model has no attention.
    """
    encoded = EncodedCorpus.build([replace(pair, row=row) for row, pair in enumerate(pairs)], tokenizers)
    device, hits, total = next(model.parameters()).device, 0, 0
    training = model.training
    model.eval()
    for batch in Batches(encoded, sentences=64):
        batch = batch.to(device)
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
    model.train(training)
    return 100 * hits / total if total else None
