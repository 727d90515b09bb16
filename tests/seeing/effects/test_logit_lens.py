"""The logit lens ends in the logits of the model."""

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


def test_next_tokens() -> None:
    probabilities, tokens = next_tokens(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    assert tokens.tolist() == [[1, 2]]
    torch.testing.assert_close(probabilities, torch.tensor([[0.0, 2.0, 1.0]]).softmax(-1)[:, [1, 2]])
