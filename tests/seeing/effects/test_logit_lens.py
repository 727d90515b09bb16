"""The logit lens ends in the logits of the model."""

import pytest
import torch

from regard.seeing.analysis import logit_lens, next_tokens
from tests.support.small_language_models import small_model


def test_the_lens_after_each_layer_is_the_output_layer_of_its_hidden_state() -> None:
    model, ids = small_model("gpt2"), torch.randint(40, (2, 6))
    lens = logit_lens(model, ids)
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
        hidden = output.hidden_states
        for n in range(3):
            expected = model.lm_head(model.transformer.ln_f(hidden[n][:, -1]))
            torch.testing.assert_close(lens[n], expected)
    torch.testing.assert_close(lens[-1], output.logits[:, -1])


def test_logits_that_the_model_scales_are_refused() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.CohereConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        logit_scale=0.0625, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, ids = transformers.CohereForCausalLM(config).eval(), torch.randint(40, (2, 6))
    with pytest.raises(ValueError, match="CohereForCausalLM changes the logits after its output layer"):
        logit_lens(model, ids)
    model.logit_scale = 1.0
    torch.testing.assert_close(logit_lens(model, ids)[-1], model(ids).logits[:, -1])


def test_next_tokens() -> None:
    probabilities, tokens = next_tokens(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    assert tokens.tolist() == [[1, 2]]
    torch.testing.assert_close(probabilities, torch.tensor([[0.0, 2.0, 1.0]]).softmax(-1)[:, [1, 2]])
