"""The sections of a recipe: their keys, and the one reader that checks what a file, a command line or `fit` gives.

A section is a frozen dataclass. The type of a field and its `key(…)` say what the value may be, and `problems` has the
rules between fields. Configurations of models (`regard.models.configurations.Config`) are read in the same way.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from ..plugins import UNKNOWN_KIND, PluginError, load_plugin, plugin_path
from ..wording import count_of, shown, unknown_key_sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..data.rows import Pair

T = TypeVar("T")

COMMAND_LINE = "command line"
"""The origin of a key that is no place in a file."""
BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", lambda value, bound: value >= bound),
    "most": ("at most", lambda value, bound: value <= bound),
    "over": ("greater than", lambda value, bound: value > bound),
    "below": ("less than", lambda value, bound: value < bound),
}
PLAIN = {int: "a valid integer", float: "a valid number", str: "a valid string", bool: "a valid boolean"}


PARQUET = "download the dataset, and name its Parquet files in data.train"
RETIRED: dict[str, tuple[list[Any], str]] = {
    "data.weights": ([[]], "name a corpus as often in data.train as its pairs shall come in an epoch"),
    "data.dataset": ([""], PARQUET),
    "data.configuration": ([""], PARQUET),
    "data.revision": ([""], PARQUET),
    "tokenizer.dropout": ([0.0], "begin a new run without it"),
    "training.init_vocabulary": (["keep"], "train a new model for text or labels that the model lacks"),
    "training.part_rates": ([{}], "freeze parts with training.freeze, or give fit an optimizer of your own"),
    "training.tensorboard": ([True, False], ""),
    "training.loggers": ([[]], "give the metrics to another place in a callback: fit(recipe, folder, callbacks=[f])"),
}
"""Keys of earlier versions: the values with which they did nothing that is missed now, and what to do instead."""


class RecipeError(ValueError):
    """All errors of a recipe; the message has a line for each."""

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__("\n  ".join([f"{title} has {count_of(len(lines), 'error')}:", *lines]))


def key(default: Any = MISSING, about: str = "", **rules: Any) -> Any:
    """A key of a section: its default, what `regard recipes NAME` says about it, and what its values obey.

    `least`, `most`, `over` and `below` bound a number, or what is in a list; `sizes` is the least and the greatest
    length of a list; `pattern` is that of a text, or of those in a list; `check` raises a ValueError. `kinds` are the
    classes of a section by the `kind` in it, with `part` the name of its plug-ins.
    """
    metadata = {"about": about, **rules}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def positive(default: Any = MISSING, about: str = "", **rules: Any) -> Any:
    """A whole number from 1 on."""
    return key(default, about, least=1, **rules)


def natural(default: Any = MISSING, about: str = "", **rules: Any) -> Any:
    """A whole number from 0 on."""
    return key(default, about, least=0, **rules)


def portion(default: Any = MISSING, about: str = "", **rules: Any) -> Any:
    return key(default, about, least=0, below=1, **rules)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(key, positive, natural, portion, field)
)
class Section:
    """A section of a recipe: typed, frozen, and strict about unknown keys. Subclasses are dataclasses by themselves."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, default in list(vars(cls).items()):
            if name in get_annotations(cls) and isinstance(default, list | dict):
                setattr(cls, name, key(default))
        dataclass(frozen=True, kw_only=True)(cls)

    def problems(self) -> list[str]:
        """What is wrong between the keys, a sentence each."""
        return []

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]


class Reader:
    """Reads sections from tables, and collects what is wrong in them as sentences by dotted key.

    `origins` says where a key is written. `init`: the recipe starts from a trained model. `finished`: it is that of a
    run that is only looked at, and may have keys of earlier versions.
    """

    def __init__(self, origins: Mapping[str, str] | None = None, *, init: bool = False, finished: bool = False) -> None:
        self.origins, self.init, self.finished = origins or {}, init, finished
        self.wrong: dict[str, str] = {}

    def read(self, section: type[T], values: Any, title: str) -> T:
        """The section of a table; one error has all that is wrong."""
        made = self.table(section, values, "")
        if made is None:
            places = {name: f" ({self.origins[name]})" if name in self.origins else "" for name in self.wrong}
            lines = [f"{name or 'recipe'}{places[name]}: {sentence}" for name, sentence in self.wrong.items()]
            raise RecipeError(title, lines)
        return made

    def table(self, section: type[T], values: Any, place: str) -> T | None:
        """A dataclass from a table; None where something is wrong."""
        if isinstance(values, section):
            return values
        if not isinstance(values, dict):
            self._note(place, f"is {shown(values)}; it should be a section with keys")
            return None
        hints, known = _hints(section), {each.name: each for each in fields(section)}  # type: ignore[arg-type]
        found, before = dict[str, Any](), len(self.wrong)
        for name, declared in known.items():
            path = f"{place}.{name}" if place else name
            if name in values:
                found[name] = self.value(values[name], hints[name], declared.metadata, path)
            elif declared.default is MISSING and declared.default_factory is MISSING:
                self._note(path, "is missing" + self._remedy(path))
        for name in values:
            path = f"{place}.{name}" if place else str(name)
            harmless, instead = RETIRED.get(path, ([], ""))
            if name in known or values[name] in harmless or (self.finished and path in RETIRED):
                continue
            self._note(path, f"is no key any more: {instead}" if instead else unknown_key_sentence(name, sorted(known)))
        if len(self.wrong) > before:
            return None
        made: Any = section(**found)
        if problems := made.problems():
            self._note(place, "; ".join(problems))
            return None
        return made  # type: ignore[no-any-return]

    def part(self, values: Any, part: str, kinds: Mapping[Any, type[Any]], place: str) -> Any:
        """A section whose `kind` says of which class it is: one of `kinds`, or a plug-in."""
        if is_dataclass(values):
            return values
        kind = values.get("kind") if isinstance(values, dict) else None
        chosen = kinds.get(kind) if isinstance(kind, str) or kind is None else None
        if chosen is None and isinstance(kind, str) and part != "source" and plugin_path(kind, part) is not None:
            try:
                chosen = load_plugin(kind, part, plugin_base(part), f"{part}.kind")
            except PluginError as error:
                return self._note(place, str(error))
            values = {**values, "kind": getattr(chosen, "kind", kind)}
        chosen = chosen or kinds.get(None)
        if not isinstance(values, dict) or chosen is not None:
            return self.table(chosen or Section, values, place)
        if kind is None:
            return self._note(place, "needs a kind" + self._remedy(place))
        names = ", ".join(map(repr, kinds))
        return self._note(place, f"kind is {kind!r}; known kinds are {names}; {UNKNOWN_KIND}")

    def value(self, value: Any, hint: Any, rules: Mapping[str, Any], place: str) -> Any:
        """A value as its type has it: a whole number may stand for a float."""
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None and type(None) in options:
            return None
        if "kinds" in rules:
            kinds = rules["kinds"]
            return self.part(value, rules["part"], kinds() if callable(kinds) else kinds, place)
        if is_dataclass(hint):
            return self.table(hint, value, place)  # type: ignore[arg-type]
        several = next((each for each in options if get_origin(each) is list), None)
        if several is None or not isinstance(value, list):
            sentences = [misfit(value, each, rules) for each in options]
            if None not in sentences:
                sentence = sentences[0]
                example = f", such as {self._list_example(place, value)}" if get_origin(options[0]) is list else ""
                return self._note(place, f"{sentence}{example}")
            return float(value) if hint is float else value
        least, most = rules.get("sizes", (0, math.inf)) if several is hint else (2, 2)
        if not least <= len(value) <= most:
            bound = f"at least {least}" if len(value) < least else f"at most {most}"
            return self._note(place, f"has {count_of(len(value), 'entry', 'entries')}; it should have {bound}")
        inner = get_args(several)[-1]
        rules = {name: rule for name, rule in rules.items() if name != "sizes"}
        return [self.value(each, inner, rules, f"{place}.{n}") for n, each in enumerate(value)]

    def _note(self, place: str, sentence: str) -> None:
        self.wrong.setdefault(place, sentence)

    def _list_example(self, place: str, value: Any) -> str:
        """The value as a list. A text that came without its quotes, as a shell takes them off, gets them."""
        names = value.strip("[] ").split(",") if isinstance(value, str) else []
        plain = list(value) if isinstance(value, tuple | set) else [value]
        example = [name for name in (name.strip(" '\"") for name in names) if name] or plain
        written = json.dumps(example, ensure_ascii=False)
        return shlex.quote(f"{place}={written}") if self.origins.get(place) == COMMAND_LINE else written

    def _remedy(self, place: str) -> str:
        """What to do about a section that is missing, or that has settings but no kind."""
        if place == "data":
            return '; write a [data] section, or base = ["phrasebook"]: `regard recipes` lists the corpora'
        if place not in ("encoder", "decoder", "head"):
            return ""
        if self.init:
            return f"; leave [{place}] out: with training.init it is that of the model; or write it with its kind"
        return (
            f'; write base = ["transformer"], or another architecture that `regard recipes` lists; or [{place}] with '
            "its kind; or training.init = MODEL, to have that of a trained model"
        )


def misfit(value: Any, hint: Any, rules: Mapping[str, Any]) -> str | None:
    """What is wrong with a value that is no section and no list of the right type, as a sentence; None if nothing."""
    kind = get_origin(hint) or hint
    expected = PLAIN.get(hint, "a list")
    if kind is Literal:
        choices = [repr(choice) for choice in get_args(hint)]
        fits = any(type(value) is type(choice) and value == choice for choice in get_args(hint))
        expected = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
    elif kind is Any:
        fits = True
    elif kind is float:
        fits = type(value) in (int, float)
        if fits and not math.isfinite(value):
            fits, expected = False, "a finite number"
    else:
        fits = type(value) is kind
    if not fits:
        return f"is {shown(value)}; it should be {expected}"
    for name, (words, holds) in BOUNDS.items():
        if kind in (int, float) and name in rules and not holds(value, bound := rules[name]):
            number = f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
            return f"is {shown(value)}; it should be {words} {number}"
    if kind is str and "pattern" in rules and not re.search(rules["pattern"], value):
        return f"is {shown(value)}; it should match {rules['pattern']}"
    if "check" in rules:
        try:
            rules["check"](value)
        except ValueError as error:
            return str(error)
    return None


@cache
def _hints(section: type[Any]) -> dict[str, Any]:
    return get_type_hints(section)


def plugin_base(part: str) -> type[Any]:
    """What a plug-in in this place is a subclass of."""
    if part == "data":
        return PluginData
    if part in ("task", "loss"):
        from .tasks import Task, TrainingLoss

        return Task if part == "task" else TrainingLoss
    if part == "tokenizer":
        from ..data.tokenizer import Tokenizer

        return Tokenizer
    from ..models import DecoderConfig, EncoderConfig, HeadConfig

    return {"encoder": EncoderConfig, "decoder": DecoderConfig, "head": HeadConfig}[part]


def known_or_plugin(part: str, names: Iterable[str]) -> Callable[[str], None]:
    """The check of a name that is one of ours, or a plug-in, which is loaded to see that it can be."""

    def check(name: str) -> None:
        if name in names:
            return
        if plugin_path(name, part) is None:
            own = ", ".join(map(repr, names))
            raise ValueError(f"is {name!r}; it should be {own}, or a plug-in that is installed")
        load_plugin(
            name, part, plugin_base(part), {"tokenizer": "tokenizer.kind", "loss": "training.loss"}.get(part, part)
        )

    return check


CorpusFile = str | list[str]
"""A corpus: a file, or the file of the sources and that of the targets."""


class DataSection(Section):
    """What every kind of data has."""

    longest: int = positive(
        default=256,
        about="pairs with more tokens than this on a side are left out, and counted; of sounds, frames of 10 ms, "
        "1000 by default",
    )
    tokenised: bool = key(default=False, about="the text is already split by spaces: BLEU counts those tokens")
    on_bad: Literal["error", "skip"] = key(
        default="error", about="what a bad row does: stop, or be skipped and counted"
    )


DEFAULT_ROOT = "${REGARD_DATA:-data}"
ROOT = "where the paths below start, from where the command is run; ${NAME:-else} is read"
COLUMNS = "source and target (and gold links): numbers from 0, or names in the header"


class FilesData(DataSection):
    """Pairs from files: TSV, CSV, JSONL, Parquet, or two line-aligned files; plain, gz or xz.

    Where the source is a picture or a sound, its column names a file, and the path starts at `root` too.
    """

    kind: Literal["files"] = "files"
    root: str = key(default=DEFAULT_ROOT, about=ROOT)
    train: list[CorpusFile] = key(about="corpora: a file, or [source file, target file], lines side by side")
    valid: list[CorpusFile] = key()
    hold_out: int = natural(
        default=0, about="where `valid` is empty: one row of so many of `train`, at random, validates instead"
    )
    test: list[CorpusFile] = key(default=[])
    columns: list[int | str] = key(default=[0, 1], about=COLUMNS, sizes=(2, 4))
    tags: list[str] = key(
        default=[],
        about='a token before the sources of each corpus, such as ["<2fr>", "<2es>"]; "" for none. The first '
        "corpus of `valid` and of `test` has the first tag, and so on",
        pattern=r"^\S*$",
    )

    def problems(self) -> list[str]:
        wrong = []
        if self.hold_out == 1:
            wrong.append("hold_out = 1 would hold out every row of `train`; 10 holds out one of ten")
        if bool(self.valid) == bool(self.hold_out):
            wrong.append(
                f"valid = {self.valid} and hold_out = {self.hold_out}: name files to validate with, or hold out "
                "one row of 10 of `train`, say; one of them"
            )
        if self.tags and len(self.tags) != len(self.train):
            trained = count_of(len(self.train), "corpus", "corpora")
            wrong.append(f"{count_of(len(self.tags), 'tag')} for {trained} in `train`: one for each")
        for name, corpora in (("valid", self.valid), ("test", self.test)):
            if self.tags and len(corpora) > len(self.tags):
                tags, number = count_of(len(self.tags), "tag"), count_of(len(corpora), "corpus", "corpora")
                wrong.append(f"{tags} for {number} in `{name}`: at most one for each")
        return wrong


class StreamData(DataSection):
    """Pairs that are read and encoded while the model is trained: no preparation, and memory for one buffer."""

    kind: Literal["stream"] = "stream"
    root: str = key(default=DEFAULT_ROOT, about=ROOT)
    train: list[CorpusFile] = key(
        about="files (* stands for any characters), or [source file, target file]",
        sizes=(1, math.inf),
    )
    valid: list[CorpusFile] = key(default=[])
    valid_pairs: int = positive(
        default=5000,
        about="the first so many pairs of `valid` validate; where it is empty, those of `train`, which are then "
        "not trained on",
        most=50_000,  # rows of a block
    )
    test: list[CorpusFile] = key(default=[])
    columns: list[int | str] = key(default=[0, 1], about=COLUMNS, sizes=(2, 4))
    buffer: int = positive(
        default=200_000, about="pairs in memory at least; they are shuffled, and batches have pairs of like length"
    )


class GeneratedData(DataSection):
    """Generated pairs, any number of them; nothing to download."""

    train: int = positive(default=20_000, about="how many pairs", most=10_000_000)  # all of them are held in memory
    valid: int = positive(default=200, most=10_000_000)
    test: int = positive(default=1000, most=10_000_000)
    seed: int = natural(default=0, about="of what is made; the same pairs for every training seed")
    tokenised: bool = True

    @property
    def options(self) -> dict[str, object]:
        """Keywords of the generator's `pairs`."""
        return {}


class PhrasebookData(GeneratedData):
    """Pairs with gold alignments from regard's own grammar of English and French, or Spanish."""

    kind: Literal["phrasebook"] = "phrasebook"
    language: Literal["french", "spanish", "both"] = key(
        default="french", about='both: each sentence in French and Spanish, after "<2fr>" and "<2es>"'
    )
    lectures: bool = key(
        default=False, about="sentences like those of the lectures on attention; Spanish has no others"
    )
    invented: bool = key(
        default=False, about="sentences with invented names and numbers, which a translator has to copy"
    )

    def problems(self) -> list[str]:
        if self.invented and (self.lectures or self.language != "french"):
            return ['invented = true is for language = "french" without lectures']
        return []

    @property
    def options(self) -> dict[str, object]:
        return {"language": self.language, "lectures": self.lectures, "invented": self.invented}


class OpinionsData(GeneratedData):
    """Generated short reviews: positive, negative or neutral."""

    kind: Literal["opinions"] = "opinions"


class TonesData(GeneratedData):
    """Generated sounds: a tone in noise that rises, falls or stays."""

    kind: Literal["tones"] = "tones"


class ScenesData(GeneratedData):
    """Generated pictures of coloured shapes, with captions."""

    kind: Literal["scenes"] = "scenes"


class DigitsData(DataSection):
    """The Free Spoken Digit Dataset."""

    kind: Literal["digits"] = "digits"
    root: str = key(default=DEFAULT_ROOT, about=ROOT)
    folder: str = "digits"
    left_out: str = key(default="", about="a speaker whose recordings are the test set; else the official split")


class PhotosData(DataSection):
    """Photographs with captions (Flickr8k's official split), five in English, or one in another language."""

    kind: Literal["photos"] = "photos"
    root: str = key(default=DEFAULT_ROOT, about=ROOT)
    folder: str = "photos"
    language: Literal["en", "de", "fr"] = key(default="en", about="de and fr are Multi30k's, one a picture")


class TextData(DataSection):
    """Running text for a language model, cut into windows."""

    kind: Literal["text"] = "text"
    root: str = key(default=DEFAULT_ROOT, about=ROOT)
    files: list[str] = key(sizes=(1, math.inf))
    held_out: float = key(default=0.1, about="the share at the end that validates", over=0, below=1)
    tested: float = portion(
        default=0.0, about="the share before it that is neither trained on nor validated, for `regard evaluate`"
    )
    longest: int = positive(default=256, about="tokens of a window")

    def problems(self) -> list[str]:
        if self.held_out + self.tested >= 1:
            return [f"held_out = {self.held_out} and tested = {self.tested} leave nothing to train on; lower them"]
        return []


class PhrasesData(DataSection):
    """The English side of the phrase book as running text, a sentence a line. Other sentences of the grammar test."""

    kind: Literal["phrases"] = "phrases"
    sentences: int = positive(default=20_000)
    lectures: bool = key(default=False, about="sentences like those of the lectures on attention")
    seed: int = natural(default=0)
    held_out: float = key(default=0.1, about="the share at the end that validates", over=0, below=1)
    longest: int = positive(default=64, about="tokens of a window")


class PluginData(DataSection):
    """Base of data from another package: a plug-in gives `kind` its own name as default, and says its pairs."""

    kind: str

    def pairs(self, split: str) -> Iterable[Pair]:
        """The pairs of "train", "valid" or "test", numbered in order by their `row`."""
        raise NotImplementedError


Data = (
    FilesData
    | PhrasebookData
    | OpinionsData
    | TonesData
    | ScenesData
    | DigitsData
    | PhotosData
    | TextData
    | PhrasesData
    | StreamData
)


def by_kind(sections: Any) -> dict[str, type[Any]]:
    return {section.kind: section for section in get_args(sections)}


class TextSource(Section):
    """Words, tokenised."""

    kind: Literal["text"] = "text"


class PictureSource(Section):
    """Pictures, each squeezed into a square."""

    kind: Literal["picture"] = "picture"
    size: int = positive(default=64, about="pixels a side")


class SoundSource(Section):
    """Sounds, in one channel at one rate."""

    kind: Literal["sound"] = "sound"
    rate: Literal[8000] = key(default=8000, about="samples a second, to which every sound is brought")


class NoSource(Section):
    """No source: a language model."""

    kind: Literal["none"] = "none"


SourceSection = TextSource | PictureSource | SoundSource | NoSource
LONGEST = {"sound": 1000}
"""Kind of source → the default of data.longest, where it is not that of [data]: 10 seconds, in frames of 10 ms.

It is no setting of the parts that read sounds: as the last base of a recipe, a part would replace what another says.
"""


class TokenizerSection(Section):
    kind: str = key(
        default="bpe",
        about="bpe, unigram, word, character, or a plug-in",
        check=known_or_plugin("tokenizer", ("bpe", "unigram", "word", "character")),
    )
    size: int = positive(default=10_000, about="of the vocabulary, at most; of each, where there are two")
    joint: bool = key(default=True, about="one vocabulary for both languages, or one each")
    lowercase: bool = False
    punctuation: bool = key(
        default=False, about="word: split off punctuation marks and elided words (l'), for text as people write it"
    )
    slots: int = natural(
        default=0, about="word: ids for words outside the vocabulary, which a decoder with copy = true copies"
    )
    sample: int = natural(
        default=0,
        about="bpe, unigram: rows of the corpus that the vocabulary is learned from, evenly spread; 0: all. "
        "Other kinds and classifiers read all rows. Of a stream: the first rows of its files; 0: 300,000",
    )
    load: str = key(default="", about="a folder with tokenizers to use as they are, instead of training new ones")


HIGHEST_RATE = 1e30
"""Adam divides the rate by 1 − β, and float32 ends at 3.4e38."""
GIVEN = "given"
"""In place of the name of an optimizer that the caller of `fit` made."""


def _check_optimizer(name: str) -> None:
    if name == GIVEN:
        return
    from torch import optim

    kinds = sorted(
        each
        for each, kind in vars(optim).items()
        if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and each not in ("Optimizer", "LBFGS")
    )
    if name not in kinds:
        raise ValueError(f"is {name!r}; it should be a class of torch.optim: {', '.join(kinds)}")


class TrainingSection(Section):
    init: str = key(
        default="", about="a run, a model's folder or a model that ships: start with its weights and vocabulary"
    )
    init_parts: list[str] = key(default=[], about='which parts of it: ["encoder"], or ["decoder.embedding"]; []: all')
    freeze: list[str] = key(default=[], about='parts that do not learn, such as ["encoder"]')
    updates: int = positive(default=8000, about="steps of the optimizer, at most")
    tokens: int = positive(default=4096, about="in a batch, padding counted, on the longer side")
    accumulate: int = positive(default=1, about="batches per update on each device")
    loss: str = key(
        default="",
        about="a plug-in, package.module:Class, that is minimised instead of the model's own loss",
        check=known_or_plugin("loss", ("",)),
    )
    smoothing: float = portion(default=0.1, about="of the labels")
    optimizer: str = key(default="AdamW", about="a class of torch.optim", check=_check_optimizer)
    rate: float = key(default=1e-3, about="the highest learning rate", over=0, most=HIGHEST_RATE)
    schedule: Literal["inverse-square-root", "cosine", "plateau", "constant"] = key(
        default="cosine", about="after the warm-up; plateau cuts when the validation gets no better"
    )
    warmup: int = natural(default=0, about="updates over which the rate rises linearly from 0")
    floor: float = portion(default=0.0, about="cosine: the rate falls to this share of the highest")
    cut: float = key(default=0.5, about="plateau: the rate is multiplied by this …", over=0, below=1)
    hold: int = positive(default=2, about="… after this many validations that got no better")
    betas: list[float] = portion(default=[0.9, 0.98], about="of Adam", sizes=(2, 2))
    decay: float = key(default=0.0, about="of the weights, decoupled (AdamW)", least=0)
    clip: float = key(default=1.0, about="largest norm of the gradient; 0 does not clip", least=0)
    validate_every: int = positive(default=500, about="updates between validations")
    best: str = key(
        default="score", about="the weights that are kept: those with the highest score of the task, or the lowest loss"
    )
    save_every: int = positive(default=100, about="updates between checkpoints")
    log_every: int = positive(default=10, about="updates between lines of metrics.csv")
    average: int = positive(default=10, about="the last so many checkpoints are averaged at the end")
    ema: float = portion(
        default=0.0, about="decay of a moving average of the weights, which is validated and kept; 0: none"
    )
    patience: int = natural(default=0, about="stop after this many validations that got no better; 0 goes on")
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"] = key(
        default="auto", about="bf16-mixed on a GPU, 32-true elsewhere; 16-mixed is for GPUs without bfloat16"
    )
    activation_checkpointing: bool = key(
        default=False, about="Transformers: compute activations twice instead of keeping them; saves memory"
    )
    graphs: bool | Literal["auto"] = key(default="auto", about="CUDA graphs; auto uses them where there is one GPU")
    accelerator: Literal["auto", "cpu", "cuda"] = key(default="auto", about="a CUDA GPU where there is one")
    devices: int = positive(default=1, about="per node")
    nodes: int = positive(default=1)
    strategy: Literal["auto", "ddp", "fsdp"] = key(default="auto", about="how several devices share the work")
    workers: int = natural(default=0, about="processes that make batches")


class SearchSection(Section):
    """Beam search, in validation and as the default of the commands."""

    beams: int = positive(default=5)
    length_penalty: float = key(default=1.0, about="α of Wu et al. 2016; 0 does not normalise", least=0)
    coverage_penalty: float = key(default=0.0, about="β of Wu et al. 2016", least=0)
