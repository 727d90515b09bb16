"""The corpus of each split of a recipe: its files, where they are, and that no split holds another one's."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ..data.blocks import CorpusPart, PairStream, held_out_pairs, is_held_out
from ..data.rows import DatasetSplit, Pair, PairReader, all_bad_error, text
from ..data.tokenizer_pair import TokenizerPair
from ..files import sha256
from ..messages import count_of
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .recipe_sections import Data, PhotosData

Split = Literal["train", "valid", "test"]


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


def read(data: Data, split: Split, source: str = "text") -> Corpus:
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
    from ..data.corpora.published import photo_captions, spoken_digits

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


def _stream_corpus(data: StreamData, split: Split) -> Corpus:
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
    for split in get_args(Split):
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


def _running_text(data: TextData | PhrasesData, split: Split) -> list[Pair]:
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


def _generator_pairs(data: GeneratedData, split: Split) -> PairReader:
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
