"""The tokenizers of a run: learned from its corpus, kept in the cache, or taken from another model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...atomic_write import replacing_folder
from ...checksums import write_checksums
from ...data import UNKNOWN, TokenizerPair
from ...data.picture_reader import PictureReader
from ...data.preparation.preparation_cache import PreparationCache, cache_key
from ...data.preparation.vocabulary_sample import SampledPairs
from ...data.source_reader import make_reader
from ...data.tokenizer import Tokenizer
from ..fine_tuning.warm_start import WarmStart
from ..recipe.data_section import StreamData
from .preparation_progress import CountedRows
from .recipe_corpus import read
from .split_files import SplitFiles, in_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...data import Pair
    from ..recipe.recipe import Recipe
    from ..run.run_folder import Run
    from .recipe_corpus import Corpus

TYPICAL = 400  # training pictures whose statistics are kept, to notice others that are unlike them
STREAM_SAMPLE = 300_000  # rows of a stream that the vocabulary is learned from, unless tokenizer.sample says other


class VocabularyPreparation:
    """Loads the tokenizers of a run, or learns them."""

    def __init__(self, run: Run, splits: SplitFiles, say: Callable[[str], None]) -> None:
        self.run, self.splits, self.say = run, splits, say
        self.recipe: Recipe = run.recipe

    def tokenizers(self, cache: PreparationCache) -> TokenizerPair:
        """Those of the run, with every tag of the recipe as one token."""
        tokenizers = self._tokenizers(cache)
        for tag in filter(None, getattr(self.recipe.data, "tags", [])):
            tokens = tokenizers.source.encode(tag)
            if len(tokens) != 1 or tokens[0] == UNKNOWN:
                raise ValueError(
                    f"data.tags: {tag!r} is not one token of the vocabulary that tokenizers are taken from"
                )
        return tokenizers

    def _tokenizers(self, cache: PreparationCache) -> TokenizerPair:
        recipe = self.recipe
        if self.run.data.exists():  # a run that goes on with other data
            return TokenizerPair.load(self.run.data)
        if recipe.tokenizer.load:
            return TokenizerPair.load(recipe.tokenizer.load)
        # The vocabulary is learned from text without tags, which are no words.
        tagged = getattr(recipe.data, "tags", [])
        data = recipe.data.model_copy(update={"tags": []}) if tagged else recipe.data
        corpus = read(data, "train", recipe.source.kind)
        train: Iterable[Pair] = corpus
        if isinstance(data, StreamData):
            size = recipe.tokenizer.sample or STREAM_SAMPLE
            train = FirstRows(corpus, size, skip=0 if data.valid else data.valid_pairs)
            if next(iter(train), None) is None:
                raise ValueError(
                    f"data.valid_pairs = {data.valid_pairs} takes all pairs of the first file to validate with: lower "
                    "it, or name a file in data.valid"
                )
            self.say(
                f"the vocabulary is learned from the first rows of the stream, at most {size:,} (tokenizer.sample)"
            )
        if recipe.training.init:
            return WarmStart(recipe).tokenizers(train)
        self.say(self._activity)
        if not in_blocks(recipe) or recipe.tokenizer.kind not in ("bpe", "unigram", "word", "character"):
            tokenizers = self._learn(train)
        else:
            tokenizers = self._load_or_learn(cache, train, list(filter(None, tagged)))
        self._say_sizes(tokenizers)
        return tokenizers

    def _say_sizes(self, tokenizers: TokenizerPair) -> None:
        """Small corpora have fewer pieces or words than tokenizer.size."""
        sides = {"source ": tokenizers.source, "target ": tokenizers.target}
        for side, tokenizer in ({"": tokenizers.source} if tokenizers.joint else sides).items():
            if isinstance(tokenizer, Tokenizer):
                learned = len(tokenizer) - len(tokenizer.tags) - self.recipe.tokenizer.slots
                self.say(f"{side}vocabulary: {learned:,} of at most {self.recipe.tokenizer.size:,} tokens")

    def _load_or_learn(self, cache: PreparationCache, train: Iterable[Pair], tags: list[str]) -> TokenizerPair:
        """Of text files: from the cache, or learned and kept there."""
        recipe, split = self.recipe, self.splits.split("train")
        split = replace(split, parts=tuple(replace(part, tag="") for part in split.parts))
        settings = recipe.tokenizer.model_dump()
        key = cache_key(content=split.content, tokenizer=settings, task=recipe.base_task, tags=tags)
        with cache.lock(key, self.say):
            entry = cache.find("vocabularies", key, self.say)
            if entry is None:
                sample = self._sample_size
                sampled = sample and split.rows > sample
                if sampled:
                    self.say(f"it is learned from {sample:,} of {split.rows:,} rows (tokenizer.sample)")
                tokenizers = self._learn(SampledPairs(split, sample) if sampled else train)
                if tags:
                    tokenizers.source.add_tags(tags)
                self.splits.require_unchanged()
                entry = cache.path("vocabularies", key)
                with replacing_folder(entry) as unfinished:
                    tokenizers.save(unfinished)
                    write_checksums(unfinished, [file.name for file in unfinished.iterdir()])
            return TokenizerPair.load(entry)

    @property
    def _activity(self) -> str:
        """What is done with the rows. A classifier of sounds has labels on one side, and no words on the other."""
        has_words = self.recipe.source.kind == "text" or self.recipe.base_task != "classify"
        return "learning the vocabulary" if has_words else "collecting the labels"

    @property
    def _sample_size(self) -> int:
        """Rows that the vocabulary is learned from; 0: all. Labels, words and letters may be rare, so all are read."""
        recipe = self.recipe
        has_pieces = recipe.tokenizer.kind in ("bpe", "unigram") and recipe.base_task != "classify"
        return recipe.tokenizer.sample if has_pieces else 0

    def _learn(self, pairs: Iterable[Pair]) -> TokenizerPair:
        recipe, how = self.recipe, self.recipe.tokenizer
        source: Any = None if recipe.source.kind == "text" else make_reader(**recipe.source.model_dump())
        if isinstance(source, PictureReader):
            pictures = dict.fromkeys(pair.source for pair in pairs)  # several captions may name one picture
            source.learn_typical(itertools.islice(pictures, TYPICAL))
        return TokenizerPair.train(
            how.kind,
            how.size,
            CountedRows(pairs, self._activity),
            joint=how.joint,
            lowercase=how.lowercase,
            punctuation=how.punctuation,
            source=source,
            labels=recipe.base_task == "classify",
            slots=how.slots,
        )


class FirstRows:
    """The first rows of each file of a corpus, `size` in all, in equal shares; each iteration reads them again.

    `skip` rows of the first file are left out: they validate.
    """

    def __init__(self, corpus: Corpus, size: int, skip: int = 0) -> None:
        self.corpus, self.size, self.skip = corpus, size, skip

    def __iter__(self) -> Iterator[Pair]:
        share = -(-self.size // len(self.corpus.parts))
        skips = itertools.chain([self.skip], itertools.repeat(0))
        parts = zip(self.corpus.parts, skips, strict=False)
        rows = (pair for part, skip in parts for pair in itertools.islice(part, skip, skip + share))
        return itertools.islice(rows, self.size)
