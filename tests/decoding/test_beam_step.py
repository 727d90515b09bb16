"""A step of a search: on a CPU logits are computed for a part of the sentences after the other."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest
import torch

from regard.decoding import beam_step, search
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

if TYPE_CHECKING:
    from regard.decoding.beam_state import Beam


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["Bahdanau, copy", "Transformer"])
def test_parts_of_a_batch_change_nothing(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["bidirectional GRU"], DECODERS[decoder])
    model, data = EncoderDecoder(config).double().eval(), batch(7)
    for parameter in model.parameters():
        parameter.mul_(3)  # sharp enough that beams differ
    annotations = model.encode(data.source, data.source_lengths)
    prefixes = [[5] * (n % 3) for n in range(7)]
    whole = [search(model, annotations, beams=3, best=2, prefixes=x) for x in (None, prefixes)]
    sizes: list[int] = []
    choices = beam_step.choices

    def counted(beam: Beam, *arguments: object, **options: bool) -> object:
        sizes.append(len(beam.tokens))
        return choices(beam, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(beam_step, "choices", counted)
    monkeypatch.setattr(beam_step, "LOGITS", 2 * 3 * VOCABULARY)
    parts = [search(model, annotations, beams=3, best=2, prefixes=x) for x in (None, prefixes)]
    assert max(sizes) == 2
    for several, others in zip(chain(*parts), chain(*whole), strict=True):
        assert [h.tokens for h in several] == [h.tokens for h in others]
        assert [h.score for h in several] == pytest.approx([h.score for h in others], rel=1e-6)
