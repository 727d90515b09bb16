"""The corpus of each split of a recipe, and its preparation: a vocabulary and rows as ids, in data/ of a run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..data.corpus_stream import CorpusPart, FileScan, PairStream, SampledPairs, Split, held_out_pairs, is_held_out
from ..data.encoding import EncodedCorpus
from ..data.encoding_cache import PAIRS as TEXTS
from ..data.encoding_cache import PartReport, PreparationCache, cache_key, prepare_split
from ..data.media import PictureReader
from ..data.rows import DatasetSplit, Pair, PairReader, all_bad_error, header_remark, skipped_rows, text
from ..data.tokenizer import Tokenizer
from ..data.tokenizer_pair import TokenizerPair, UnknownLabelError, make_reader
from ..decoding.load_model_and_tokenizers import find
from ..files import replacing_folder, sha256, write_checksums
from ..special_tokens import END, UNKNOWN
from ..wording import count_of
from .parameters import WarmStart
from .recipe_files import expand_patterns, file_names, folder, require_path
from .recipe_sections import (
    DigitsData,
    FilesData,
    GeneratedData,
    PhrasesData,
    PluginData,
    StreamData,
    TextData,
)
from .run_folder import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .recipe import Recipe
    from .recipe_sections import Data, PhotosData
    from .run_folder import Run
    from .tasks import Task


SplitName = Literal["train", "valid", "test"]


class Corpus:
    """The files of a split, one after the other; each iteration reads them again. `row` counts over all files.

    `root` is the folder of sources that are names of files. `keeps` says which rows belong to the split. `tags` has a
    token for each file that begins its sources, "" for none. With `most`, only the first so many rows are read.
    """

    def __init__(
        self,
        parts: list[PairReader],
        root: Path | None = None,
        keeps: Callable[[int], bool] = lambda row: True,
        tags: Sequence[str] = (),
        most: int | None = None,
    ) -> None:
        self.parts, self.root, self.keeps, self.tags, self.most = parts, root, keeps, tags, most

    def __iter__(self) -> Iterator[Pair]:
        row = -1
        tagged = (
            (tag, pair) for part, tag in zip(self.parts, chain(self.tags, repeat("")), strict=False) for pair in part
        )
        for row, (tag, pair) in enumerate(islice(tagged, self.most)):
            if self.keeps(row):
                source = pair.source if self.root is None else str(self.root / pair.source)
                yield replace(pair, row=row, source=f"{tag} {source}" if tag else source)
        if row < 0 and self.skipped:
            first = next(message for part in self.parts for message in part.first.values())
            raise all_bad_error(self.skipped, first)

    @property
    def skipped(self) -> int:
        """Bad rows left out in the latest iteration."""
        return sum(part.skipped for part in self.parts)


def read(data: Data, split: SplitName, source: str = "text") -> Corpus:
    """The corpus of a split; `source` is the kind of its source side."""
    if isinstance(data, FilesData):
        root, every = None if source == "text" else folder(data.root), data.hold_out
        if not every or split == "test":
            return Corpus([part.reader for part in corpus_parts(data, split)], root, tags=data.tags)
        readers = [part.reader for part in corpus_parts(data, "train")]
        return Corpus(readers, root, lambda row: is_held_out(row, every) == (split == "valid"), data.tags)
    if isinstance(data, StreamData):
        return _stream_corpus(data, split)
    if isinstance(data, PluginData):
        return Corpus([PairReader(list(data.pairs(split)))])
    if isinstance(data, GeneratedData):
        return Corpus([_generator_pairs(data, split)])
    if isinstance(data, TextData | PhrasesData):
        return Corpus([PairReader(_running_text(data, split))])
    from ..data.corpora.photos_and_spoken_digits import photo_captions, spoken_digits

    if isinstance(data, DigitsData):
        return Corpus([PairReader(list(spoken_digits(_data_folder(data), split, data.left_out)))])
    return Corpus([PairReader(list(photo_captions(_data_folder(data), split, data.language)))])


def pair_stream(data: StreamData, split: str = "train", seed: int = 0) -> PairStream:
    """The files or the dataset of a split; of `train`, without the pairs that validate."""
    held_out = data.valid_pairs if split == "train" and not data.valid else 0
    if split == "train":
        require_other_names(data)
    if data.dataset:
        part = CorpusPart(columns=tuple(data.columns), on_bad=data.on_bad, dataset=dataset_split(data, split))
        return PairStream((part,), held_out=held_out)
    return PairStream(tuple(corpus_parts(data, split)), seed, held_out)


def dataset_split(data: StreamData, split: str) -> DatasetSplit:
    """A split of `data.dataset`, which may be a folder below `data.root`."""
    local = folder(data.root) / data.dataset
    name = str(local) if local.is_dir() else data.dataset
    return DatasetSplit(name, getattr(data, split)[0], data.configuration, data.revision)


def _stream_corpus(data: StreamData, split: SplitName) -> Corpus:
    """A split as rows: validation and test sets, and the rows that a vocabulary is learned from."""
    if split == "valid":
        if not data.valid:
            return Corpus([PairReader(held_out_pairs(pair_stream(data)))])
        return Corpus(pair_stream(data, "valid").readers(), most=data.valid_pairs)
    return Corpus(pair_stream(data, split).readers() if getattr(data, split) else [])


def running(file: Path) -> Corpus:
    """A whole file as running text."""
    whole = text(file)
    if not whole.strip():
        raise ValueError(f"{file} holds no text")
    return Corpus([PairReader([Pair("nothing", whole, 0)])])


def check(data: Data) -> None:
    """Raise an error for a missing file or one that is in two splits, before the run's folder is made."""
    if isinstance(data, GeneratedData | PhrasesData | PluginData):
        return
    if isinstance(data, FilesData):
        require_other_names(data)
    for split in get_args(SplitName):
        if isinstance(data, StreamData):
            if getattr(data, split):
                next(iter(pair_stream(data, split).readers()[0]), None)  # a dataset: can it be reached?
        else:
            read(data, split)
    if isinstance(data, FilesData | StreamData):
        require_other_contents(data)


def corpus_files(data: Data) -> tuple[Path, list[Path]]:
    """`data.root` and the files that a recipe names below it; none where the data is generated or a folder."""
    names: list[str] = []
    if isinstance(data, FilesData | StreamData):
        # A stream is not read whole before training, so that its hash is not known.
        corpora = [*data.valid, *data.test] if isinstance(data, StreamData) else [*data.train, *data.valid, *data.test]
        names = [name for corpus in corpora for name in file_names(corpus)]
    elif isinstance(data, TextData):
        names = data.files
    root = folder(getattr(data, "root", "."))
    return root, [root / name for name in dict.fromkeys(names) if (root / name).is_file()]


def check_tokenizer(load: str) -> None:
    """Raise an error that names the key where `tokenizer.load` is no folder with tokenizers."""
    try:
        if load:
            TokenizerPair.load(load)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"tokenizer.load = {load!r}: {error}; give the folder of a model, or data/ of a run, from where the "
            "command is run"
        ) from None


def corpus_parts(data: FilesData | StreamData, split: str) -> Iterator[CorpusPart]:
    """The corpora of a split, in order."""
    root = folder(data.root)
    sources, tags = getattr(data, split), getattr(data, "tags", [])
    if isinstance(data, StreamData):
        sources = expand_patterns(root, sources)
    for source, tag in zip(sources, chain(tags, repeat("")), strict=False):
        files = tuple(str(require_path(root / name, split, data.root)) for name in file_names(source))
        yield CorpusPart(files, tuple(data.columns) if len(files) == 1 else None, data.on_bad, tag)


def _data_folder(data: DigitsData | PhotosData) -> Path:
    return require_path(folder(data.root) / data.folder, "folder", data.root)


def _running_text(data: TextData | PhrasesData, split: SplitName) -> list[Pair]:
    """Running text as one pair without a source; none where no text is left to test with.

    The end of the text validates, and what `tested` names is before it. Other sentences of the phrase book test.
    """
    if isinstance(data, PhrasesData):
        from ..data.corpora.phrasebook import pairs

        tests = split == "test"
        count = max(1, round(data.sentences * data.held_out)) if tests else data.sentences
        part: Literal["train", "test"] = "test" if tests else "train"
        sentences = pairs(count, seed=data.seed, lectures=data.lectures, split=part)
        whole, tested = "".join(f"{pair.source}\n" for pair in sentences), 0.0
        if tests:
            return [Pair("nothing", whole, 0)]
    else:
        root, tested = folder(data.root), data.tested
        whole = "".join(text(require_path(root / name, "files", data.root)) for name in data.files)
    ends = [int(len(whole) * (1 - data.held_out - tested)), int(len(whole) * (1 - data.held_out)), len(whole)]
    begin, end = {"train": (0, ends[0]), "test": (ends[0], ends[1]), "valid": (ends[1], ends[2])}[split]
    chosen = whole[begin:end]
    if split == "test" and not tested:
        return []
    if not chosen.strip():
        raise ValueError(
            f"the text has {count_of(len(whole), 'character')}, and none is left for data.{split}; give more text"
        )
    return [Pair("nothing", chosen, 0)]


def _generator_pairs(data: GeneratedData, split: SplitName) -> PairReader:
    module = import_module(f"..data.corpora.{data.kind}", __package__)  # type: ignore[attr-defined]
    if split == "train":
        return PairReader(list(module.pairs(data.train, seed=data.seed, **data.options)))
    # From the held-out part of the generator; the first pairs test, the others validate.
    held_out = list(module.pairs(data.test + data.valid, seed=data.seed, split="test", **data.options))
    return PairReader(held_out[: data.test] if split == "test" else held_out[data.test :])


OTHER_SPLITS = ("valid", "test")


def require_other_names(data: FilesData | StreamData) -> None:
    """Raise an error where a file, or a split of the dataset, is in `train` and in `valid` or `test`.

    Of a pair of files, the one with the sources counts: two splits may have the same file of labels.
    """
    for other in OTHER_SPLITS:
        common = set(_source_names(data, "train")) & set(_source_names(data, other))
        if common:
            raise ValueError(
                f"{', '.join(sorted(common)[:3])}: in data.train = {data.train} and in data.{other} = "
                f"{getattr(data, other)}: the pairs would be trained on; {_advice(data, other)}"
            )


def require_other_contents(data: FilesData | StreamData) -> None:
    """Raise an error where a file of `valid` or `test` is a copy of one of `train`. Folders are not compared."""
    if isinstance(data, StreamData) and data.dataset:
        return
    sizes: dict[int, list[str]] = {}
    for name in _source_names(data, "train"):
        if Path(name).is_file():
            sizes.setdefault(os.path.getsize(name), []).append(name)
    for other in OTHER_SPLITS:
        for name in _source_names(data, other):
            size = os.path.getsize(name) if Path(name).is_file() else 0
            for trained in sizes.get(size, []) if size else []:
                if sha256(trained) == sha256(name):
                    raise ValueError(
                        f"{trained} of data.train and {name} of data.{other} have the same content: the pairs would "
                        f"be trained on; {_advice(data, other)}"
                    )


def _source_names(data: FilesData | StreamData, split: str) -> Iterator[str]:
    """The files with the sources of a split, without symbolic links; of a dataset, the names of its splits."""
    sources: list[str | list[str]] = getattr(data, split)
    if isinstance(data, StreamData) and data.dataset:
        yield from (name for source in sources for name in file_names(source))
        return
    root = folder(data.root)
    if isinstance(data, StreamData):
        sources = expand_patterns(root, sources)
    yield from (os.path.realpath(root / file_names(source)[0]) for source in sources)


def _advice(data: FilesData | StreamData, other: str) -> str:
    if isinstance(data, StreamData):
        return "give data.train other names, or a pattern that leaves them out"
    held_out = ", or leave data.valid empty and set data.hold_out = 10 to validate with a tenth of data.train"
    return f"give data.{other} another file{held_out if other == 'valid' else ''}"


VALID_PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text
TYPICAL = 400  # training pictures whose statistics are kept, to notice others that are unlike them
STREAM_SAMPLE = 300_000  # rows of a stream that the vocabulary is learned from, unless tokenizer.sample says other


class CorpusPreparation:
    """Writes data/ of a run, whole or not at all.

    Text files are encoded by several processes, and what they make is kept in a cache that runs share. Generated
    corpora, pictures and sounds are encoded by this process into the run's folder. Of a stream only the validation set
    is encoded.
    """

    def __init__(self, run: Run, task: Task, say: Callable[[str], None]) -> None:
        self.run, self.task, self.say = run, task, say
        self.recipe: Recipe = run.recipe
        self.cache = PreparationCache()
        self._scans: dict[CorpusPart, tuple[FileScan, ...]] = {}

    def prepare(self) -> None:
        data = self.recipe.data
        row = next(iter(read(data, "train", self.recipe.source.kind)), None)
        if row is None:
            raise ValueError(f"{split_name(data, 'train')} holds no usable rows")
        if isinstance(data, FilesData | StreamData) and (
            remark := header_remark(row, data.columns, 'data.columns = ["{}", "{}"]')
        ):
            self.say(remark)
        tokenizers = self._tokenizers()
        with replacing_folder(self.run.data) as unfinished:
            tokenizers.save(unfinished)
            if not isinstance(data, StreamData):  # which is encoded while training
                self._encode("train", tokenizers, unfinished)
            self._encode("valid", tokenizers, unfinished)
            files = [path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file()]
            write_checksums(unfinished, files)
        self._record_files()

    @property
    def _in_blocks(self) -> bool:
        """Whether the data is text in files, which several processes share."""
        return isinstance(self.recipe.data, FilesData) and self.recipe.source.kind == "text"

    def _split(self, name: str) -> Split:
        """The files of a split; a file that was not met before is read and hashed."""
        data = self.recipe.data
        assert isinstance(data, FilesData)
        parts = tuple(corpus_parts(data, "train" if data.hold_out else name))
        for part in parts:
            if part not in self._scans:
                self._scans[part] = part.scan()
        valid = name == "valid"
        return Split(parts, tuple(self._scans[part] for part in parts), data.longest, data.hold_out, valid, valid)

    def _encode(self, name: str, tokenizers: TokenizerPair, folder: Path) -> None:
        """Encode a split into a folder of its name, and the text of the validation set beside it."""
        data = self.recipe.data
        every = data.hold_out if name == "valid" and isinstance(data, FilesData) else 0
        try:
            if self._in_blocks:
                encoded, reports = self._encode_blocks(name, folder)
            else:
                encoded, reports = self._encode_rows(name, tokenizers, folder)
        except UnknownLabelError as error:
            if init := self.recipe.training.init:
                raise ValueError(
                    f"{error}; training.init = {init!r} is a classifier, and this recipe trains it on (task = "
                    '"classify"), so every target is one of its labels: training.init_vocabulary = "extend" adds new '
                    "ones; for another task start from another model, or name the task and the parts to take "
                    "(training.init_parts)"
                ) from None
            if not every:
                raise
            raise ValueError(
                f"{error}; data.hold_out = {every} keeps this row to validate with, and no row that is left to "
                "train on has that label: give it more rows, or name a file in data.valid"
            ) from None
        # Bad rows of a file that rows are held out of were reported with its training part.
        for remark in split_remarks(self.task, name, encoded, [] if every else reports, every):
            self.say(remark)
        for remark in unknown_token_remarks(self.recipe, tokenizers, name, encoded):
            self.say(remark)

    def _encode_blocks(self, name: str, folder: Path) -> tuple[EncodedCorpus, list[PartReport]]:
        """Of text files; the tokenizers are in the folder."""
        split = self._split(name)
        with progress_of(f"encoding {name}", split.rows) as advance:
            reports = prepare_split(split, folder, folder / name, self.cache, self.say, advance)
        texts = folder / name / TEXTS
        if split.keeps_pairs:
            texts.rename(folder / VALID_PAIRS)
        else:
            texts.unlink()
        return EncodedCorpus.load(folder / name), reports

    def _encode_rows(
        self, name: str, tokenizers: TokenizerPair, folder: Path
    ) -> tuple[EncodedCorpus, list[PartReport]]:
        corpus, data = read(self.recipe.data, name, self.recipe.source.kind), self.recipe.data  # type: ignore[arg-type]
        rows = CountedRows(corpus, f"encoding {name}")
        encoded = EncodedCorpus.build(
            rows, tokenizers, longest=longest_side(data), folder=folder / name, on_bad=data.on_bad
        )
        if name == "valid":
            kept = set(encoded.rows.tolist())
            with (folder / VALID_PAIRS).open("w", encoding="utf-8") as file:
                for pair in corpus:
                    if pair.row in kept:
                        file.write(json.dumps([pair.row, pair.source, pair.target]) + "\n")
        return encoded, [PartReport(part.reasons, part.first) for part in corpus.parts]

    def _record_files(self) -> None:
        """The checksums of the corpora, or of what was prepared where they are generated; and of `training.init`."""
        provenance = Provenance(self.run.folder)
        root, files = corpus_files(self.recipe.data)
        prepared = [path for path in sorted(self.run.data.rglob("*")) if path.is_file()]
        provenance.record_files("data", files or prepared, root if files else self.run.folder)
        if isinstance(self.recipe.data, StreamData) and self.recipe.data.dataset:
            provenance.record_dataset(self.recipe.data.dataset, self.recipe.data.revision)
        if self.recipe.training.init:
            folder, _ = find(self.recipe.training.init)
            provenance.record_files("init", [folder / "model.safetensors"], folder)

    def _tokenizers(self) -> TokenizerPair:
        """Those of the run, with every tag of the recipe as one token."""
        tokenizers = self._loaded_or_learned()
        for tag in filter(None, getattr(self.recipe.data, "tags", [])):
            tokens = tokenizers.source.encode(tag)
            if len(tokens) != 1 or tokens[0] == UNKNOWN:
                raise ValueError(
                    f"data.tags: {tag!r} is not one token of the vocabulary that tokenizers are taken from"
                )
        return tokenizers

    def _loaded_or_learned(self) -> TokenizerPair:
        recipe = self.recipe
        if recipe.tokenizer.load:
            return TokenizerPair.load(recipe.tokenizer.load)
        # The vocabulary is learned from text without tags, which are no words.
        tagged = getattr(recipe.data, "tags", [])
        data = recipe.with_settings("data", tags=[]).data if tagged else recipe.data
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
        if not self._in_blocks or recipe.tokenizer.kind not in ("bpe", "unigram", "word", "character"):
            tokenizers = self._learn(train)
        else:
            tokenizers = self._cached_or_learned(train, list(filter(None, tagged)))
        # Small corpora have fewer pieces or words than tokenizer.size.
        sides = {"source ": tokenizers.source, "target ": tokenizers.target}
        for side, tokenizer in ({"": tokenizers.source} if tokenizers.joint else sides).items():
            if isinstance(tokenizer, Tokenizer):
                learned = len(tokenizer) - len(tokenizer.tags) - recipe.tokenizer.slots
                self.say(f"{side}vocabulary: {learned:,} of at most {recipe.tokenizer.size:,} tokens")
        return tokenizers

    def _cached_or_learned(self, train: Iterable[Pair], tags: list[str]) -> TokenizerPair:
        """Of text files: from the cache, or learned and kept there."""
        recipe, split = self.recipe, self._split("train")
        split = replace(split, parts=tuple(replace(part, tag="") for part in split.parts))
        settings = recipe.tokenizer.to_dict()
        key = cache_key(content=split.content, tokenizer=settings, task=recipe.base_task, tags=tags)
        with tempfile.TemporaryDirectory(prefix="vocabulary-", suffix=".unfinished", dir=self.run.folder) as folder:
            entry = Path(folder) / "entry"
            if self.cache.take("vocabularies", key, entry, self.say):
                return TokenizerPair.load(entry)
        # Labels, words and letters may be rare, so all rows are read for them.
        has_pieces = recipe.tokenizer.kind in ("bpe", "unigram") and recipe.base_task != "classify"
        sample = recipe.tokenizer.sample if has_pieces else 0
        sampled = sample and split.rows > sample
        if sampled:
            self.say(f"it is learned from {sample:,} of {split.rows:,} rows (tokenizer.sample)")
        tokenizers = self._learn(SampledPairs(split, sample) if sampled else train)
        if tags:
            tokenizers.source.add_tags(tags)
        split.require_unchanged()
        self.cache.keep("vocabularies", key, tokenizers.save, self.say)
        return tokenizers

    @property
    def _activity(self) -> str:
        """What is done with the rows. A classifier of sounds has labels on one side, and no words on the other."""
        has_words = self.recipe.source.kind == "text" or self.recipe.base_task != "classify"
        return "learning the vocabulary" if has_words else "collecting the labels"

    def _learn(self, pairs: Iterable[Pair]) -> TokenizerPair:
        recipe, how = self.recipe, self.recipe.tokenizer
        source: Any = None if recipe.source.kind == "text" else make_reader(**recipe.source.to_dict())
        if isinstance(source, PictureReader):
            pictures = dict.fromkeys(pair.source for pair in pairs)  # several captions may name one picture
            source.learn_typical(islice(pictures, TYPICAL))
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
        skips = chain([self.skip], repeat(0))
        parts = zip(self.corpus.parts, skips, strict=False)
        rows = (pair for part, skip in parts for pair in islice(part, skip, skip + share))
        return islice(rows, self.size)


UNKNOWN_SHARE = 0.01
"""Of the tokens of a side; where more are <unk>, it is said."""
BLOCK = 1 << 22
"""Tokens that are counted at a time: a corpus may be larger than the memory."""


def longest_side(data: Data) -> int | None:
    """`data.longest`; None for running text, which is cut into windows later."""
    return None if data.kind in ("text", "phrases") else data.longest


def split_remarks(
    task: Task, name: str, encoded: EncodedCorpus, reports: list[PartReport], every: int
) -> Iterator[str]:
    """How large a split is and what was left out of it; then an error where nothing is left.

    `every` is data.hold_out of a validation set that is held out, else 0.
    """
    data = task.recipe.data
    unreadable, longest = encoded.about.unreadable, longest_side(data)
    skipped = sum(report.reasons.total() for report in reports) + len(unreadable)
    left_out = (
        f"; {count_of(skipped, 'bad row')} skipped, "
        f"{encoded.about.dropped:,} longer than {_length(task, longest)} left out"
    )
    yield f"{name}: {task.amount(encoded)}{'' if longest is None else left_out}"
    for problem in unreadable[:5]:
        yield f"  {problem}"
    for report in reports:
        if report.reasons:
            yield f"  {skipped_rows(report.reasons)}; the first of each kind:"
            for place in report.first.values():
                yield f"  {place}"
    if len(encoded):
        return
    if every and not encoded.about.dropped + len(unreadable):
        raise ValueError(
            f"data.hold_out = {every} holds out one row of each {every} to validate on, and there are too few "
            "rows for one: lower it, or name a file in data.valid"
        )
    raise ValueError(
        f"{split_name(data, name)} holds no usable rows: {count_of(skipped, 'bad row')} skipped, "
        f"and {count_of(encoded.about.dropped, 'row')} longer than data.longest = {_length(task, longest)}"
        + (f"; the first: {unreadable[0]}" if unreadable else "")
    )


def _length(task: Task, longest: int | None) -> str:
    """`data.longest` with its unit; of sounds both sides count, and a label or a spelling is always the shorter one."""
    count = longest or 0
    return f"{count_of(count, 'frame')} of 10 ms" if task.recipe.source.kind == "sound" else count_of(count, "token")


def unknown_token_remarks(
    recipe: Recipe, tokenizers: TokenizerPair, split: str, encoded: EncodedCorpus
) -> Iterator[str]:
    """How many tokens of a side are <unk>, where these are more than `UNKNOWN_SHARE`, and what to do about it."""
    sides = {"source": (tokenizers.source, encoded.source), "target": (tokenizers.target, encoded.target)}
    advice = "a larger tokenizer.size has more words, and the kinds bpe and unigram split unknown ones into pieces"
    if recipe.training.init and recipe.training.init_vocabulary == "keep":
        advice = (
            'the vocabulary is that of training.init; training.init_vocabulary = "extend" adds what it lacks '
            "(docs/training.md, Start from another model)"
        )
    elif recipe.tokenizer.kind != "word":
        advice = "they are of letters that the rows which the vocabulary was learned from do not have"
    for side, (tokenizer, tokens) in sides.items():
        if not isinstance(tokenizer, Tokenizer):
            continue
        unknown = words = 0
        for begin in range(0, len(tokens), BLOCK):
            block = tokens[begin : begin + BLOCK]
            unknown += int(np.count_nonzero(block == UNKNOWN))
            words += int(np.count_nonzero(block > END))
        if unknown > UNKNOWN_SHARE * words:
            yield f"  {split}: {unknown / words:.1%} of the {side} tokens are <unk>: {advice}"


def split_name(data: Data, split: str) -> str:
    """A split and its files, as the recipe names them."""
    if split == "valid" and isinstance(data, FilesData) and data.hold_out:
        return f"what data.hold_out = {data.hold_out} holds out of data.train"
    if split == "valid" and isinstance(data, StreamData) and not data.valid:
        return f"data.train (its first {count_of(data.valid_pairs, 'pair')}, by data.valid_pairs)"
    files = getattr(data, split, None)
    if not isinstance(files, list):
        return f"data.{split}"
    names = [" and ".join([file] if isinstance(file, str) else file) for file in files]
    return f"data.{split} ({', '.join(names)})"


REPORT = 10.0  # seconds between lines


@contextmanager
def progress_of(activity: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A function to be called with the number of rows that were done since the last call; it says so on stderr."""
    done, last = 0, time.monotonic()

    def advance(rows: int) -> None:
        nonlocal done, last
        done += rows
        if (now := time.monotonic()) - last >= REPORT:
            rows_so_far = count_of(done, "row") if total is None else f"{done:,} of {count_of(total, 'row')}"
            print(f"{activity}: {rows_so_far} so far", file=sys.stderr, flush=True)
            last = now

    yield advance


class CountedRows:
    """Pairs, with a progress while they are read. They may be read more than once."""

    def __init__(self, pairs: Iterable[Pair], activity: str) -> None:
        self.pairs, self.activity = pairs, activity

    def __iter__(self) -> Iterator[Pair]:
        with progress_of(self.activity) as advance:
            for pair in self.pairs:
                yield pair
                advance(1)
