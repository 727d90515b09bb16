"""Prepares the corpora of a recipe: learns the vocabulary, and encodes the splits into the run's folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...atomic_write import replacing_folder
from ...checksums import write_checksums
from ...data import EncodedCorpus, TokenizerPair
from ...data.label_set import UnknownLabelError
from ...data.preparation.preparation_cache import PreparationCache
from ...data.preparation.split_preparation import PAIRS as TEXTS
from ...data.preparation.split_preparation import PartReport, prepare_split
from ...data.streaming.header_row import header_remark
from ...decoding.load_model_and_tokenizers import find
from ..recipe.data_section import FilesData, StreamData
from ..run.provenance import Provenance
from ..streaming.stream_files import NAME as STREAM_FILES
from ..streaming.stream_positions import NAME as STREAM
from .data_settings_file import changed_keys, write_settings
from .preparation_progress import CountedRows, progress_of
from .preparation_remarks import (
    longest_side,
    rare_label_remarks,
    split_name,
    split_remarks,
    unknown_token_remarks,
)
from .recipe_corpus import corpus_files, read
from .split_files import SplitFiles, in_blocks
from .vocabulary_preparation import VocabularyPreparation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recipe.recipe import Recipe
    from ..run.run_folder import Run
    from ..tasks.task import Task

VALID_PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text
STREAM_KEYS = {"kind", "train", "dataset", "configuration", "revision", "columns", "root"}
"""Keys of [data] that decide which rows a stream has, and in which order."""


class CorpusPreparation:
    """Writes data/ of a run, whole or not at all.

    Text files are read and encoded by several processes, and what they make is kept in a cache that runs share.
    Generated corpora, pictures and sounds are encoded by this process into the run's folder. Of a stream only the
    validation set is encoded.
    """

    def __init__(self, run: Run, task: Task, say: Callable[[str], None]) -> None:
        self.run, self.task, self.say = run, task, say
        self.recipe: Recipe = run.recipe
        self.splits = SplitFiles(run.recipe)

    def prepare(self) -> None:
        train = read(self.recipe.data, "train", self.recipe.source.kind)
        row = next(iter(train), None)
        if row is None:
            raise ValueError(f"{split_name(self.recipe.data, 'train')} holds no usable rows")
        if isinstance(self.recipe.data, FilesData | StreamData) and (
            remark := header_remark(row, self.recipe.data.columns, 'data.columns = ["{}", "{}"]')
        ):
            self.say(remark)
        first = not self.run.data.exists()
        with tempfile.TemporaryDirectory(prefix="cache-", suffix=".unfinished", dir=self.run.folder) as own:
            cache = self._cache(own)
            tokenizers = VocabularyPreparation(self.run, self.splits, self.say).tokenizers(cache)
            with replacing_folder(self.run.data) as unfinished:
                tokenizers.save(unfinished)
                if not isinstance(self.recipe.data, StreamData):  # which is encoded while training
                    self._encode("train", tokenizers, unfinished, cache)
                self._encode("valid", tokenizers, unfinished, cache)
                self.splits.require_unchanged()
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
        for name in (STREAM, STREAM_FILES):
            if (self.run.data / name).is_file():
                shutil.copyfile(self.run.data / name, unfinished / name)

    def _cache(self, own: str) -> PreparationCache:
        """The shared cache; where it cannot be written, one of this run's own, which is removed at its end."""
        cache = PreparationCache()
        if not in_blocks(self.recipe):
            return cache
        try:
            with cache.lock("writable"):
                return cache
        except OSError as error:
            self.say(f"the cache {cache.folder} cannot be written ({error.strerror}): nothing is kept for other runs")
            return PreparationCache(Path(own))

    def _encode(self, name: str, tokenizers: TokenizerPair, folder: Path, cache: PreparationCache) -> None:
        """Encode a split into a folder of its name, and the text of the validation set beside it."""
        data = self.recipe.data
        every = data.hold_out if name == "valid" and isinstance(data, FilesData) else 0
        try:
            if in_blocks(self.recipe):
                encoded, reports = self._encode_blocks(name, folder, cache)
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

    def _encode_blocks(
        self, name: str, folder: Path, cache: PreparationCache
    ) -> tuple[EncodedCorpus, list[PartReport]]:
        """Of text files; the tokenizers are in the folder."""
        split = self.splits.split(name)
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
