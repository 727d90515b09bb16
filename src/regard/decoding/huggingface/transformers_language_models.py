"""Language models as classes of `transformers`: OPT, or GPT-NeoX where positions are rotary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ...data.batch import BEGIN, END, PAD
from .transformers_translators import POSITIONS, load_parameters, named_parameters, stack_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from ...layers.multihead_attention import MultiHead
    from ...models import EncoderDecoder
    from ...models.encoders.sequences import TransformerConfig

OFFSET = 2
"""OPT's first position is row 2 of its table."""


def build_language_model(model: EncoderDecoder, part: TransformerConfig) -> Any:
    """The model of `transformers` with our weights.

    Embeddings there are not multiplied with √width, so that the table holds the products, and is not tied.
    """
    if part.norm in ("pre", "post") and part.positions in ("learned", "sinusoidal"):
        return _opt(model, part)
    if (part.norm, part.positions) == ("pre", "rotary"):
        return _gpt_neox(model, part)
    raise ValueError(
        f"transformers has no class for this language model: norm = {part.norm!r}, positions = {part.positions!r}. "
        "There are classes for learned and sinusoidal positions with norm = 'pre' or 'post', and for rotary positions "
        "with norm = 'pre'"
    )


def _opt(model: EncoderDecoder, part: TransformerConfig) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    # Sinusoids have no last position: a table of them has room for texts longer than those of training.
    longest = model.config.longest if part.positions == "learned" else max(POSITIONS, model.config.longest)
    config = OPTConfig(
        **{**_sizes(model, part), "max_position_embeddings": longest},
        ffn_dim=part.hidden,
        do_layer_norm_before=part.norm == "pre",
        activation_function="relu",
        dropout=part.dropout,
        word_embed_proj_dim=part.width,
    )
    exported = OPTForCausalLM(config).eval()
    decoder: Any = model.decoder
    # The norm of a layer after its feed-forward part and that after all layers have one name each, as OPT has them.
    parameters = {
        name.replace("layer_norm.", "final_layer_norm.", 1) if name.startswith("layer_norm.") else name: value
        for name, value in stack_parameters(decoder, torch.arange(part.width)).items()
    }
    parameters["embed_tokens.weight"] = _table(decoder)
    positions = decoder.positions(torch.zeros(longest, part.width)).detach()
    parameters["embed_positions.weight"] = torch.cat([positions.new_zeros(OFFSET, part.width), positions])
    load_parameters(
        exported,
        {
            **{f"model.decoder.{name}": value for name, value in parameters.items()},
            "lm_head.weight": decoder.output.weight.detach(),
        },
    )
    return exported


def _gpt_neox(model: EncoderDecoder, part: TransformerConfig) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        **_sizes(model, part),
        intermediate_size=part.hidden,
        hidden_act="relu",
        hidden_dropout=part.dropout,
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        layer_norm_eps=1e-5,
    )
    config.rotary_pct, config.rotary_emb_base = 1.0, 10000  # what version 4 reads instead of `rope_parameters`
    exported = GPTNeoXForCausalLM(config).eval()
    decoder: Any = model.decoder
    output = exported.get_output_embeddings()  # lm_head, or embed_out in other versions
    name = next(name for name, part in exported.named_modules() if part is output)
    parameters = {"gpt_neox.embed_in.weight": _table(decoder), f"{name}.weight": decoder.output.weight.detach()}
    parameters |= named_parameters("gpt_neox.final_layer_norm", decoder.norm)
    for number, layer in enumerate(decoder.layers):
        place = f"gpt_neox.layers.{number}"
        parameters |= named_parameters(f"{place}.input_layernorm", layer.around_attention.norm)
        parameters |= named_parameters(f"{place}.post_attention_layernorm", layer.around_feed_forward.norm)
        parameters |= _queries_keys_values(f"{place}.attention.query_key_value", layer.attention)
        parameters |= named_parameters(f"{place}.attention.dense", layer.attention.output)
        parameters |= named_parameters(f"{place}.mlp.dense_h_to_4h", layer.feed_forward[0])
        parameters |= named_parameters(f"{place}.mlp.dense_4h_to_h", layer.feed_forward[3])
    load_parameters(exported, parameters)
    return exported


def _sizes(model: EncoderDecoder, part: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": model.config.target_vocabulary,
        "hidden_size": part.width,
        "num_hidden_layers": part.layers,
        "num_attention_heads": part.heads,
        "max_position_embeddings": model.config.longest,
        "attention_dropout": part.attention_dropout,
        "pad_token_id": PAD,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "tie_word_embeddings": False,
    }


def _table(decoder: Any) -> Tensor:
    weight: Tensor = decoder.embedding.weight.detach()
    return weight * math.sqrt(weight.shape[1])


def _queries_keys_values(name: str, attention: MultiHead) -> dict[str, Tensor]:
    """One matrix whose rows are, head by head, those of queries, keys and values."""

    def joined(q: Tensor, k_v: Tensor) -> Tensor:
        heads = [x.unflatten(0, (attention.heads, -1)) for x in (q, *k_v.chunk(2))]  # each [heads, d, …]
        return torch.cat(heads, dim=1).flatten(0, 1)

    q, k_v = attention.query, attention.key_value
    return {
        f"{name}.weight": joined(q.weight.detach(), k_v.weight.detach()),
        f"{name}.bias": joined(q.bias.detach(), k_v.bias.detach()),
    }
