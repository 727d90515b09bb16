"""Text into numbers and back, with the `tokenizers` library."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ..files import write_text
from ..special_tokens import END, SPECIALS, UNKNOWN

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from .encoding import FlatIds, WordCache

PASSAGE = 1 << 16  # characters of a text that are tokenised together

_CUT = re.compile(r"(?<=\S) (?=\S)")
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
_UNKNOWN_NAME = "<unknown {}>"  # no word of a text: it has a space


class Tokenizer:
    """One side's vocabulary: ids 0 to 3 are <pad>, <s>, </s> and <unk>, the rest are pieces.

    - `bpe`: byte-pair encoding over characters (Sennrich et al. 2016, arXiv 1508.07909);
    - `unigram`: the pieces that make the text likeliest (Kudo 2018, arXiv 1804.10959); training again gives the same
      pieces, but the library numbers the rarest characters in any order;
    - `word`: what spaces separate, for text that is tokenised already; with `punctuation`, text as people write it is
      split too: l'accord., the teacher's and est-ce are l' accord . the teacher 's est-ce;
    - `character`.

    `decode(encode(text)) == text` for text in Unicode's normal form C whose characters (for `word`: words) were seen in
    training, and, for `word`, with single spaces.
    """

    kind: ClassVar[str] = "text"
    plugin: ClassVar[str] = ""
    """ "package.module:Class" of a subclass in another package, which loads what it saved."""
    dtype: ClassVar[str] = "<i4"
    stride = 1
    shape = None

    def __init__(self, backend: Any) -> None:
        first = [backend.id_to_token(i) for i in range(len(SPECIALS))]
        if first != SPECIALS:
            raise ValueError(f"a tokenizer of ours begins with {' '.join(SPECIALS)}; this one begins with {first}")
        self._backend = backend
        self.unknown_words = UnknownWords.of(backend)
        """Ids of words that are not in the vocabulary; None where they are all <unk>."""
        self._words: WordCache | None = None
        # What a text happens to contain ("</s>") is text; only we say where a sentence ends.
        backend.encode_special_tokens = True

    @classmethod
    def train(
        cls,
        kind: str,
        size: int,
        texts: Iterable[str],
        *,
        lowercase: bool = False,
        punctuation: bool = False,
        slots: int = 0,
    ) -> Tokenizer:
        """Learn a vocabulary of at most `size` entries, the four special ones among them; of kind "word", `slots` more
        for unknown words that a decoder may copy (`UnknownWords`)."""
        if kind not in get_args(Kind):
            raise ValueError(f"no tokenizer is called {kind!r}; known kinds are {', '.join(get_args(Kind))}")
        if size <= len(SPECIALS):
            raise ValueError(f"a vocabulary holds {len(SPECIALS)} special entries and at least one more, got {size}")
        if punctuation and kind != "word":
            raise ValueError(f'punctuation = true is for the tokenizer "word"; "{kind}" splits punctuation anyway')
        if slots and kind != "word":
            raise ValueError(f'slots = {slots} are for the tokenizer "word"; "{kind}" splits unknown words into pieces')
        backend, trainer = untrained_backend(kind, size, lowercase, punctuation)
        backend.train_from_iterator(texts, trainer)
        if backend.get_vocab_size() == len(SPECIALS):
            raise ValueError("there is no text to train a tokenizer on")
        if backend.get_vocab_size() > size:
            raise ValueError(
                f"a vocabulary of {size} is too small for the characters of this text; ask for at least "
                f"{backend.get_vocab_size()}"
            )
        return cls(UnknownWords.add_ids(backend, slots) if slots else backend)

    def add_tags(self, tags: Iterable[str]) -> None:
        """Make each tag one token, with an id at the end of the vocabulary, wherever it occurs in a text."""
        from tokenizers import AddedToken

        if self.unknown_words is not None:
            raise ValueError("the ids of unknown words end this vocabulary (tokenizer.slots), so it takes no tags")
        # lstrip: the space before a tag is no token of its own
        self._backend.add_tokens([AddedToken(tag, lstrip=True, normalized=False, special=False) for tag in tags])
        self._words = None

    @property
    def tags(self) -> list[str]:
        """What `add_tags` added, in its order."""
        added = sorted(self._backend.get_added_tokens_decoder().items())
        return [token.content for _, token in added if not token.special]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """A tokenizer.json, as `save` wrote it."""
        import tokenizers

        content = Path(path).read_bytes()
        try:
            backend = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is not a tokenizer.json: {error}") from error
        try:
            return cls(backend)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, self._backend.to_str(pretty=True))

    def to_json(self) -> str:
        """What `save` writes."""
        return str(self._backend.to_str())

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if any(len(text) > PASSAGE for text in texts):  # the library takes half a kilobyte for each token of a text
            return [[i for part in passages(text) for i in self._encode([part])[0]] for text in texts]
        return self._encode(texts)

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """What `encode_batch` gives, as one array and the length of each; fast where words occur again and again."""
        from .encoding import WordCache, flat_ids

        if not self.encodes_words_alone:
            return flat_ids(self.encode_batch(texts))
        if self._words is None:
            self._words = WordCache(self.encode_batch, SPACE)
        return self._words.encode(texts)

    @cached_property
    def encodes_words_alone(self) -> bool:
        """Whether the ids of a text are those of its words, which single spaces separate, one after the other.

        So it is for all that `train` makes: pieces do not cross a space, and the space before a word is part of it. A
        plug-in, or a tokenizer.json from elsewhere, may look at the whole text.
        """
        backend = self._backend
        if self.plugin or not all(map(matches_anywhere, backend.get_added_tokens_decoder().values())):
            return False
        if (backend.truncation, backend.padding, backend.post_processor) != (None, None, None):
            return False
        pairs = [(kind, punctuation) for kind in get_args(Kind) for punctuation in (False, True)]
        splits = [text_splitter(kind, punctuation).__getstate__() for kind, punctuation in pairs]
        normalizers = [text_normalizer(lowercase).__getstate__() for lowercase in (False, True)]
        parts = (backend.pre_tokenizer, splits), (backend.normalizer, normalizers)
        return all(part is not None and part.__getstate__() in known for part, known in parts)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            if self.unknown_words is not None:
                encodings = self._backend.encode_batch(texts, add_special_tokens=False)
                ids = [self.unknown_words.tokens(*each) for each in zip(texts, encodings, strict=True)]
                return [[i if i > END else UNKNOWN for i in row] for row in ids]
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            for text in texts:
                text.encode("utf-8")  # half of a surrogate pair is no text: a UnicodeEncodeError that says where it is
            raise
        # A word "</s>" in the text is a word nobody knows, not the end of the sentence.
        return [[i if i > END else UNKNOWN for i in encoding.ids] for encoding in encodings]

    def _unknown_words(self, text: str) -> list[str]:
        """The parts of a text that the vocabulary lacks."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [text[begin:end].strip() for i, (begin, end) in pairs if i <= UNKNOWN]

    def unknown_parts(self, text: str) -> list[str]:
        """The words or characters of a text that are <unk>, each once; [] where unknown words have ids of their own."""
        if self.unknown_words is not None:
            return []
        return list(dict.fromkeys(filter(None, self._unknown_words(text))))

    def words_to_copy(self, text: str) -> dict[int, str]:
        """The unknown words of a source, by their ids; {} where the vocabulary has no ids for them."""
        words: dict[int, str] = {}
        if self.unknown_words is not None:
            for word in self._unknown_words(text):
                words.setdefault(self.unknown_words.token(word), word)
        return words

    def words_not_copied(self, text: str, copied: dict[int, str]) -> list[str]:
        """The unknown words of a target that are not among `copied`, the `words_to_copy` of its source; [] where the
        vocabulary has no ids for unknown words. An equal id is not enough."""
        if (unknown := self.unknown_words) is None:
            return []
        known = {i: unknown.normalized(word) for i, word in copied.items()}
        words = self._unknown_words(text)
        return [word for word in words if known.get(unknown.token(word)) != unknown.normalized(word)]

    def decode(self, ids: Sequence[int], copied: dict[int, str] | None = None) -> str:
        """The text of these ids; <pad>, <s> and </s> are left out, <unk> shows. `copied` are `words_to_copy`."""
        if self.unknown_words is not None:
            return " ".join(self.pieces([i for i in ids if i > END], copied))
        return str(self._backend.decode([i for i in ids if i > END], skip_special_tokens=False))

    def pieces(self, ids: Sequence[int], copied: dict[int, str] | None = None) -> list[str]:
        """Each id as it stands in the vocabulary: ▁ is the space before a word. `copied` are `words_to_copy`."""
        pieces = [self._backend.id_to_token(i) for i in ids]
        if None in pieces:
            raise ValueError(f"id {ids[pieces.index(None)]} is not in this vocabulary of {len(self)}")
        if (unknown := self.unknown_words) is not None:
            words = copied or {}
            return [words.get(i, "<unk>") if i in unknown else p for i, p in zip(ids, pieces, strict=True)]
        return pieces

    def continued(self, text: str) -> list[int]:
        """The ids of a text that begins where it begins: without the space `encode` puts there, if that is a piece."""
        ids = self.encode(text)
        return ids[1:] if ids and self.pieces(ids[:1]) == [SPACE] and not text.startswith((" ", SPACE)) else ids

    def running(self, ids: Sequence[int]) -> str:
        """The text of ids from the middle of a text: what `decode` gives, and the space before its first word."""
        pieces = self.pieces(ids)
        if self._backend.decoder is None:  # kind "word"
            return "".join(f" {piece}" for piece in pieces)
        return "".join(pieces).replace(SPACE, " ")

    def words(self, ids: Sequence[int]) -> list[int]:
        """Which word, from 0, each id belongs to; for ids without specials.

        Words are what spaces separate. Of kind "word" every id is one word, so with `punctuation` there may be more
        words than spaces separate: entarté. is two, entarté and the full stop.
        """
        if self._backend.decoder is None:  # kind "word": every id is one
            return list(range(len(ids)))
        pieces, words, word = self.pieces(ids), [], -1
        for i, piece in enumerate(pieces):
            # A lone ▁ is the space before the piece that follows, unless that one brings its own.
            if word < 0 or (piece.startswith(SPACE) and pieces[i - 1] != SPACE):
                word += 1
            words.append(word)
        return words


def passages(text: str, size: int = PASSAGE) -> Iterator[str]:
    """The text in parts that tokenised one by one give the ids of the whole.

    A tokenizer puts a space before whatever it is given, so a part ends before a space, and the next begins after it.
    """
    begin = 0
    while cut := _CUT.search(text, begin + size):
        yield text[begin : cut.start()]
        begin = cut.end()
    yield text[begin:]


@dataclass(frozen=True)
class UnknownWords:
    """An unknown word w has the id `first` + crc32(w) mod `count`; these are the last ids of the vocabulary.

    See et al. 2017 number the unknown words of each source. A hash needs no source, so each side is encoded alone. Two
    different unknown words share an id with probability 1/count; `words` then keeps the first of them.
    """

    first: int
    count: int
    normalizer: Any

    @classmethod
    def of(cls, backend: Any) -> UnknownWords | None:
        """Those of a tokenizer of the library; None where it has none."""
        first = backend.token_to_id(_UNKNOWN_NAME.format(0))
        if first is None:
            return None
        count = backend.get_vocab_size() - first
        ends = backend.token_to_id(_UNKNOWN_NAME.format(count - 1)) == first + count - 1
        if not ends or backend.normalizer is None:
            name = _UNKNOWN_NAME.format(0)
            raise ValueError(f"the vocabulary has {name!r}, but does not end in ids of unknown words")
        return cls(first, count, backend.normalizer)

    @classmethod
    def add_ids(cls, backend: Any, count: int) -> Any:
        """The same tokenizer of the library with `count` ids for unknown words at the end of its vocabulary."""
        values = json.loads(backend.to_str())
        vocabulary = values["model"]["vocab"]
        for number in range(count):
            vocabulary[_UNKNOWN_NAME.format(number)] = len(vocabulary)
        return type(backend).from_str(json.dumps(values))

    def __contains__(self, token: int) -> bool:
        return token >= self.first

    def normalized(self, word: str) -> str:
        return str(self.normalizer.normalize_str(word))

    def token(self, word: str) -> int:
        """The id of an unknown word."""
        return self.first + zlib.crc32(self.normalized(word).encode("utf-8")) % self.count

    def tokens(self, text: str, encoding: Any) -> list[int]:
        """The ids of an encoding, with those of unknown words in place of <unk>."""
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [self.token(text[begin:end]) if i == UNKNOWN else i for i, (begin, end) in pairs]


def untrained_backend(kind: str, size: int, lowercase: bool, punctuation: bool) -> tuple[Any, Any]:
    """A tokenizer of the library with its parts in place, and what trains it."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    unknown = SPECIALS[UNKNOWN]
    pieces = {"bpe": models.BPE(unk_token=unknown, fuse_unk=True), "unigram": models.Unigram()}
    model: Any = pieces.get(kind, models.WordLevel(unk_token=unknown))
    backend: Any = Backend(model)
    backend.pre_tokenizer = text_splitter(kind, punctuation)
    if kind != "word":
        backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    backend.normalizer = text_normalizer(lowercase)
    return backend, tokenizer_trainer(type(model).__name__, size)


def matches_anywhere(token: Any) -> bool:
    """Whether an added token is found alike in a text and in a word of it, and takes the space before it along."""
    return bool(token.special or (token.lstrip and not (token.rstrip or token.single_word or token.normalized)))


def text_normalizer(lowercase: bool) -> Any:
    from tokenizers import normalizers

    steps = [normalizers.NFC(), normalizers.Lowercase()] if lowercase else [normalizers.NFC()]
    return normalizers.Sequence(steps)


def text_splitter(kind: str, punctuation: bool) -> Any:
    """What cuts a text into parts that pieces do not cross; `punctuation` is for kind "word"."""
    from tokenizers import Regex, pre_tokenizers

    if kind == "word":
        spaces = pre_tokenizers.WhitespaceSplit()
        words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        return pre_tokenizers.Sequence([spaces, words]) if punctuation else spaces
    marked = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False)
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
