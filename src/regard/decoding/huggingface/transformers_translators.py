"""Translators as classes of `transformers`: Marian, Pegasus and Blenderbot, whose parameters have the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...data.batch import BEGIN, END, PAD

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from ...layers.multihead_attention import MultiHead
    from ...models import EncoderDecoder
    from ...models.encoders.sequences import TransformerConfig

CLASSES = {
    ("post", "sinusoidal"): ("MarianConfig", "MarianMTModel"),
    ("pre", "sinusoidal"): ("PegasusConfig", "PegasusForConditionalGeneration"),
    ("pre", "learned"): ("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
}
"""By the place of the layer norms and the kind of positions."""
POSITIONS = 1024
"""Rows of a table of sinusoids, which these classes compute when they are loaded; more where a model has more."""

ABSENT_LOGIT = -100.0
"""Of ids that only the source has. −∞ would make the loss of smoothed labels infinite; this adds a constant to it."""


def build_translator(model: EncoderDecoder, encoder: TransformerConfig, decoder: TransformerConfig) -> Any:
    """The model of `transformers` with our weights."""
    import transformers

    kinds = [(part.norm, part.positions) for part in (encoder, decoder)]
    if kinds[0] not in CLASSES or kinds[0] != kinds[1]:
        known = "; ".join(f"norm = {norm!r}, positions = {positions!r}" for norm, positions in CLASSES)
        raise ValueError(
            "transformers has no class for this translator: encoder and decoder have (norm, positions) "
            f"{kinds[0]} and {kinds[1]}. Both must be one of: {known}"
        )
    settings_class, model_class = (getattr(transformers, name) for name in CLASSES[kinds[0]])
    values, shared = model.config, model.config.tied == "all"
    vocabulary = max(values.source_vocabulary, values.target_vocabulary)
    longest = values.longest if decoder.positions == "learned" else max(POSITIONS, values.longest)
    settings: dict[str, Any] = {
        f"{side}_{name}": value
        for side, part in (("encoder", encoder), ("decoder", decoder))
        for name, value in (("layers", part.layers), ("attention_heads", part.heads), ("ffn_dim", part.hidden))
    }
    if model_class is transformers.MarianMTModel:
        settings |= {"decoder_vocab_size": vocabulary, "share_encoder_decoder_embeddings": shared}
    config = settings_class(
        vocab_size=vocabulary,
        d_model=decoder.width,
        max_position_embeddings=longest,
        activation_function="relu",
        scale_embedding=True,
        dropout=decoder.dropout,
        attention_dropout=decoder.attention_dropout,
        activation_dropout=decoder.dropout,
        tie_word_embeddings=shared,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
        **settings,
    )
    exported = model_class(config).eval()
    load_parameters(exported, _parameters(model, decoder, vocabulary))
    return exported


def load_parameters(exported: Any, parameters: dict[str, Tensor]) -> None:
    """Set all parameters and buffers of a model of `transformers`, but those that it computes by itself."""
    with torch.no_grad():
        missing, unexpected = exported.load_state_dict(parameters, strict=False)
    computed = ("rotary", "embed_positions")
    missing = [name for name in missing if not any(part in name for part in computed)]
    if missing or unexpected:
        names = ", ".join(sorted([*missing, *unexpected])[:8])
        raise RuntimeError(f"{type(exported).__name__} of this version of transformers has other parameters: {names}")


def _parameters(model: EncoderDecoder, part: TransformerConfig, vocabulary: int) -> dict[str, Tensor]:
    sides: list[Any] = [model.encoder, model.decoder]
    order = _order(part)
    encoder, decoder = (stack_parameters(side, order) for side in sides)
    tables = [_rows(side.embedding.weight, vocabulary)[:, order] for side in sides]
    bias = torch.zeros(1, vocabulary)
    bias[:, model.config.target_vocabulary :] = ABSENT_LOGIT  # ids of the source alone
    found = {
        "model.encoder.embed_tokens.weight": tables[0],
        "model.decoder.embed_tokens.weight": tables[1],
        "lm_head.weight": _rows(model.decoder.output.weight, vocabulary)[:, order],
        "final_logits_bias": bias,
        **{f"model.encoder.{name}": value for name, value in encoder.items()},
        **{f"model.decoder.{name}": value for name, value in decoder.items()},
    }
    if part.norm == "pre" or model.config.tied == "all":  # Marian has it where it is shared
        found["model.shared.weight"] = tables[0]
    return found


def _order(part: TransformerConfig) -> Int[Tensor, " width"]:
    """The order of the width in which sinusoids are sin, sin, …, cos, cos, … as there; ours take turns."""
    places = torch.arange(part.width)
    return torch.cat([places[0::2], places[1::2]]) if part.positions == "sinusoidal" else places


def _rows(table: Float[Tensor, "rows width"], count: int) -> Float[Tensor, "count width"]:
    """The table with rows of zeros at its end."""
    return torch.cat([table.detach(), table.new_zeros(count - len(table), table.shape[1])])


def stack_parameters(side: Any, order: Int[Tensor, " width"]) -> dict[str, Tensor]:
    """The parameters of all layers of an encoder or decoder, and of what is around them."""
    found: dict[str, Tensor] = {}
    if (table := getattr(side.positions, "table", None)) is not None:
        found["embed_positions.weight"] = table.detach()
    if hasattr(side.norm, "weight"):
        found |= _norm("layer_norm", side.norm, order)
    for number, layer in enumerate(side.layers):
        parts = _attention("self_attn", layer.attention, order)
        parts |= _norm("self_attn_layer_norm", layer.around_attention.norm, order)
        if layer.cross is not None:
            parts |= _attention("encoder_attn", layer.cross, order)
            parts |= _norm("encoder_attn_layer_norm", layer.around_cross.norm, order)
        parts |= _linear("fc1", layer.feed_forward[0], reads=order) | _linear("fc2", layer.feed_forward[3], order)
        parts |= _norm("final_layer_norm", layer.around_feed_forward.norm, order)
        found |= {f"layers.{number}.{name}": value for name, value in parts.items()}
    return found


def _attention(name: str, attention: MultiHead, order: Int[Tensor, " width"]) -> dict[str, Tensor]:
    k, v = attention.key_value.weight.detach().chunk(2)
    k_bias, v_bias = attention.key_value.bias.detach().chunk(2)
    return {
        **_linear(f"{name}.q_proj", attention.query, reads=order),
        f"{name}.k_proj.weight": k[:, order],
        f"{name}.k_proj.bias": k_bias,
        f"{name}.v_proj.weight": v[:, order],
        f"{name}.v_proj.bias": v_bias,
        **_linear(f"{name}.out_proj", attention.output, order),
    }


def _linear(
    name: str, linear: Any, writes: Int[Tensor, " width"] | None = None, reads: Int[Tensor, " width"] | None = None
) -> dict[str, Tensor]:
    """`writes` and `reads`: the order of its outputs and of its inputs, where that is the width of the model."""
    weight, bias = linear.weight.detach(), linear.bias.detach()
    if reads is not None:
        weight = weight[:, reads]
    return {
        f"{name}.weight": weight if writes is None else weight[writes],
        f"{name}.bias": bias if writes is None else bias[writes],
    }


def _norm(name: str, norm: nn.Module, order: Int[Tensor, " width"]) -> dict[str, Tensor]:
    return {each: parameter[order] for each, parameter in named_parameters(name, norm).items()}


def named_parameters(name: str, part: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{each}": parameter.detach() for each, parameter in part.named_parameters()}
