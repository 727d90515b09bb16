"""Products that are computed before a search change none of its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from regard.attention.listeners import listeners
from regard.layers import RecurrentCell
from regard.models import EncoderDecoder, EncoderDecoderConfig, RecurrentDecoderConfig
from regard.models.decoders import recurrent_products
from regard.models.decoders.recurrent_decoder import RecurrentDecoder
from regard.models.decoders.recurrent_products import RecurrentProducts
from tests.support.attention_cases import within_budget
from tests.support.small_models import ENCODERS, VOCABULARY, WIDTH, batch

BEAMS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "Bahdanau": {},
    "Bahdanau, dot, maxout": {"energy": "dot", "readout": "maxout"},
    "Bahdanau, LSTM, 2 layers": {"cell": "lstm", "layers": 2},
    "conditional": {"attention": "conditional"},
    "conditional, general, 2 layers": {"attention": "conditional", "energy": "general", "layers": 2},
}


def _steps(decoder: RecurrentDecoder, annotations: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Features and weights of a few steps, with a change of beams and of sentences between them."""
    state, results = decoder.start(annotations, beams=BEAMS, steps=4), []
    for number, row in enumerate(tokens):
        features, state, weights = decoder.step(row[: len(state.last.hidden[0][0])], state, weights=True)
        assert weights is not None
        results += [features, weights]
        if number == 0:
            state = state.reorder(torch.tensor([1, 1, 0, 5, 4, 3, 8, 8, 8]))
        if number == 1:
            state = state.keep(torch.tensor([0, 2]))
    return results


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_is_the_same_with_and_without_products(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_products, "ROWS", rows)  # equal rows are multiplied once from this number of rows on
    torch.manual_seed(0)
    settings = {"embedding": 8, "width": WIDTH, "dropout": 0.0, **SETTINGS[name]}
    config = EncoderDecoderConfig(
        VOCABULARY, VOCABULARY, ENCODERS["bidirectional GRU"], RecurrentDecoderConfig(**settings)
    )
    model, data = EncoderDecoder(config).double().eval(), batch(3)
    decoder, annotations = model.decoder, model.encode(data.source, data.source_lengths)
    assert isinstance(decoder, RecurrentDecoder)
    tokens = torch.randint(4, VOCABULARY, (4, 3 * BEAMS))
    expected = _steps(decoder, annotations, tokens)
    with torch.no_grad():
        assert decoder.start(annotations, beams=BEAMS).loop.products is not None
        results = _steps(decoder, annotations, tokens)
    assert decoder.start(annotations, beams=BEAMS).loop.products is None
    for result, wanted in zip(results, expected, strict=True):
        assert torch.allclose(result, wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_listener_sees_the_values_and_not_their_products() -> None:
    decoder = RecurrentDecoderConfig(embedding=8, width=WIDTH)
    model = EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["bidirectional GRU"], decoder)).eval()
    data, widths = batch(3), []
    annotations = model.encode(data.source, data.source_lengths)
    state = model.decoder.start(annotations, beams=BEAMS)

    def listener(request: Any, output: torch.Tensor, *_: Any) -> torch.Tensor:
        widths.append(request.v.shape[-1])
        return output

    listeners.append(listener)
    try:
        model.decoder.step(torch.full((3 * BEAMS,), 5), state)
    finally:
        listeners.remove(listener)
    assert widths == [annotations.vectors.shape[-1]]


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "places"), [(torch.bfloat16, 255), (torch.float16, 2047), (torch.float32, 49)])
def test_a_bias_is_added_outside_the_weighted_sum(dtype: torch.dtype, places: int) -> None:
    """Rounded weights do not sum to 1, so Σ_j p_j (V v_j + b) is not V c + b. 1/255 in bfloat16 is 1/254.02."""
    torch.manual_seed(0)
    first, attending = RecurrentCell("gru", 8, 0, 16).to(dtype), RecurrentCell("gru", 0, 12, 16).to(dtype)
    join, values = nn.Linear(16 + 8 + 12, 10).to(dtype), torch.randn(2, places, 12).to(dtype)
    attending.bias.mul_(40)
    p = torch.full((2, 5, places), 1 / places)
    products = RecurrentProducts.compute(first, attending, join, values).keep(torch.tensor([1]))
    gates = products.context(p[1:])[..., : attending.size]
    assert attending.late is not None
    context = p[1:].to(dtype) @ values[1:]
    plain = nn.functional.linear(context, attending.late, attending.bias)
    truth = p[1:].double() @ values[1:].double() @ attending.late.double().mT + attending.bias.double()
    within_budget(gates, plain, truth, dtype)
    nothing = RecurrentProducts.compute(first, attending, join, torch.zeros_like(values))
    assert torch.equal(nothing.context(p)[..., : attending.size], attending.bias.expand(2, 5, -1))
