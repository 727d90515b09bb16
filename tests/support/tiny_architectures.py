"""A tiny random model of every architecture in Transformers' model mapping, and inputs that it takes.

Sizes are found by the names of a configuration's fields; what cannot be built or fed this way says why.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 120
TEXT = 12
PICTURE = 64
LARGEST = 60_000_000
"""Parameters of a model at most."""

WIDTH, HEADS, HEAD_WIDTH = 64, 4, 16

SIZES: list[tuple[str, int]] = [
    (r"(num_)?(hidden_|encoder_|decoder_)?(layers|n_layer|n_layers|depth|num_layers|num_blocks)", 2),
    (r"(num|n)_?(hidden|encoder|decoder|text|vision|audio|fusion|cross)?_?layers?|.*_num_hidden_layers", 2),
    (r"(num_|n_)?(attention_|encoder_attention_|decoder_attention_|decoder_num_attention_)?heads?", HEADS),
    (r"linear_num_(key|value)_heads|mamba_n_heads|index_n_heads|encoder_num_heads|decoder_num_heads", HEADS),
    (r"num_key_value_heads|num_kv_heads", 2),
    (r"head_dim|attention_head_dim|d_kv|v_head_dim|linear_(key|value)_head_dim|index_head_dim|kv_channels", HEAD_WIDTH),
    (r"mamba_d_head|mamba_headdim", 32),
    (r"qk_(rope|nope)_head_dim", 8),
    (r"[qko]v?_lora_rank", 16),
    (r"(attention_)?hidden_size|d_model|n_embd|dim|embed_dim|hidden_dim|embedding_size|word_embed_proj_dim", WIDTH),
    (r"n_embed", WIDTH),
    (r"(encoder|decoder|out|pooler_output|output|projection)_(hidden_)?(size|dim)|projection_dim|lru_width", WIDTH),
    (r".*intermediate_size|.*ffn_dim|d_ff|mlp_dim|n_inner|ffn_hidden_size|dff|d_inner|hidden_mlp_dim", 48),
    (r"(num_|n_)?(local_|routed_)?experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|top_k|moe_top_k|moe_k|num_selected_experts", 2),
    (r"n_group|topk_group|n_shared_experts|num_shared_experts|num_expert_group", 1),
    (r"first_k_dense_replace|max_window_layers|attn_layer_offset", 1),
    (r"attn_layer_period|full_attn_interval|full_attention_interval", 2),
    (r"vocab_size.*|.*_vocab_size|padded_vocab_size", VOCABULARY),
    (r"sliding_window|local_attention|attention_window", 6),
    (r"image_size|img_size|pretrain_image_size", PICTURE),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
]
LAYERS = [SIZES[0], SIZES[1], (r"vocab_size.*|.*_vocab_size|padded_vocab_size", VOCABULARY)]


IF_ABSENT = {"head_dim": HEAD_WIDTH, "num_key_value_heads": HEADS, "vocab_size": VOCABULARY}
"""What fields without a default become."""
MROPE = {"rope_parameters": {"mrope_section": [4, 2, 2]}}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
SERIES = {"prediction_length": 8, "context_length": 24, "lags_sequence": [1, 2], "d_model": 32, "moving_average": 5}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
FIELDS: dict[str, dict[str, Any]] = {
    "autoformer": SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esmc": {"num_key_value_heads": HEADS},
    "flaubert": {"emb_dim": WIDTH},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "architectures": [""], "d_head": HEAD_WIDTH},
    "gemma3n_text": {"num_kv_shared_layers": 0, "intermediate_size": [48, 48], "hidden_size_per_layer_input": 16},
    "glm46v": {"text_config": MROPE},
    "glm4v": {"text_config": MROPE},
    "glm4v_moe": {"text_config": {"rope_parameters": {"mrope_section": [2, 1, 1]}}},
    "glm4v_moe_text": {"rope_parameters": {"mrope_section": [2, 1, 1]}},
    "glm4v_text": MROPE,
    "glm_image": {"text_config": MROPE},
    "glm_image_text": MROPE,
    "glm_ocr": {"text_config": MROPE},
    "glmga": {"text_config": MROPE},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": HYBRID,
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "informer": SERIES,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "mamba2": {"head_dim": 32, "n_groups": 1},
    "mistral4": {"head_dim": 16, "rope_parameters": {"partial_rotary_factor": 0.5}},
    "musicgen": {"text_encoder": {"d_kv": HEAD_WIDTH}},
    "time_series_transformer": SERIES,
    "xlm": {"emb_dim": WIDTH},
}
"""What the fields of a configuration must be where the sizes above do not fit together."""

STAGES = ("out_features", "out_indices", "stage_names", "_out_features", "_out_indices", "feature_size", "qk_head_dim")
"""Fields that follow from others."""


QUERIES_AND_KEYS = re.compile(r"(^|[._])(q|k|query|key|qkv|c_attn|query_key_value|q_proj|k_proj)([._]|$)")


class Lengths(NamedTuple):
    """The sizes of what a model is given, and the type in which it runs."""

    text: int = TEXT
    picture: int = PICTURE
    sound: int = 1
    """How many times longer sounds are."""
    dtype: torch.dtype = torch.float32


SHORT = Lengths()


class CannotBuildError(Exception):
    """This architecture has no tiny model here; the text says why."""


def names() -> list[str]:
    """The architectures of Transformers' model mapping."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def build(name: str, lengths: Lengths = SHORT) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model of the architecture, and inputs with which it runs."""
    reasons: list[str] = []
    for sizes in (SIZES, [*LAYERS, *(x for x in SIZES if x[1] in (PICTURE,))], LAYERS):
        try:
            model = _model(name, sizes, lengths).to(lengths.dtype)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        for inputs in _inputs(model, lengths):
            try:
                with torch.no_grad():
                    model(**copy.deepcopy(inputs))
            except Exception as error:
                reasons.append(f"given {', '.join(inputs)}: {type(error).__name__}: {error}")
                continue
            return model, inputs
    # The first reason is that of the smallest model with the first inputs.
    raise CannotBuildError(reasons[0].split("\n")[0][:160] if reasons else "no inputs are known for it")


def _model(name: str, sizes: list[tuple[str, int]], lengths: Lengths = SHORT) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    default = AutoConfig.for_model(name)
    if lengths.picture != PICTURE:
        sizes = [
            (pattern, lengths.picture if size == PICTURE and "image" in pattern else size) for pattern, size in sizes
        ]
    fields = _shrunk(default.to_dict(), sizes)
    config = type(default).from_dict(_merged(fields, FIELDS.get(name, {})) if len(sizes) == len(SIZES) else fields)
    with torch.device("meta"):
        count = sum(x.numel() for x in AutoModel.from_config(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise CannotBuildError(f"{count:,} parameters")
    torch.manual_seed(0)
    model: nn.Module = AutoModel.from_config(config).eval()
    with torch.no_grad():
        for part, x in model.named_parameters():
            # Small random weights attend to all keys alike, and a wrong mask would hardly show.
            if x.dim() > 1 and QUERIES_AND_KEYS.search(part):
                x.mul_(4)
    return model


def _merged(fields: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The fields with others in place of those of the same names, in nested configurations as well."""
    nested = {key: _merged(fields.get(key) or {}, value) for key, value in other.items() if isinstance(value, dict)}
    return fields | other | nested


def _shrunk(fields: dict[str, Any], sizes: list[tuple[str, int]]) -> dict[str, Any]:
    """The fields of a configuration with small numbers, and lists of one entry for each layer cut to match."""
    counts = [fields.get(x) for x in ("num_hidden_layers", "num_layers", "n_layer")]
    layers = next((x for x in counts if isinstance(x, int)), 0)
    kept = _kept_layers(fields.get("layer_types"), layers)
    small: dict[str, Any] = {}
    for key, value in fields.items():
        if key in STAGES:
            continue
        if key == "per_layer_config":
            small[key] = {}
        elif isinstance(value, dict) and value.get("model_type") in ("timm_backbone", "timm_wrapper"):
            small[key] = RESNET  # timm is not needed then
        elif value is None and key in IF_ABSENT and len(sizes) > 5:
            small[key] = IF_ABSENT[key]
        elif isinstance(value, dict):
            small[key] = _shrunk(value, sizes) if key not in ("id2label", "label2id") else value
        elif isinstance(value, list) and layers > 2 and len(value) == layers:
            small[key] = [value[at] for at in kept]
        elif key == "depths" and isinstance(value, list):
            small[key] = [1 for _ in value]
        elif key == "mrope_section":
            small[key] = [4, 2, 2] if len(sizes) > 5 else value
        elif key == "num_key_value_heads" and fields.get("kv_lora_rank") and len(sizes) > 5:
            small[key] = HEADS
        elif key == "head_dim" and "qk_rope_head_dim" in fields and len(sizes) > 5:
            small[key] = 8  # the part with rotary positions
        elif isinstance(value, int) and not isinstance(value, bool):
            small[key] = _number(key, value, sizes, len(kept))
        else:
            small[key] = value
    return small


def _kept_layers(types: Any, layers: int) -> list[int]:
    """One layer of each type, at least two."""
    first = sorted({types.index(x) for x in types}) if isinstance(types, list) and types else []
    more = [at for at in range(layers) if at not in first]
    return sorted([*first, *more[: max(2 - len(first), 0)]])


def _number(key: str, value: int, sizes: list[tuple[str, int]], layers: int) -> int:
    if re.fullmatch(r".*token_id|.*token_index", key):
        return value if value < VOCABULARY else 3 + sum(map(ord, key)) % 90
    for pattern, size in sizes:
        if re.fullmatch(pattern, key):
            if size == 2 and key == "num_hidden_layers":
                return min(value, max(layers, 2))
            return min(value, size)
    return value


def _inputs(model: nn.Module, lengths: Lengths = SHORT) -> Iterator[dict[str, Any]]:
    """What the model may take, likeliest first."""
    known = inspect.signature(model.forward).parameters
    main_names = getattr(model, "main_input_name", "input_ids")
    wanted = [*(main_names if isinstance(main_names, list) else [main_names]), "input_ids", "pixel_values"]
    wanted += ["input_values", "input_features", "pixel_values_videos"]
    if "grid_thw" in known:
        yield from _patches(model)
    if "past_values" in known:
        yield from _series(model, known)
    for main in dict.fromkeys(x for x in wanted if x in known):
        for value in _values(main, model, lengths):
            inputs: dict[str, Any] = {main: value}
            if main == "input_ids":
                inputs["attention_mask"] = torch.ones_like(value)
            yield {x: y for x, y in inputs.items() if x in known or x == main}
            extra = _extras(known, model, main, lengths)
            if extra:
                yield inputs | extra


def _patches(model: nn.Module) -> Iterator[dict[str, Any]]:
    """A picture of 8 × 8 patches, each a row of its pixels."""
    config: Any = model.config
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", None) or 3
    time = getattr(config, "temporal_patch_size", None) or 1
    for depth in dict.fromkeys((time, 1)):
        pixels = torch.randn(64, channels * depth * config.patch_size**2, generator=torch.Generator().manual_seed(1))
        for name in ("hidden_states", "pixel_values"):
            yield {name: pixels, "grid_thw": torch.tensor([[1, 8, 8]])}


def _series(model: nn.Module, known: Any) -> Iterator[dict[str, Any]]:
    """Numbers over time, and what follows them."""
    config: Any = model.config
    channels = getattr(config, "num_input_channels", None)
    past = config.context_length + max(getattr(config, "lags_sequence", None) or [0])
    shape = (2, past) if channels is None else (2, past, channels)
    future = getattr(config, "prediction_length", None) or 8
    made = {
        "past_values": torch.randn(shape, generator=torch.Generator().manual_seed(1)),
        "past_time_features": torch.zeros(2, past, 0),
        "past_observed_mask": torch.ones(shape),
        "future_values": torch.randn(2, future),
        "future_time_features": torch.zeros(2, future, 0),
    }
    if channels is None:
        yield {name: value for name, value in made.items() if name in known}
    yield {"past_values": made["past_values"]}


def _extras(known: Any, model: nn.Module, main: str, lengths: Lengths) -> dict[str, Any]:
    """Further inputs that some architectures need."""
    ids = _ids(lengths.text)
    made = {
        "decoder_input_ids": ids[:, :5],
        "input_ids": ids,
        "bbox": torch.tensor([1, 2, 3, 4]).expand(2, lengths.text, 4),
        "visual_feats": torch.randn(2, 5, getattr(model.config, "visual_feat_dim", 2048) or 2048),
        "visual_pos": torch.rand(2, 5, 4),
        "pixel_values": next(_values("pixel_values", model, lengths), None) if main != "pixel_values" else None,
        "input_points": torch.rand(2, 1, 2, 2) if main != "input_ids" else None,
        "token_type_ids": torch.zeros_like(ids) if "ids" in main else None,
        "qformer_input_ids": ids,
        "task_inputs": ids,
    }
    return {key: value for key, value in made.items() if key in known and key != main and value is not None}


def _ids(length: int) -> Tensor:
    return torch.randint(95, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(1))


def _values(name: str, model: nn.Module, lengths: Lengths) -> Iterator[Tensor]:
    for value in _float_values(name, model, lengths):
        yield value.to(lengths.dtype) if value.is_floating_point() else value


def _float_values(name: str, model: nn.Module, lengths: Lengths) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    config: Any = model.config
    if name == "input_ids":
        yield _ids(lengths.text)
    elif name.startswith("pixel_values"):
        vision = getattr(config, "vision_config", config)
        channels = getattr(vision, "num_channels", 3) or 3
        size = getattr(vision, "image_size", PICTURE) or PICTURE
        height, width = size if isinstance(size, list | tuple) else (size, size)
        frames = getattr(vision, "num_frames", 2) or 2
        if isinstance(channels, int) and isinstance(height, int) and height <= 512:
            yield torch.randn(2, channels, height, width, generator=generator)
            yield torch.randn(2, frames, channels, height, width, generator=generator)
        yield torch.randn(1, 3, 224, 224, generator=generator)
    elif name == "input_values":
        yield torch.randn(2, 4000 * lengths.sound, generator=generator)
        yield torch.randn(2, 1, 4000 * lengths.sound, generator=generator)
        yield torch.randn(2, 1024, 128, generator=generator)
    else:
        mels = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None) or 80
        positions = getattr(config, "max_source_positions", 100) or 100
        yield torch.randn(2, mels, 2 * min(positions, 3000), generator=generator)
        yield torch.randn(2, 100 * lengths.sound, mels, generator=generator)
        for width in (160, 128, 320, 64):
            yield torch.randn(2, 100 * lengths.sound, width, generator=generator)
