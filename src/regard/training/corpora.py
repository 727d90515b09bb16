"""The corpus of each split of a recipe, and its preparation: a vocabulary and rows as ids, in data/ of a run."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..data.corpus_stream import CorpusPart, PairStream, held_out_pairs, is_held_out
from ..data.encoding import EncodedCorpus
from ..data.rows import Pair, PairReader, header_remark, skipped_rows, text
from ..data.tokenizer import Tokenizer
from ..data.tokenizer_pair import TokenizerPair, UnknownLabelError, make_reader
from ..decoding.model_folders import find
from ..files import replacing_folder, sha256, write_checksums, write_text
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
            raise ValueError(f"no row is left: {count_of(self.skipped, 'bad row')} skipped; the first: {first}")

    @property
    def skipped(self) -> int:
        """Bad rows left out in the latest iteration."""
        return sum(part.skipped for part in self.parts)


def read(data: Data, split: SplitName, source: str = "text") -> Corpus:
    """The corpus of a split; `source` is the kind of its source side."""
    if isinstance(data, FilesData):
        root, every = None if source == "text" else folder(data.root), data.hold_out
        if not every or split == "test":
            return Corpus(pair_stream(data, split).readers(), root, tags=data.tags)
        readers = pair_stream(data, "train").readers()
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


def pair_stream(data: FilesData | StreamData, split: str = "train", seed: int = 0) -> PairStream:
    """The files of a split, in order; of `train` of a stream, without the pairs that validate."""
    root, streams = folder(data.root), isinstance(data, StreamData)
    sources, parts = getattr(data, split), []
    for source in expand_patterns(root, sources) if streams else sources:
        files = tuple(str(require_path(root / name, split, data.root)) for name in file_names(source))
        parts.append(CorpusPart(files, tuple(data.columns) if len(files) == 1 else None, data.on_bad))
    held_out = data.valid_pairs if isinstance(data, StreamData) and split == "train" and not data.valid else 0
    return PairStream(tuple(parts), seed, held_out)


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
    if isinstance(data, FilesData | StreamData):
        require_other_names(data)
    for split in get_args(SplitName):
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
    """Raise an error where a file is in `train` and in `valid` or `test`.

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
    """The files with the sources of a split, without symbolic links."""
    root, sources = folder(data.root), getattr(data, split)
    if isinstance(data, StreamData):
        sources = expand_patterns(root, sources)
    yield from (os.path.realpath(root / file_names(source)[0]) for source in sources)


def _advice(data: FilesData | StreamData, other: str) -> str:
    if isinstance(data, StreamData):
        return "give data.train other names, or a pattern that leaves them out"
    held_out = ", or leave data.valid empty and set data.hold_out = 10 to validate with a tenth of data.train"
    return f"give data.{other} another file{held_out if other == 'valid' else ''}"


VALID_PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text
SMALL = 4 << 20  # bytes of files that one process encodes sooner than several
PROCESSES = 4  # that encode: one process reads for all of them, in a quarter of the time that encoding takes
STREAM_SAMPLE = 300_000  # rows of a stream that the vocabulary is learned from, unless tokenizer.sample says other


class CorpusPreparation:
    """Writes data/ of a run, whole or not at all. Of a stream only the validation set is encoded."""

    def __init__(self, run: Run, task: Task, say: Callable[[str], None]) -> None:
        self.run, self.task, self.say = run, task, say
        self.recipe: Recipe = run.recipe

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

    def _encode(self, name: str, tokenizers: TokenizerPair, folder: Path) -> None:
        """Encode a split into a folder of its name, and the text of the validation set beside it."""
        data = self.recipe.data
        every = data.hold_out if name == "valid" and isinstance(data, FilesData) else 0
        corpus = read(data, name, self.recipe.source.kind)  # type: ignore[arg-type]
        _, files = corpus_files(data)
        several = sum(file.stat().st_size for file in files) > SMALL
        processes = min(len(os.sched_getaffinity(0)), PROCESSES) if several and name == "train" else 1
        how: dict[str, Any] = {"longest": longest_side(data), "on_bad": data.on_bad, "processes": processes}
        try:
            rows = CountedRows(corpus, f"encoding {name}")
            encoded = EncodedCorpus.build(rows, tokenizers, folder=folder / name, **how)
        except UnknownLabelError as error:
            if init := self.recipe.training.init:
                raise ValueError(
                    f"{error}; training.init = {init!r} is a classifier, and this recipe trains it on (task = "
                    '"classify"), so every target is one of its labels: take its encoder alone for others '
                    '(training.init_parts = ["encoder"]); for another task start from another model, or name the task '
                    "and the parts to take (training.init_parts)"
                ) from None
            if not every:
                raise
            raise ValueError(
                f"{error}; data.hold_out = {every} keeps this row to validate with, and no row that is left to "
                "train on has that label: give it more rows, or name a file in data.valid"
            ) from None
        if name == "valid":
            kept = set(encoded.rows.tolist())
            lines = (json.dumps([pair.row, pair.source, pair.target]) + "\n" for pair in corpus if pair.row in kept)
            write_text(folder / VALID_PAIRS, "".join(lines))
        # Bad rows of a file that rows are held out of were reported with its training part.
        for remark in split_remarks(self.task, name, encoded, [] if every else corpus.parts, every):
            self.say(remark)
        for remark in unknown_token_remarks(self.recipe, tokenizers, name, encoded):
            self.say(remark)

    def _record_files(self) -> None:
        """The checksums of the corpora, or of what was prepared where they are generated; and of `training.init`."""
        provenance = Provenance(self.run.folder)
        root, files = corpus_files(self.recipe.data)
        prepared = [path for path in sorted(self.run.data.rglob("*")) if path.is_file()]
        provenance.record_files("data", files or prepared, root if files else self.run.folder)
        if self.recipe.training.init:
            folder, _ = find(self.recipe.training.init)
            provenance.record_files("init", [folder / "model.safetensors"], folder)

    def _tokenizers(self) -> TokenizerPair:
        """Those of the run, with every tag of the recipe as one token."""
        tokenizers = self._loaded_or_learned()
        tags = list(filter(None, getattr(self.recipe.data, "tags", [])))
        if tags and not (self.recipe.tokenizer.load or self.recipe.training.init):
            tokenizers.source.add_tags(tags)
        for tag in tags:
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
        # Labels, words and letters may be rare, so all rows are read for them.
        sampled = recipe.tokenizer.kind in ("bpe", "unigram") and recipe.base_task != "classify"
        if isinstance(data, FilesData) and sampled and (size := recipe.tokenizer.sample):
            total = sum(1 for part in corpus.parts for _ in part.rows())
            if total > size:
                self.say(f"it is learned from {size:,} of {total:,} rows (tokenizer.sample)")
                train = EvenSample(corpus, size, total)
        tokenizers = self._learn(train)
        # Small corpora have fewer pieces or words than tokenizer.size.
        sides = {"source ": tokenizers.source, "target ": tokenizers.target}
        for side, tokenizer in ({"": tokenizers.source} if tokenizers.joint else sides).items():
            if isinstance(tokenizer, Tokenizer):
                learned = len(tokenizer) - len(tokenizer.tags) - recipe.tokenizer.slots
                self.say(f"{side}vocabulary: {learned:,} of at most {recipe.tokenizer.size:,} tokens")
        return tokenizers

    @property
    def _activity(self) -> str:
        """What is done with the rows. A classifier of sounds has labels on one side, and no words on the other."""
        has_words = self.recipe.source.kind == "text" or self.recipe.base_task != "classify"
        return "learning the vocabulary" if has_words else "collecting the labels"

    def _learn(self, pairs: Iterable[Pair]) -> TokenizerPair:
        recipe, how = self.recipe, self.recipe.tokenizer
        source: Any = None if recipe.source.kind == "text" else make_reader(**recipe.source.to_dict())
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


class EvenSample:
    """About `size` of `total` rows of a corpus, evenly spread over it; each iteration reads it again.

    Row i of n is one of them if ⌊(i + 1) · size / n⌋ > ⌊i · size / n⌋.
    """

    def __init__(self, corpus: Corpus, size: int, total: int) -> None:
        self.corpus, self.size, self.total = corpus, size, total

    def __iter__(self) -> Iterator[Pair]:
        size, total = self.size, self.total
        return (pair for pair in self.corpus if (pair.row + 1) * size // total > pair.row * size // total)


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
    task: Task, name: str, encoded: EncodedCorpus, reports: list[PairReader], every: int
) -> Iterator[str]:
    """How large a split is and what was left out of it; then an error where nothing is left.

    `every` is data.hold_out of a validation set that is held out, else 0.
    """
    data = task.recipe.data
    unreadable, longest = encoded.about.unreadable, longest_side(data)
    skipped = sum(report.skipped for report in reports) + len(unreadable)
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
    if recipe.training.init:
        advice = "the vocabulary is that of training.init: a new model learns one of its own"
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


class CountedRows:
    """Pairs, with a progress while they are read. They may be read more than once."""

    def __init__(self, pairs: Iterable[Pair], activity: str) -> None:
        self.pairs, self.activity = pairs, activity

    def __iter__(self) -> Iterator[Pair]:
        last = time.monotonic()
        for done, pair in enumerate(self.pairs, 1):
            yield pair
            if (now := time.monotonic()) - last >= REPORT:
                print(f"{self.activity}: {count_of(done, 'row')} so far", file=sys.stderr, flush=True)
                last = now
