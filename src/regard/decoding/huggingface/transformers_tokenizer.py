"""Tokenizers as `AutoTokenizer` loads them: tokenizer.json, and what is special in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ...data import Tokenizer
from ...data.batch import BEGIN, END, PAD, UNKNOWN
from ...data.tokenizer import SPACE, text_splitter
from ...json_file import read_object
from ...special_tokens import SPECIALS

if TYPE_CHECKING:
    import os

    from ...data import TokenizerPair

TARGET = "target_tokenizer"
"""The folder of the target's tokenizer, where source and target have vocabularies of their own."""


def save_tokenizers(tokenizers: TokenizerPair, folder: str | os.PathLike[str], longest: int) -> None:
    """The tokenizer of the source, or of a language model, into the folder; another one of the target into `TARGET`."""
    folder = Path(folder)
    if not isinstance(tokenizers.source, Tokenizer):  # a language model reads no source
        _save(tokenizers.target, folder, longest, is_source=False)
        return
    _save(tokenizers.source, folder, longest, is_source=True)
    if not tokenizers.joint:
        _save(tokenizers.target, folder / TARGET, longest, is_source=True)


def _save(tokenizer: Tokenizer, folder: Path, longest: int, *, is_source: bool) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    if tokenizer.plugin:
        raise ValueError(f"the tokenizer is a plug-in, {tokenizer.plugin}, and tokenizer.json does not describe it")
    backend = Backend.from_str(tokenizer.to_json())
    splitter = backend.pre_tokenizer.__getstate__()
    if splitter == text_splitter("word", False).__getstate__():
        _replace_special_words(backend)
    elif splitter == text_splitter("character", False).__getstate__() and not is_source:
        _begin_without_space(backend)
    pad, begin, end, unknown = (SPECIALS[i] for i in (PAD, BEGIN, END, UNKNOWN))
    if is_source:  # sentences end in </s>; a text that is continued does not
        backend.post_processor = TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, END)]
        )
    exported: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        model_max_length=longest,
        padding_side="right" if is_source else "left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "</s>" in a text is split as text
    )
    exported.save_pretrained(str(folder))
    file = folder / "tokenizer_config.json"
    values = {**read_object(file), "tokenizer_class": "PreTrainedTokenizerFast"}  # the name that version 4 has too
    write_text(file, json.dumps(values, indent=2) + "\n")


def _replace_special_words(backend: Any) -> None:
    """A word </s> of a text is an unknown word, where spaces alone separate words: `Tokenizer.encode` sees to it."""
    from tokenizers import normalizers

    replaced = [normalizers.Replace(SPECIALS[i], SPECIALS[UNKNOWN]) for i in (PAD, BEGIN, END)]
    backend.normalizer = normalizers.Sequence([backend.normalizer, *replaced])


def _begin_without_space(backend: Any) -> None:
    """Characters of a text that begins where it begins, as `Tokenizer.continued` gives them: no space before it.

    Pieces of kinds "bpe" and "unigram" keep it, also before a text whose first character has no piece with a space.
    """
    from tokenizers import decoders

    backend.pre_tokenizer = text_splitter("character", False, prepend="never")
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="never")
