"""Induction scores on a repeated sequence, against the diagonal of the matrix."""

from __future__ import annotations

import torch

from regard.seeing.analysis import induction_scores, repeated_sequence
from tests.support.attention_model import watched


def test_induction_on_a_repeated_sequence() -> None:
    ids = repeated_sequence(20, 12, avoid=[0, 1])
    assert torch.equal(ids[:12], ids[12:])
    assert int(ids.min()) >= 2
    seen = watched(ids, is_causal=True)
    expected = torch.stack([call.weights.dense()[0].diagonal(1 - 12, -2, -1)[:, 1:].mean(-1) for call in seen])
    scores = induction_scores(seen, 12)
    assert torch.allclose(scores, expected, atol=1e-6)
