"""Small Hugging Face language models with random weights, built from a configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CLEAN, CORRUPTED = torch.randint(40, (2, 3, 7), generator=torch.Generator().manual_seed(7))
"""Two batches of three texts of seven tokens."""


def small_model(kind: str, dtype: torch.dtype = torch.float64, layers: int = 3) -> Any:
    """A Llama (grouped heads, no biases), a GPT-2 or a GPT-NeoX (parallel MLP) of 4 heads, with biases that matter."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    size = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 4}
    own = {"llama": {"num_key_value_heads": 2}, "gpt2": {}, "gpt_neox": {}, "gemma2": {"head_dim": 4}}[kind]
    names = {"llama": "Llama", "gpt2": "GPT2", "gpt_neox": "GPTNeoX", "gemma2": "Gemma2"}
    config = getattr(transformers, f"{names[kind]}Config")(**size, intermediate_size=24, **own)
    head = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, f"{names[kind]}{head}")(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no bias of 0, no gain of 1, no weight too small to matter
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def logit_metric(output: Any) -> torch.Tensor:
    """One number for each text: a weighted sum of the logits of the last token."""
    logits = output.logits[:, -1]
    return (logits * torch.linspace(-1, 1, 40, dtype=logits.dtype)).sum(-1)
