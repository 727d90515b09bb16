"""CTranslate2, a C++ library that translates: export of a Transformer to it, and translation with what was exported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from ..layers.positions import SinusoidalPositions
from ..models.encoders import TransformerConfig
from ..special_tokens import BEGIN, PAD
from .beam import Hypothesis, limits
from .model_folders import export_files, require_free

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from torch import nn

    from ..data.tokenizer_pair import TokenizerPair
    from ..layers.transformer import DecoderLayer, EncoderLayer, MultiHead
    from ..models.configurations import TaskName
    from ..models.encoder_decoder import EncoderDecoder
    from .beam import SearchSettings

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
    """The configurations of encoder and decoder; a ValueError that says why CTranslate2 has no such model."""
    config, parts = model.config, []
    if config.encoder.kind == "none":
        raise ValueError("CTranslate2 runs translators, and this model is a language model; export it with --to onnx")
    sides: list[tuple[str, Any]] = [("encoder", config.encoder), ("decoder", config.decoder)]
    for side, part in sides:
        # A plug-in below TransformerConfig has a kind of its own, and may compute something else.
        if not isinstance(part, TransformerConfig) or part.kind != "transformer":
            raise ValueError(
                f"CTranslate2 runs Transformers; this model's {side} is of kind {part.kind!r}. Export it with --to onnx"
            )
        masked = getattr(part, "masked", True)
        if part.norm == "none" or not part.residual or not part.scaled or not masked:
            raise ValueError(
                "only layers with norms, residual connections, scaled energies and causal masks are exported; this "
                f"model's {side} has norm = {part.norm!r}, residual = {part.residual}, scaled = {part.scaled}, "
                f"masked = {masked}"
            )
        if part.key_heads not in (0, part.heads):
            raise ValueError(f"shared key/value heads are not exported; this model's {side} has {part.key_heads}")
        if part.positions != "sinusoidal":
            raise ValueError(f"only sinusoidal positions are exported; this model's {side} has {part.positions!r}")
        parts.append(part)
    if config.encoder.reads != "text":
        raise ValueError(f"CTranslate2 runs models of text; this model reads {config.encoder.reads}")
    if parts[0].width != parts[1].width:
        raise ValueError(f"encoder and decoder must be equally wide, not {parts[0].width} and {parts[1].width}")
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


class CTranslate2:
    """The engine, for `translate`: it reads a folder that `export_ctranslate2` wrote.

    Greedy search gives the same tokens as ours. Its beam search normalises by |y|^α, not by Wu et al.'s
    ((5 + |y|) / 6)^α, so the ranking can differ. It gives no weights and no `logprob` (NaN): its scores exclude <pad>
    and <s>, and </s> where the limit ended a sentence.
    """

    task: ClassVar[TaskName] = "translate"
    """As a `PretrainedModel` has it: `export_ctranslate2` writes translators only."""

    def __init__(self, folder: str | os.PathLike[str], tokenizers: TokenizerPair, device: str = "cpu") -> None:
        folder = Path(folder)
        if not (folder / "model.bin").is_file():
            raise ValueError(f"{folder} holds no model of CTranslate2 (model.bin); write one with: regard export")
        place, threads = torch.device(device), torch.get_num_threads()
        self._translator: Any = library().Translator(
            str(folder), device=place.type, device_index=place.index or 0, intra_threads=threads
        )
        self._source, self._target = vocabulary(tokenizers.source), vocabulary(tokenizers.target)
        self._ids = {piece: i for i, piece in enumerate(self._target)}

    def __call__(self, sources: list[Any], **how: Unpack[SearchSettings]) -> list[list[Hypothesis]]:
        if how.get("weights"):
            raise ValueError("the engine ctranslate2 gives no weights to show; use the engine torch")
        sample = how.get("sample")
        beams, best = how.get("beams", 5), how.get("best", 1)
        longest = limits(torch.tensor([len(source) for source in sources]), how.get("longest")).tolist()
        options: dict[str, Any] = {"beam_size": beams}
        if sample is not None:
            # It samples with a beam of one; several samples are its several hypotheses.
            options = {
                "beam_size": 1,
                "sampling_topk": sample.top_k,
                "sampling_topp": sample.top_p,
                "sampling_temperature": sample.temperature,
            }
            if sample.seed is not None:
                library().set_random_seed(sample.seed)
        results = self._translator.translate_batch(
            [[self._source[i] for i in source] for source in sources],
            **options,
            num_hypotheses=best,
            length_penalty=how.get("length_penalty", 1.0),
            coverage_penalty=how.get("coverage_penalty", 0.0),
            min_decoding_length=0,
            max_decoding_length=max(longest),
            max_input_length=0,
            suppress_sequences=[[self._target[PAD]], [self._target[BEGIN]]],
            return_scores=True,
        )
        return [
            [
                Hypothesis([self._ids[piece] for piece in pieces[:limit]], score, math.nan)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result, limit in zip(results, longest, strict=True)
        ]


def vocabulary(tokenizer: Any) -> list[str]:
    """The pieces of all ids, in order."""
    pieces: list[str] = tokenizer.pieces(range(len(tokenizer)))
    return pieces


def library() -> Any:
    """The package `ctranslate2`, or an error that says how to install it."""
    try:
        import ctranslate2  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ValueError("CTranslate2 is not installed; install it with: pip install 'regard[export]'") from missing
    return ctranslate2
