"""Export of a Transformer to a folder that `transformers` loads: model, generation settings, tokenizer, model card."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...atomic_write import write_text
from ...data.batch import BEGIN, END, PAD, UNKNOWN
from ...models import EncoderDecoder
from ..export_folder import export_files, require_free
from ..exportable_transformer import transformer_parts
from .transformers_language_models import build_language_model
from .transformers_model_card import model_card
from .transformers_tokenizer import save_tokenizers
from .transformers_translators import build_translator

if TYPE_CHECKING:
    import os

    from jaxtyping import Float, Int
    from torch import Tensor

    from ...data import TokenizerPair
    from ...models import Classifier

NEW_TOKENS = 256
"""The most tokens of a translation that `generate` writes, where the decoder has as many positions."""
BEAMS = 5
LARGEST_DIFFERENCE = 1e-4
"""Of the logits of both models in float64, relative to their spread. Tables of positions are float32 there."""


def export_transformers(
    model: EncoderDecoder | Classifier,
    tokenizers: TokenizerPair,
    folder: str | os.PathLike[str],
    *,
    quantization: Literal["none", "int8"] = "none",
    card: str | None = None,
    force: bool = False,
    weights: Path | None = None,
) -> Path:
    """Writes a Transformer into a new folder for `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM.from_pretrained`.

    The classes are those of published models that compute the same: Marian (norms after each part), Pegasus (before),
    Blenderbot (learned positions) for translators; OPT and GPT-NeoX (rotary positions) for language models. Greedy
    translations are the same, token for token. Before anything is written, the logits of both models are compared.
    `card` is the model card of our model (README.md), which becomes that of the folder. `force` replaces an export that
    is there. `weights` is the file that the model was loaded from: its SHA-256 is recorded in the folder.
    """
    folder = require_free(folder, "transformers", force=force)
    if quantization != "none":
        raise ValueError(
            f"{quantization} folders are not written for transformers, which quantizes a model when it loads it; "
            "--quantization is for --to ctranslate2 and --to onnx"
        )
    if problem := model.config.export_problem("transformers"):
        raise ValueError(problem)
    if not isinstance(model, EncoderDecoder):
        raise TypeError(f"a translator or a language model is exported, not a {type(model).__name__}")
    require_library()
    parts = transformer_parts(model, "transformers")
    model = copy.deepcopy(model).cpu().float()  # products of half precision would be rounded
    exported = (build_translator if len(parts) == 2 else build_language_model)(model, *parts)
    exported.generation_config = _generation_config(model)
    _compare(model, exported)
    described = model_card(card, folder.name, has_source=len(parts) == 2, joint=tokenizers.joint)
    with export_files(folder, weights) as unfinished:
        exported.save_pretrained(unfinished)
        save_tokenizers(tokenizers, unfinished, model.config.longest)
        write_text(Path(unfinished) / "README.md", described)
    return folder


def require_library() -> Any:
    """The package `transformers`, or an error that says how to install it."""
    try:
        import transformers
    except ModuleNotFoundError as missing:
        raise ValueError("transformers is not installed; install it with: pip install 'regard[export]'") from missing
    return transformers


def _generation_config(model: EncoderDecoder) -> Any:
    """As our search does by default. `generate` stops at 20 tokens unless the folder has another limit."""
    config = model.config
    settings: dict[str, Any]
    if config.encoder.kind == "none":
        settings = {"max_length": config.longest, "suppress_tokens": [PAD, BEGIN, UNKNOWN]}
    else:
        most = NEW_TOKENS if model.decoder.most_steps is None else min(NEW_TOKENS, model.decoder.most_steps - 1)
        settings = {"max_new_tokens": most, "suppress_tokens": [PAD, BEGIN]}
        settings |= {"num_beams": BEAMS, "decoder_start_token_id": BEGIN}
    return require_library().GenerationConfig(bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD, **settings)


@torch.no_grad()
def _compare(model: EncoderDecoder, exported: Any) -> None:
    """Refuse an export whose logits differ: a class of another version may compute something else."""
    config, generator = model.config, torch.Generator().manual_seed(0)

    def tokens(vocabulary: int, length: int) -> Int[Tensor, "2 length"]:
        return torch.randint(UNKNOWN, vocabulary, (2, length), generator=generator)

    ours, theirs = copy.deepcopy(model).double().eval(), copy.deepcopy(exported).double().eval()
    length = min(12, config.longest)
    target = tokens(config.target_vocabulary, length)
    lengths = torch.tensor([length, max(length - 3, 1)])
    if config.encoder.kind == "none":
        source = torch.ones(2, 1, dtype=torch.int64)
        lengths, inputs = source[:, 0], {"input_ids": target}
    else:
        source = tokens(config.source_vocabulary, length)
        mask = torch.arange(length) < lengths[:, None]
        inputs = {"input_ids": source, "attention_mask": mask.long(), "decoder_input_ids": target}
    expected: Float[Tensor, "2 length vocabulary"] = ours.readout(ours(source, lengths, target).features)
    found = theirs(**inputs).logits[..., : config.target_vocabulary]
    difference = float((found - expected).abs().max() / expected.std())
    if not difference <= LARGEST_DIFFERENCE:
        raise RuntimeError(
            f"the logits of {type(exported).__name__} of transformers {require_library().__version__} differ from "
            f"those of this model by {difference:.1e} of their spread, more than rounding; nothing was written"
        )
