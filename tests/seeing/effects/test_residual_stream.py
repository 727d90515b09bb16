"""The residual stream as recorded: layers in order, each adding what it adds."""

import pytest
import torch

from regard.seeing.effects.residual_stream import record_stream
from tests.support.small_language_models import small_model


@pytest.mark.parametrize(("kind", "mlp"), [("llama", "mlp"), ("gpt2", "mlp"), ("gpt_neox", "mlp")])
def test_the_parts_of_each_layer(kind: str, mlp: str) -> None:
    stream = record_stream(small_model(kind), torch.randint(40, (2, 5)))
    assert len(stream.layers) == 3
    for layer, following in zip(stream.layers, [*(x.before for x in stream.layers[1:]), stream.last], strict=True):
        assert layer.mlp.endswith(mlp)
        torch.testing.assert_close(layer.before + layer.attention + layer.rest, following)
        torch.testing.assert_close(layer.projection(layer.heads), layer.attention)


def test_logits_at_some_positions_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="logits_to_keep"):
        record_stream(small_model("llama"), {"input_ids": torch.randint(40, (2, 5)), "logits_to_keep": 1})
