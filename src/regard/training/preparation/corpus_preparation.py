"""Prepares the corpora of a recipe: learns the vocabulary, and encodes the splits into the run's folder."""

from __future__ import annotations

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...atomic_write import replacing_folder
from ...checksums import write_checksums
from ...data import UNKNOWN, EncodedCorpus, TokenizerPair
from ...data.label_set import FIRST, UnknownLabelError, quoted
from ...data.pair_reader import skipped_rows
from ...data.picture_reader import PictureReader
from ...data.preparation.preparation_cache import PreparationCache, cache_key
from ...data.preparation.prepared_split import PAIRS as TEXTS
from ...data.preparation.prepared_split import PartReport, Split, prepare_split
from ...data.preparation.vocabulary_sample import SampledPairs
from ...data.source_reader import make_reader
from ...decoding.load_model_and_tokenizers import find
from ..recipe.data_section import FilesData
from ..run.provenance import Provenance
from ..trainer.warm_start import WarmStart
from .preparation_progress import CountedRows, progress_of
from .prepared_settings import write_settings
from .recipe_corpus import corpus_files, corpus_parts, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...data import Pair
    from ...data.preparation.corpus_part import CorpusPart
    from ...data.preparation.line_blocks import FileScan
    from ..recipe.recipe import Recipe
    from ..run.run_folder import Run
    from ..tasks.task import Task

TYPICAL = 400  # training pictures whose statistics are kept, to notice others that are unlike them
VALID_PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text


class CorpusPreparation:
    """Writes data/ of a run, whole or not at all.

    Text files are read and encoded by several processes, and what they make is kept in a cache that runs share.
    Generated corpora, pictures and sounds are encoded by this process into the run's folder.
    """

    def __init__(self, run: Run, task: Task, say: Callable[[str], None]) -> None:
        self.run, self.task, self.say = run, task, say
        self.recipe: Recipe = run.recipe
        self._scans: dict[CorpusPart, tuple[CorpusPart, tuple[FileScan, ...]]] = {}

    def prepare(self) -> None:
        train = read(self.recipe.data, "train", self.recipe.source.kind)
        if next(iter(train), None) is None:
            raise ValueError(f"{self._named('train')} holds no usable rows")
        first = not self.run.data.exists()
        with tempfile.TemporaryDirectory(prefix="cache-", suffix=".unfinished", dir=self.run.folder) as own:
            cache = self._cache(own)
            tokenizers = self._tokenizers(cache)
            self._require_tags(tokenizers)
            with replacing_folder(self.run.data) as unfinished:
                tokenizers.save(unfinished)
                encoded = self._encode("train", tokenizers, unfinished, cache)
                if self.recipe.base_task == "classify":
                    self._remark_rare(tokenizers.target.names, encoded)
                self._encode("valid", tokenizers, unfinished, cache)
                self._require_unchanged()
                write_settings(self.run, unfinished)
                files = [path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file()]
                write_checksums(unfinished, files)
        self._record_files(first=first)

    def _cache(self, own: str) -> PreparationCache:
        """The shared cache; where it cannot be written, one of this run's own, which is removed at its end."""
        cache = PreparationCache()
        if not self._in_blocks:
            return cache
        try:
            with cache.lock("writable"):
                return cache
        except OSError as error:
            self.say(f"the cache {cache.folder} cannot be written ({error.strerror}): nothing is kept for other runs")
            return PreparationCache(Path(own))

    @property
    def _in_blocks(self) -> bool:
        """Whether the data is text in files, which several processes share."""
        return isinstance(self.recipe.data, FilesData) and self.recipe.source.kind == "text"

    def _require_tags(self, tokenizers: TokenizerPair) -> None:
        for tag in filter(None, getattr(self.recipe.data, "tags", [])):
            tokens = tokenizers.source.encode(tag)
            if len(tokens) != 1 or tokens[0] == UNKNOWN:
                raise ValueError(
                    f"data.tags: {tag!r} is not one token of the vocabulary that tokenizers are taken from"
                )

    def _tokenizers(self, cache: PreparationCache) -> TokenizerPair:
        recipe = self.recipe
        tags = list(filter(None, getattr(recipe.data, "tags", [])))
        # The vocabulary is learned from text without tags, which are no words.
        data = recipe.data.model_copy(update={"tags": []}) if tags else recipe.data
        train = read(data, "train", recipe.source.kind)
        if self.run.data.exists():  # a run that goes on with other data
            return TokenizerPair.load(self.run.data)
        if recipe.tokenizer.load:
            return TokenizerPair.load(recipe.tokenizer.load)
        if recipe.training.init:
            return WarmStart(recipe).tokenizers(train)
        self.say("learning the vocabulary")
        if not self._in_blocks or recipe.tokenizer.kind not in ("bpe", "unigram", "word", "character"):
            return self._learn(train)
        split = self._split("train")
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
                self._require_unchanged()
                entry = cache.path("vocabularies", key)
                with replacing_folder(entry) as unfinished:
                    tokenizers.save(unfinished)
                    write_checksums(unfinished, [file.name for file in unfinished.iterdir()])
            return TokenizerPair.load(entry)

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
            CountedRows(pairs, "learning the vocabulary"),
            joint=how.joint,
            lowercase=how.lowercase,
            punctuation=how.punctuation,
            source=source,
            labels=recipe.base_task == "classify",
            slots=how.slots,
        )

    def _split(self, name: str) -> Split:
        data = self.recipe.data
        assert isinstance(data, FilesData)
        scanned = []
        for part in corpus_parts(data, "train" if data.hold_out else name):
            if part not in self._scans:
                self._scans[part] = part.scan()
            scanned.append(self._scans[part])
        return Split(
            tuple(part for part, _ in scanned),
            tuple(scans for _, scans in scanned),
            longest=data.longest,
            hold_out=data.hold_out,
            valid=name == "valid",
            keeps_pairs=name == "valid",
        )

    def _require_unchanged(self) -> None:
        """Raise an error where a file was changed since it was hashed."""
        for part, scans in self._scans.values():
            part.require_unchanged(scan.stamp for scan in scans)

    def _encode(self, name: str, tokenizers: TokenizerPair, folder: Path, cache: PreparationCache) -> EncodedCorpus:
        """Encode a split into a folder of its name, and the text of the validation set beside it."""
        data = self.recipe.data
        every = data.hold_out if name == "valid" and isinstance(data, FilesData) else 0
        try:
            if self._in_blocks:
                encoded, reports = self._encode_blocks(name, folder, cache)
            else:
                encoded, reports = self._encode_rows(name, tokenizers, folder)
        except UnknownLabelError as error:
            if not every:
                raise
            raise ValueError(
                f"{error}; data.hold_out = {every} keeps this row to validate with, and no row that is left to "
                "train on has that label: give it more rows, or name a file in data.valid"
            ) from None
        # Bad rows of a file that rows are held out of were reported with its training part.
        self._remark_split(name, encoded, [] if every else reports, every)
        return encoded

    def _encode_blocks(
        self, name: str, folder: Path, cache: PreparationCache
    ) -> tuple[EncodedCorpus, list[PartReport]]:
        """Of text files; the tokenizers are in the folder."""
        split = self._split(name)
        with progress_of(f"encoding {name}", split.rows) as advance:
            reports = prepare_split(split, folder, folder / name, cache, self.say, advance)
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
        encoded = EncodedCorpus.build(rows, tokenizers, longest=self._longest, folder=folder / name, on_bad=data.on_bad)
        if name == "valid":
            kept = set(encoded.rows.tolist())
            with (folder / VALID_PAIRS).open("w", encoding="utf-8") as file:
                for pair in corpus:
                    if pair.row in kept:
                        file.write(json.dumps([pair.row, pair.source, pair.target]) + "\n")
        return encoded, [PartReport(part.reasons, part.first) for part in corpus.parts]

    @property
    def _longest(self) -> int | None:
        data = self.recipe.data
        return None if data.kind in ("text", "phrases") else data.longest  # running text is cut into windows later

    def _remark_split(self, name: str, encoded: EncodedCorpus, reports: list[PartReport], every: int) -> None:
        """Say how large a split is and what was left out of it; an error where nothing is left."""
        unreadable, longest = encoded.about.unreadable, self._longest
        skipped = sum(report.reasons.total() for report in reports) + len(unreadable)
        left_out = f"; {skipped:,} bad rows skipped, {encoded.about.dropped:,} longer than {longest} tokens left out"
        self.say(f"{name}: {self.task.amount(encoded)}{'' if longest is None else left_out}")
        for problem in unreadable[:5]:
            self.say(f"  {problem}")
        for report in reports:
            if report.reasons:
                self.say(f"  {skipped_rows(report.reasons)}; the first of each kind:")
                for place in report.first.values():
                    self.say(f"  {place}")
        if len(encoded):
            return
        if every and not encoded.about.dropped + len(unreadable):
            raise ValueError(
                f"data.hold_out = {every} holds out one row of each {every} to validate on, and there are too few "
                "rows for one: lower it, or name a file in data.valid"
            )
        raise ValueError(
            f"{self._named(name)} holds no usable rows: {skipped:,} bad rows were skipped, "
            f"and {encoded.about.dropped:,} rows are longer than data.longest = {longest}"
            + (f"; the first: {unreadable[0]}" if unreadable else "")
        )

    def _remark_rare(self, names: list[str], encoded: EncodedCorpus) -> None:
        """Name labels with a single row: often an error, perhaps the header of the file."""
        rows = np.bincount(encoded.target, minlength=FIRST + len(names))[FIRST:]
        rare = [quoted(names[n]) for n in np.flatnonzero(rows == 1)]
        if not rare:
            return
        named = ", ".join(rare[:5]) + (f" and {len(rare) - 5:,} more" if len(rare) > 5 else "")
        message = f"label {named} has one row" if len(rare) == 1 else f"labels {named} have one row each"
        data = self.recipe.data
        if isinstance(data, FilesData) and isinstance(data.columns[0], int):
            message += '; if the first line is a header, name the columns: data.columns = ["text", "label"], say'
        self.say(f"  {message}")

    def _named(self, split: str) -> str:
        """A split and its files, as the recipe names them."""
        data = self.recipe.data
        if split == "valid" and isinstance(data, FilesData) and data.hold_out:
            return f"what data.hold_out = {data.hold_out} holds out of data.train"
        files = getattr(data, split, None)
        if not isinstance(files, list):
            return f"data.{split}"
        names = [" and ".join([file] if isinstance(file, str) else file) for file in files]
        return f"data.{split} ({', '.join(names)})"

    def _record_files(self, *, first: bool) -> None:
        """The checksums of the corpora, or of what was prepared where they are generated; and of `training.init`.

        The latter only at the first preparation: a run that has begun no longer needs that model.
        """
        provenance = Provenance(self.run.folder)
        root, files = corpus_files(self.recipe.data)
        prepared = [path for path in sorted(self.run.data.rglob("*")) if path.is_file()]
        provenance.record_files("data", files or prepared, root if files else self.run.folder)
        if first and self.recipe.training.init:
            folder, _ = find(self.recipe.training.init)
            provenance.record_files("init", [folder / "model.safetensors"], folder)
