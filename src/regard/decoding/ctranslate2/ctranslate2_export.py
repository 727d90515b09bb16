"""Export of a Transformer to CTranslate2, a C++ library that translates on CPUs and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from ...layers import SinusoidalPositions
from ..export_folder import export_files, require_free
from ..exportable_transformer import transformer_parts
from .ctranslate2_engine import library, vocabulary

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import nn

    from ...data import TokenizerPair
    from ...layers.multihead_attention import MultiHead
    from ...layers.transformer_layers import DecoderLayer, EncoderLayer
    from ...models import EncoderDecoder
    from ...models.encoders.sequences import TransformerConfig

POSITIONS = 4096  # rows of the exported table of positions: the most tokens of a source or target


def export_ctranslate2(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    folder: str | os.PathLike[str],
    *,
    quantization: Literal["none", "int8"] = "none",
    force: bool = False,
    weights: Path | None = None,
) -> Path:
    """Writes model and tokenizers into a new folder; greedy translations from it are the same, token for token.

    With `quantization` "int8" matrices are bytes with scales, and most translations are the same. `force` replaces an
    export that is there. `weights` is the file that the model was loaded from: its SHA-256 is recorded in the folder.
    """
    folder = require_free(folder, "ctranslate2", force=force)
    if problem := model.config.export_problem("ctranslate2"):
        raise ValueError(problem)
    spec = _specification(model, library().specs)
    spec.register_source_vocabulary(vocabulary(tokenizers.source))
    spec.register_target_vocabulary(vocabulary(tokenizers.target))
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize(quantization=None if quantization == "none" else quantization)
    with export_files(folder, weights) as unfinished:
        spec.save(str(unfinished))
        tokenizers.save(unfinished)
    return folder


def _specification(model: EncoderDecoder, specs: Any) -> Any:
    theirs = specs.transformer_spec
    kinds = theirs.TransformerEncoderSpec, theirs.TransformerDecoderSpec
    encoder, decoder = (
        kind(part.layers, part.heads, pre_norm=part.norm == "pre")
        for kind, part in zip(kinds, _parts(model), strict=True)
    )
    _stack(encoder, model.encoder, encoder.embeddings[0])
    _stack(decoder, model.decoder, decoder.embeddings)
    decoder.projection.weight = _numbers(model.decoder.output.weight)
    return theirs.TransformerSpec(encoder, decoder)


def _parts(model: EncoderDecoder) -> list[TransformerConfig]:
    """The configurations of encoder and decoder, where CTranslate2 computes the same as we do."""
    parts = transformer_parts(model, "CTranslate2")
    if len(parts) == 1:
        raise ValueError("CTranslate2 runs translators, and this model is a language model; export it with --to onnx")
    for side, part in zip(("encoder", "decoder"), parts, strict=True):
        if part.positions != "sinusoidal":
            raise ValueError(f"only sinusoidal positions are exported; this model's {side} has {part.positions!r}")
    return parts


def _stack(spec: Any, side: Any, embeddings: Any) -> None:
    width = side.embedding.embedding_dim
    embeddings.weight = _numbers(side.embedding.weight)
    spec.position_encodings.encodings = _numbers(SinusoidalPositions(width)(torch.zeros(POSITIONS, width)))
    if hasattr(spec, "layer_norm"):
        _norm(spec.layer_norm, side.norm)
    for layer_spec, layer in zip(spec.layer, side.layers, strict=True):
        _layer(layer_spec, layer)


def _layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _norm(spec.self_attention.layer_norm, layer.around_attention.norm)
    _self_attention(spec.self_attention, layer.attention)
    if layer.cross is not None and layer.around_cross is not None:
        _norm(spec.attention.layer_norm, layer.around_cross.norm)
        parts = layer.cross.query, layer.cross.key_value, layer.cross.output
        for linear, ours in zip(spec.attention.linear, parts, strict=True):
            _linear(linear, ours)
    _norm(spec.ffn.layer_norm, layer.around_feed_forward.norm)
    _linear(spec.ffn.linear_0, layer.feed_forward[0])
    _linear(spec.ffn.linear_1, layer.feed_forward[3])


def _self_attention(spec: Any, attention: MultiHead) -> None:
    # One matrix for queries, keys and values; ours has one for queries and one for keys and values.
    both = (attention.query, attention.key_value)
    spec.linear[0].weight = _numbers(torch.cat([linear.weight for linear in both]))
    spec.linear[0].bias = _numbers(torch.cat([linear.bias for linear in both]))
    _linear(spec.linear[1], attention.output)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _linear(spec: Any, linear: nn.Module) -> None:
    spec.weight, spec.bias = _numbers(linear.weight), _numbers(linear.bias)


def _numbers(tensor: Any) -> Any:
    return tensor.detach().cpu().float().contiguous().numpy()
