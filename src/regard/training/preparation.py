"""Prepares the data of a run: its vocabulary, and its corpora as ids, in the folder data/."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.blocks import CorpusPart, FileScan, SampledPairs, Split
from ..data.encoding import EncodedCorpus
from ..data.media import PictureReader
from ..data.preparation import PAIRS as TEXTS
from ..data.preparation import PartReport, PreparationCache, cache_key, prepare_split
from ..data.rows import Pair, header_remark, skipped_rows
from ..data.tokenizer import Tokenizer
from ..data.tokenizer_pair import FIRST, TokenizerPair, UnknownLabelError, make_reader, quoted
from ..decoding.load_model_and_tokenizers import find
from ..files import read_object, replacing_folder, write_checksums, write_text
from ..messages import count_of
from ..special_tokens import END, UNKNOWN
from .corpora import Corpus, corpus_files, corpus_parts, read
from .fine_tuning import WarmStart
from .recipe_sections import FilesData, StreamData
from .run import Provenance
from .streams import POSITIONS as STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .recipe import Recipe
    from .recipe_sections import Data
    from .run import Run
    from .tasks import Task

VALID_PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text
STREAM_KEYS = {"kind", "train", "dataset", "configuration", "revision", "columns", "root"}
"""Keys of [data] that decide which rows a stream has, and in which order."""
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
        first = not self.run.data.exists()
        tokenizers = self._tokenizers()
        with replacing_folder(self.run.data) as unfinished:
            tokenizers.save(unfinished)
            if not isinstance(data, StreamData):  # which is encoded while training
                self._encode("train", tokenizers, unfinished)
            self._encode("valid", tokenizers, unfinished)
            write_settings(self.run, unfinished)
            files = [path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file()]
            write_checksums(unfinished, files)
            self._copy_positions(unfinished)  # they are written to while training: no checksum
        self._record_files(first=first)

    def _copy_positions(self, unfinished: Path) -> None:
        """Take the positions in the stream to the new folder, if the stream has the same rows as before."""
        if not (self.run.data / STREAM).is_file():
            return
        if not isinstance(self.recipe.data, StreamData) or changed_keys(self.run) & STREAM_KEYS:
            self.say("the stream begins again: the positions are those of another stream")
            return
        shutil.copyfile(self.run.data / STREAM, unfinished / STREAM)

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
        if name == "train" and self.recipe.base_task == "classify":
            for remark in rare_label_remarks(data, tokenizers.target.names, encoded):
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

    def _record_files(self, *, first: bool) -> None:
        """The checksums of the corpora, or of what was prepared where they are generated; and of `training.init`.

        The latter only at the first preparation: a run that has begun no longer needs that model.
        """
        provenance = Provenance(self.run.folder)
        root, files = corpus_files(self.recipe.data)
        prepared = [path for path in sorted(self.run.data.rglob("*")) if path.is_file()]
        provenance.record_files("data", files or prepared, root if files else self.run.folder)
        if isinstance(self.recipe.data, StreamData) and self.recipe.data.dataset:
            provenance.record_dataset(self.recipe.data.dataset, self.recipe.data.revision)
        if first and self.recipe.training.init:
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
        if self.run.data.exists():  # a run that goes on with other data
            return TokenizerPair.load(self.run.data)
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
        sample = self._sample_size
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

    @property
    def _sample_size(self) -> int:
        """Rows that the vocabulary is learned from; 0: all. Labels, words and letters may be rare, so all are read."""
        recipe = self.recipe
        has_pieces = recipe.tokenizer.kind in ("bpe", "unigram") and recipe.base_task != "classify"
        return recipe.tokenizer.sample if has_pieces else 0

    def _learn(self, pairs: Iterable[Pair]) -> TokenizerPair:
        recipe, how = self.recipe, self.recipe.tokenizer
        source: Any = None if recipe.source.kind == "text" else make_reader(**recipe.source.to_dict())
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


SETTINGS = "settings.json"  # the [data] section that the corpora of data/ were prepared from


def write_settings(run: Run, folder: Path | None = None) -> None:
    """Into a folder that is being prepared; or, where the file is missing, into the one that is there."""
    there = run.data / SETTINGS
    if folder is None and (not run.data.exists() or there.exists()):
        return
    text = json.dumps({"data": run.recipe.data.to_dict()}, indent=1) + "\n"
    write_text(there if folder is None else folder / SETTINGS, text)


def settings_changed(run: Run) -> bool:
    """Whether data/ was prepared from other settings than those of the recipe."""
    return bool(changed_keys(run))


def changed_keys(run: Run) -> set[str]:
    """The keys of [data] that are not those that data/ was prepared from.

    A key that the file lacks came with a later version of regard: the data was prepared with its default.
    """
    file = run.data / SETTINGS
    if not file.is_file():
        return set()
    data, stored = run.recipe.data, read_object(file).get("data")
    now = data.to_dict()
    if not isinstance(stored, dict):
        return set(now)
    defaults = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default for each in fields(data)
    }
    added = {name: value for name, value in now.items() if name not in stored and value == defaults[name]}
    former = {**added, **stored}
    return {name for name in {**former, **now} if name not in former or name not in now or former[name] != now[name]}


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


def rare_label_remarks(data: Data, names: list[str], encoded: EncodedCorpus) -> Iterator[str]:
    """Labels with a single row: often an error, perhaps the header of the file."""
    rows = np.bincount(encoded.target, minlength=FIRST + len(names))[FIRST:]
    rare = [quoted(names[n]) for n in np.flatnonzero(rows == 1)]
    if not rare:
        return
    named = ", ".join(rare[:5]) + (f" and {len(rare) - 5:,} more" if len(rare) > 5 else "")
    message = f"label {named} has one row" if len(rare) == 1 else f"labels {named} have one row each"
    if isinstance(data, FilesData) and isinstance(data.columns[0], int):
        message += '; if the first line is a header, name the columns: data.columns = ["text", "label"], say'
    yield f"  {message}"


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
