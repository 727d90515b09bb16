"""Parts of a tokenizer of the `tokenizers` library: what normalises and splits a text, and what trains its model."""

from __future__ import annotations

from typing import Any, Literal

from ..special_tokens import SPECIALS, UNKNOWN

Kind = Literal["bpe", "unigram", "word", "character"]

SPACE = "▁"  # stands for the space before a word, so that pieces joined give the text back
ALPHABET = 1000  # rarer characters of the training text are <unk>

# Pieces never cross these: a word with the apostrophe that ends it (l', aujourd'), a word, a number, an escape of
# Moses' tokenizer (&apos;), a run of anything else; each with the space before it.
_BOUNDS = r"▁?(?:[\p{L}\p{M}]+['’]?|\p{N}+|&(?:[a-z]+|#[0-9]+);|[^\p{L}\p{M}\p{N}▁]+)|▁"

# The words of kind "word" with `punctuation`, in this order: a tag (<2fr>), an elided word (l', qu'), a word with its
# hyphens and apostrophes (est-ce, aujourd'hui) but without 's, a number, 's, any other character.
_WORDS = (
    r"<2\p{L}+>|(?:[cdjlmnst]|qu)['’]|[\p{L}\p{M}]+(?:[-'’](?!s(?![\p{L}\p{M}]))[\p{L}\p{M}]+)*"
    r"|\p{N}+|['’]s(?![\p{L}\p{M}])|[^\p{L}\p{M}\p{N}]"
)


def untrained_backend(kind: str, size: int, lowercase: bool, punctuation: bool) -> tuple[Any, Any]:
    """A tokenizer of the library with its parts in place, and what trains it."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    unknown = SPECIALS[UNKNOWN]
    backend: Any
    if kind == "bpe":
        backend, model = Backend(models.BPE(unk_token=unknown, fuse_unk=True)), "BPE"
    elif kind == "unigram":
        backend, model = Backend(models.Unigram()), "Unigram"
    else:
        backend, model = Backend(models.WordLevel(unk_token=unknown)), "WordLevel"
    backend.pre_tokenizer = text_splitter(kind, punctuation)
    if kind != "word":
        backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    backend.normalizer = text_normalizer(lowercase)
    return backend, tokenizer_trainer(model, size)


def matches_anywhere(token: Any) -> bool:
    """Whether an added token is found alike in a text and in a word of it, and takes the space before it along."""
    return bool(token.special or (token.lstrip and not (token.rstrip or token.single_word or token.normalized)))


def text_normalizer(lowercase: bool) -> Any:
    from tokenizers import normalizers

    steps = [normalizers.NFC(), normalizers.Lowercase()] if lowercase else [normalizers.NFC()]
    return normalizers.Sequence(steps)


def text_splitter(kind: str, punctuation: bool, *, prepend: Literal["always", "never"] = "always") -> Any:
    """What cuts a text into parts that pieces do not cross; `punctuation` is for kind "word".

    `prepend`: whether a space is put before the text, which the other kinds mark.
    """
    from tokenizers import Regex, pre_tokenizers

    if kind == "word":
        spaces = pre_tokenizers.WhitespaceSplit()
        words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        return pre_tokenizers.Sequence([spaces, words]) if punctuation else spaces
    marked = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend, split=False)
    bounds = "(?m)." if kind == "character" else _BOUNDS
    return pre_tokenizers.Sequence([marked, pre_tokenizers.Split(Regex(bounds), "isolated")])


def tokenizer_trainer(model: str, size: int) -> Any:
    """What trains a model of the library, by the name of its type in tokenizer.json."""
    from tokenizers import trainers

    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": SPECIALS, "show_progress": False}
    if model == "BPE":
        return trainers.BpeTrainer(limit_alphabet=ALPHABET, **settings)
    if model == "Unigram":
        return trainers.UnigramTrainer(unk_token=SPECIALS[UNKNOWN], **settings)
    return trainers.WordLevelTrainer(**settings)
