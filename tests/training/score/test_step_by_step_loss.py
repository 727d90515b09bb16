"""Token by token, a masked language model has the loss of its whole windows; one without a mask has not."""

from __future__ import annotations

import pytest
import torch

from regard.models import EncoderDecoder, EncoderDecoderConfig, NoEncoderConfig, TransformerDecoderConfig
from regard.training.score.step_by_step_loss import step_by_step_nll


@pytest.mark.parametrize("masked", [True, False])
def test_it_is_the_loss_of_whole_windows_only_with_a_mask(masked: bool) -> None:
    torch.manual_seed(0)
    decoder = TransformerDecoderConfig(width=8, heads=2, hidden=16, layers=2, masked=masked)
    config = EncoderDecoderConfig(source_vocabulary=0, target_vocabulary=9, encoder=NoEncoderConfig(), decoder=decoder)
    model, windows = EncoderDecoder(config).eval().double(), torch.randint(4, 9, (3, 7))
    with torch.no_grad():
        nothing = model.encode(windows.new_ones(3, 1), windows.new_ones(3))
        logits = model.decoder.readout(model.decoder(windows[:, :-1], nothing).features)
    whole = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert (abs(step_by_step_nll(model, windows) - whole) < 1e-9) == masked
