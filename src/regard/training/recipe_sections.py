"""What other libraries call the keys of a recipe, for messages about unknown keys; docs/training.md has a table."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..data.blocks import BLOCK_LINES
from ..messages import UNKNOWN, count_of, problem_sentence, shown, unknown_key_sentence
from ..models.base import UNKNOWN_KIND
from ..plugins import load_plugin, plugin_path, require_own_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydantic import ValidatorFunctionWrapHandler

    from ..data.rows import Pair

_EPOCHS = "steps of the optimizer: epochs × batches of an epoch ÷ accumulate"
_ROWS = "which counts tokens, not rows; fit(model, …) takes the batches of `train` as they are"

OTHER_NAMES: dict[str, tuple[str, str]] = {  # name: our dotted key, and what differs
    **dict.fromkeys(("max_steps", "train_steps", "num_steps", "total_steps", "iterations"), ("training.updates", "")),
    **dict.fromkeys(
        ("epochs", "max_epochs", "num_epochs", "n_epochs", "num_train_epochs"), ("training.updates", _EPOCHS)
    ),
    **dict.fromkeys(("batch_size", "batch_type", "per_device_train_batch_size"), ("training.tokens", _ROWS)),
    **dict.fromkeys(
        ("accum_count", "batch_multiplier", "accumulate_grad_batches", "gradient_accumulation_steps"),
        ("training.accumulate", ""),
    ),
    **dict.fromkeys(("lr", "learning_rate", "max_lr"), ("training.rate", "")),
    **dict.fromkeys(
        ("scheduler", "scheduling", "lr_scheduler", "lr_scheduler_type", "decay_method"), ("training.schedule", "")
    ),
    **dict.fromkeys(
        ("warmup_steps", "num_warmup_steps", "learning_rate_warmup"), ("training.warmup", "a number of updates")
    ),
    **dict.fromkeys(("decrease_factor", "factor"), ("training.cut", 'of schedule = "plateau"')),
    **dict.fromkeys(("adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"), ("training.betas", "a list of two")),
    "weight_decay": ("training.decay", ""),
    **dict.fromkeys(("label_smoothing", "label_smoothing_factor"), ("training.smoothing", "")),
    **dict.fromkeys(
        ("clip_grad_norm", "gradient_clip_val", "grad_clip", "max_grad_norm", "max_norm"), ("training.clip", "")
    ),
    "early_stopping": ("training.patience", "validations without a better score"),
    **dict.fromkeys(("average_decay", "ema_decay"), ("training.ema", "the share that is kept, such as 0.9999")),
    **dict.fromkeys(
        ("valid_steps", "validation_freq", "eval_steps", "val_check_interval"),
        ("training.validate_every", "in updates"),
    ),
    **dict.fromkeys(
        ("report_every", "logging_freq", "logging_steps", "log_every_n_steps"), ("training.log_every", "in updates")
    ),
    **dict.fromkeys(("save_checkpoint_steps", "save_steps"), ("training.save_every", "in updates")),
    **dict.fromkeys(("load_model", "train_from"), ("training.init", "")),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), ("training.workers", "")),
    "device": ("training.accelerator", '"cpu" or "cuda"'),
    **dict.fromkeys(("gpus", "num_gpus", "num_devices"), ("training.devices", "on each node")),
    **dict.fromkeys(("random_seed", "manual_seed"), ("seed", "")),
    **dict.fromkeys(("max_length", "src_seq_length", "tgt_seq_length"), ("data.longest", "")),
    **dict.fromkeys(("voc_limit", "vocab_size", "src_vocab_size", "tgt_vocab_size"), ("tokenizer.size", "")),
    **dict.fromkeys(("beam_size", "num_beams"), ("search.beams", "")),
    **dict.fromkeys(("beam_alpha", "alpha"), ("search.length_penalty", "")),
}


def other_name(name: str, keys: list[str]) -> str | None:
    """What a name of another library is called here, where a section has these keys; None for a name nobody uses."""
    if name not in OTHER_NAMES:
        return None
    key, remark = OTHER_NAMES[name]
    own = key.rpartition(".")[2]
    return f"regard calls it {own if own in keys else key}" + (f", {remark}" if remark else "")


COMMAND_LINE = "command line"
"""The origin of a key that is no place in a file."""
LIST_EXAMPLES: dict[str, list[Any]] = {
    "train": ["train.tsv"],
    "valid": ["valid.tsv"],
    "test": ["test.tsv"],
    "files": ["text.txt"],
    "columns": [0, 1],
    "weights": [1, 3],
    "tags": ["<2fr>", "<2es>"],
    "decoders": ["<2fr>", "<2es>"],
    "init_parts": ["encoder"],
    "freeze": ["encoder"],
    "betas": [0.9, 0.98],
    "loggers": ["wandb"],
    "windows": [3, 4, 5],
}
"""What the keys that hold lists may hold."""
PLUGIN = "plugin"  # the type of an error in a section of a plug-in, whose keys our schema does not have


class RecipeError(ValueError):
    """All errors of a recipe; the message has a line for each."""

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__("\n  ".join([f"{title} has {count_of(len(lines), 'error')}:", *lines]))


def recipe_error(
    error: ValidationError, schema: type[BaseModel], title: str, origins: Mapping[str, str], *, init: bool = False
) -> RecipeError:
    """A line per problem, with its dotted key and, where it is known, the place it was written.

    `init`: the recipe starts from a trained model.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        is_plugin = problem["type"] == PLUGIN
        key, names = _locate(problem["loc"][:-1] if is_plugin else problem["loc"], schema)
        if is_plugin:
            key = f"{key}.{problem['loc'][-1]}"
        place = f" ({origins[key]})" if key in origins else ""
        # A value that fits no member of a union is one error, though pydantic reports it once per member.
        sentence = _sentence(problem, names)
        if problem["type"] == "list_type":
            sentence += f", such as {_list_example(key, problem['input'], origins.get(key))}"
        elif problem["type"] in ("missing", "union_tag_not_found"):
            sentence += _remedy(key, init=init)
        lines.setdefault(key, f"{key or 'recipe'}{place}: {sentence}")
    return RecipeError(title, list(lines.values()))


def plugin_error(section: type[BaseModel], error: ValidationError) -> ValidationError:
    """The errors of a section that a plug-in defines, as errors of the recipe."""
    names = sorted(section.model_fields)
    return _plugin_error(
        (".".join(map(str, each["loc"])), _sentence(each, names)) for each in error.errors(include_url=False)
    )


def refuse_unknown_keys(section: type[Any], values: dict[str, Any]) -> None:
    """The same for a dataclass, which says which keys it has."""
    names = sorted(field.name for field in fields(section))
    if unknown := sorted(set(values) - set(names)):
        raise _plugin_error((key, _unknown_key(key, names)) for key in unknown)


def _plugin_error(problems: Iterable[tuple[str, str]]) -> ValidationError:
    errors = [
        InitErrorDetails(type=PydanticCustomError(PLUGIN, "{sentence}", {"sentence": sentence}), loc=(key,), input=None)
        for key, sentence in problems
    ]
    return ValidationError.from_exception_data("plug-in", errors)


def _unknown_key(key: str, names: list[str]) -> str:
    other = other_name(key, names)
    return unknown_key_sentence(key, names) if other is None else f"unknown key; {other}"


def _sentence(problem: Any, names: list[str]) -> str:
    kind = problem["type"]
    if kind == PLUGIN:
        return str(problem["ctx"]["sentence"])
    if kind in UNKNOWN:
        return _unknown_key(str(problem["loc"][-1]), names)
    if kind == "union_tag_not_found":
        return "needs a kind"
    if kind == "union_tag_invalid":
        return f"kind is {problem['ctx']['tag']!r}; known kinds are {problem['ctx']['expected_tags']}; {UNKNOWN_KIND}"
    if kind == "list_type":
        return f"is {shown(problem['input'])}; it should be a list"
    return problem_sentence(problem, names)


def _list_example(key: str, value: Any, place: str | None) -> str:
    """A list as it should be written. A text that came without its quotes, as a shell takes them off, gets them."""
    example = LIST_EXAMPLES.get(key.rpartition(".")[2], ["name"])
    if isinstance(value, tuple | set):
        example = list(value)
    elif isinstance(value, str) and isinstance(example[0], str):
        names = [name.strip(" '\"") for name in value.strip("[] ").split(",")]
        example = [name for name in names if name] or example
    written = json.dumps(example, ensure_ascii=False)
    return shlex.quote(f"{key}={written}") if place == COMMAND_LINE else written


def _remedy(key: str, *, init: bool) -> str:
    """What to do about a section that is missing, or that has settings but no kind."""
    if key == "data":
        return '; write a [data] section, or base = ["phrasebook"]: `regard recipes` lists the corpora'
    if key not in ("encoder", "decoder", "head"):
        return ""
    if init:
        return f"; leave [{key}] out: with training.init it is that of the model; or write it in full, with its kind"
    return (
        f'; write base = ["transformer"], or another architecture that `regard recipes` lists; or [{key}] with its '
        "kind; or training.init = MODEL, to have that of a trained model"
    )


def _locate(location: tuple[int | str, ...], schema: Any) -> tuple[str, list[str]]:
    """The dotted key of a problem, and the names that were possible beside it.

    pydantic puts the kind of a section (`encoder`, `rnn`, `width`) and the member of a union into the location; those
    are no keys of the recipe.
    """
    key: list[str] = []
    names: list[str] = []
    for place in location:
        if len(options := _options(schema)) == 1 and not _tags(options[0]):  # of a section that may be left out
            schema = options[0]
        known = _fields(schema)
        tags = {tag: option for option in _options(schema) for tag in _tags(option)}
        if known:
            names = sorted(known)
            key.append(str(place))
            schema = known.get(str(place))
        elif place in tags:
            schema = tags[place]
        elif isinstance(place, int):
            key.append(str(place))
    return ".".join(key), names


def _fields(schema: Any) -> dict[str, Any]:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    if is_dataclass(schema):
        return {field.name: field.type for field in fields(schema)}
    return {}


def _options(schema: Any) -> tuple[Any, ...]:
    return tuple(option for option in get_args(schema) if _fields(option))


def _tags(option: Any) -> tuple[Any, ...]:
    if isinstance(option, type) and issubclass(option, BaseModel):
        return get_args(option.model_fields["kind"].annotation) if "kind" in option.model_fields else ()
    return tuple(field.default for field in fields(option) if field.name == "kind")


STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class StrictSection(BaseModel):
    """A section of a recipe: typed, frozen, and strict about unknown keys."""

    model_config = STRICT


CorpusFile = str | Annotated[list[str], Field(min_length=2, max_length=2)]
ROOT = Field(
    default="${REGARD_DATA:-data}",
    description="where the paths below start, from where the command is run; ${NAME:-else} is read",
)


class DataSection(StrictSection):
    """What every kind of data has."""

    longest: Positive = Field(
        default=256,
        description="pairs with more tokens than this on a side are left out, and counted; of sounds, frames of 10 ms, "
        "1000 by default",
    )
    tokenised: bool = Field(default=False, description="the text is already split by spaces: BLEU counts those tokens")
    on_bad: Literal["error", "skip"] = Field(
        default="error", description="what a bad row does: stop, or be skipped and counted"
    )


class FilesData(DataSection):
    """Pairs from files: TSV, CSV, JSONL, Parquet, a `datasets` folder, or two line-aligned files; plain, gz or xz.

    Where the source is a picture or a sound, its column names a file, and the path starts at `root` too.
    """

    kind: Literal["files"] = "files"
    root: str = ROOT
    train: list[CorpusFile] = Field(description="corpora: a file, or [source file, target file], lines side by side")
    valid: list[CorpusFile]
    hold_out: Count = Field(
        default=0, description="where `valid` is empty: one row of so many of `train`, at random, validates instead"
    )
    test: list[CorpusFile] = Field(default=[])
    columns: Annotated[list[int | str], Field(min_length=2, max_length=4)] = Field(
        default=[0, 1], description="source and target (and gold links): numbers from 0, or names in the header"
    )
    weights: list[Positive] = Field(
        default=[], description="how often the pairs of each corpus of `train` come in an epoch; []: all of them once"
    )
    tags: list[Annotated[str, Field(pattern=r"^\S*$")]] = Field(
        default=[],
        description='a token before the sources of each corpus, such as ["<2fr>", "<2es>"]; "" for none. The first '
        "corpus of `valid` and of `test` has the first tag, and so on",
    )

    @model_validator(mode="after")
    def _check_splits(self) -> FilesData:
        if self.hold_out == 1:
            raise ValueError("hold_out = 1 would hold out every row of `train`; 10 holds out one of ten")
        if bool(self.valid) == bool(self.hold_out):
            raise ValueError(
                f"valid = {self.valid} and hold_out = {self.hold_out}: name files to validate with, or hold out "
                "one row of 10 of `train`, say; one of them"
            )
        if self.weights and len(self.weights) != len(self.train):
            raise ValueError(
                f"{count_of(len(self.weights), 'weight')} for {_corpora(self.train)} in `train`: one for each"
            )
        if self.tags and len(self.tags) != len(self.train):
            raise ValueError(f"{count_of(len(self.tags), 'tag')} for {_corpora(self.train)} in `train`: one for each")
        for name, corpora in (("valid", self.valid), ("test", self.test)):
            if self.tags and len(corpora) > len(self.tags):
                raise ValueError(
                    f"{count_of(len(self.tags), 'tag')} for {_corpora(corpora)} in `{name}`: at most one for each"
                )
        return self


class StreamData(DataSection):
    """Pairs that are read and encoded while the model is trained: no preparation, and memory for one buffer.

    From files as in kind "files"; or, with `dataset`, from a dataset on the Hugging Face Hub, whose splits `train`,
    `valid` and `test` name.
    """

    kind: Literal["stream"] = "stream"
    root: str = ROOT
    dataset: str = Field(
        default="", description="a dataset on the Hugging Face Hub, such as wmt/wmt14, or a folder of one below `root`"
    )
    configuration: str = Field(default="", description="of the dataset, such as de-en")
    revision: str = Field(
        default="",
        description="of the dataset: a branch, a tag or a commit; a run keeps the commit in its recipe",
    )
    train: Annotated[list[CorpusFile], Field(min_length=1)] = Field(
        description="files (* stands for any characters), or [source file, target file]; of a dataset, a split"
    )
    valid: list[CorpusFile] = Field(default=[])
    valid_pairs: Annotated[Positive, Field(le=BLOCK_LINES)] = Field(
        default=5000,
        description="the first so many pairs of `valid` validate; where it is empty, those of `train`, which are then "
        "not trained on",
    )
    test: list[CorpusFile] = Field(default=[])
    columns: Annotated[list[int | str], Field(min_length=2, max_length=4)] = Field(
        default=[0, 1], description="source and target (and gold links): numbers from 0, or names in the header"
    )
    buffer: Positive = Field(
        default=200_000,
        description="pairs in memory at least; they are shuffled, and batches have pairs of like length",
    )

    @model_validator(mode="after")
    def _check_dataset(self) -> StreamData:
        if not self.dataset:
            if self.configuration or self.revision:
                raise ValueError("configuration and revision are those of a dataset; name it in `dataset`")
            return self
        for key in ("train", "valid", "test"):
            names = getattr(self, key)
            if len(names) > 1 or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{key} = {names}: it names one split of the dataset {self.dataset}")
        if not all(isinstance(column, str) for column in self.columns):
            raise ValueError(
                f"columns = {self.columns}: name the columns of the dataset, source first, such as "
                '["translation.en", "translation.de"]'
            )
        return self


GeneratedCount = Annotated[Positive, Field(le=10_000_000)]  # all of them are held in memory


class GeneratedData(DataSection):
    """Generated pairs, any number of them; nothing to download."""

    train: GeneratedCount = Field(default=20_000, description="how many pairs")
    valid: GeneratedCount = 200
    test: GeneratedCount = 1000
    seed: Count = Field(default=0, description="of what is made; the same pairs for every training seed")
    tokenised: bool = True

    @property
    def options(self) -> dict[str, object]:
        """Keywords of the generator's `pairs`."""
        return {}


class PhrasebookData(GeneratedData):
    """Pairs with gold alignments from regard's own grammar of English and French, or Spanish."""

    kind: Literal["phrasebook"] = "phrasebook"
    language: Literal["french", "spanish", "both"] = Field(
        default="french", description='both: each sentence in French and Spanish, after "<2fr>" and "<2es>"'
    )
    lectures: bool = Field(
        default=False, description="sentences like those of the lectures on attention; Spanish has no others"
    )

    invented: bool = Field(
        default=False, description="sentences with invented names and numbers, which a translator has to copy"
    )

    @model_validator(mode="after")
    def _check_invented(self) -> PhrasebookData:
        if self.invented and (self.lectures or self.language != "french"):
            raise ValueError('invented = true is for language = "french" without lectures')
        return self

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
    root: str = ROOT
    folder: str = "digits"
    left_out: str = Field(
        default="", description="a speaker whose recordings are the test set; else the official split"
    )


class PhotosData(DataSection):
    """Photographs with captions (Flickr8k's official split), five in English, or one in another language."""

    kind: Literal["photos"] = "photos"
    root: str = ROOT
    folder: str = "photos"
    language: Literal["en", "de", "fr"] = Field(default="en", description="de and fr are Multi30k's, one a picture")


class TextData(DataSection):
    """Running text for a language model, cut into windows."""

    kind: Literal["text"] = "text"
    root: str = ROOT
    files: Annotated[list[str], Field(min_length=1)]
    held_out: float = Field(default=0.1, gt=0, lt=1, description="the share at the end that validates")
    longest: Positive = Field(default=256, description="tokens of a window")


class PhrasesData(DataSection):
    """The English side of the phrase book as running text, a sentence a line."""

    kind: Literal["phrases"] = "phrases"
    sentences: Positive = 20_000
    lectures: bool = Field(default=False, description="sentences like those of the lectures on attention")
    seed: Count = 0
    held_out: float = Field(default=0.1, gt=0, lt=1, description="the share at the end that validates")
    longest: Positive = Field(default=64, description="tokens of a window")


class PluginData(DataSection):
    """Base of data from another package: a plug-in gives `kind` its own name as default, and says its pairs."""

    kind: str

    def pairs(self, split: str) -> Iterable[Pair]:
        """The pairs of "train", "valid" or "test", numbered in order by their `row`."""
        raise NotImplementedError


def _plugin_data(value: Any, other: ValidatorFunctionWrapHandler) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(value, PluginData):
        return value
    if not isinstance(kind, str) or kind in OWN_KINDS or plugin_path(kind, "data") is None:
        return other(value)
    plugin = plugin_data_class(kind)
    try:
        return plugin.model_validate({**value, "kind": plugin.model_fields["kind"].default})
    except ValidationError as error:
        raise plugin_error(plugin, error) from None


def plugin_data_class(kind: str) -> type[PluginData]:
    found = load_plugin(kind, "data", PluginData, "data.kind")
    require_own_name(found.model_fields["kind"].default, f"{found.__name__}.kind", kind, "data", "data.kind")
    return found


OwnData = (
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
OWN_KINDS = frozenset(each.model_fields["kind"].default for each in get_args(OwnData))
"""No entry point of another package can replace these."""
Data = Annotated[OwnData, Field(discriminator="kind"), WrapValidator(_plugin_data)]


def _corpora(names: list[Any]) -> str:
    return count_of(len(names), "corpus", "corpora")


class TextSource(StrictSection):
    """Words, tokenised."""

    kind: Literal["text"] = "text"


class PictureSource(StrictSection):
    """Pictures, each squeezed into a square."""

    kind: Literal["picture"] = "picture"
    size: Positive = Field(default=64, description="pixels a side")


class SoundSource(StrictSection):
    """Sounds, in one channel at one rate."""

    kind: Literal["sound"] = "sound"
    rate: Literal[8000] = Field(default=8000, description="samples a second, to which every sound is brought")


class NoSource(StrictSection):
    """No source: a language model."""

    kind: Literal["none"] = "none"


LONGEST = {"sound": 1000}
"""Kind of source → the default of data.longest, where it is not that of [data]: 10 seconds, in frames of 10 ms.

It is no setting of the parts that read sounds: as the last base of a recipe, a part would replace what another says.
"""

SourceSection = Annotated[TextSource | PictureSource | SoundSource | NoSource, Field(discriminator="kind")]


def known_or_plugin(part: str, names: tuple[str, ...], base: Callable[[], type[Any]]) -> Any:
    """A name of ours, or a plug-in, which is loaded to see that it can be."""

    def check(name: str) -> str:
        key = "tokenizer.kind" if part == "tokenizer" else part
        if name not in names:
            if plugin_path(name, part) is None:
                raise ValueError(
                    f"is {name!r}; it should be {', '.join(map(repr, names))}, or a plug-in that is installed"
                )
            load_plugin(name, part, base(), key)
        return name

    return AfterValidator(check)


def _tokenizer_base() -> type[Any]:
    from ..data.tokenizer import Tokenizer

    return Tokenizer


class TokenizerSection(StrictSection):
    kind: Annotated[str, known_or_plugin("tokenizer", ("bpe", "unigram", "word", "character"), _tokenizer_base)] = (
        Field(default="bpe", description="bpe, unigram, word, character, or a plug-in")
    )
    size: Positive = Field(default=10_000, description="of the vocabulary, at most; of each, where there are two")
    joint: bool = Field(default=True, description="one vocabulary for both languages, or one each")
    lowercase: bool = False
    punctuation: bool = Field(
        default=False,
        description="word: split off punctuation marks and elided words (l'), for text as people write it",
    )
    slots: Count = Field(
        default=0, description="word: ids for words outside the vocabulary, which a decoder with copy = true copies"
    )
    sample: Count = Field(
        default=0,
        description="bpe, unigram: rows of the corpus that the vocabulary is learned from, evenly spread; 0: all. "
        "Other kinds and classifiers read all rows. Of a stream: the first rows of its files; 0: 300,000",
    )
    dropout: Share = Field(
        default=0.0,
        description="bpe: the share of merges left out at random in training (Provilkov et al. 2020); 0.1, say",
    )
    load: str = Field(
        default="", description="a folder with tokenizers to use as they are, instead of training new ones"
    )


HIGHEST_RATE = 1e30
"""Adam divides the rate by 1 − β, and float32 ends at 3.4e38."""


def _check_rate(rate: float) -> float:
    if rate > HIGHEST_RATE:
        raise ValueError(f"is {rate:g}; it should be at most {HIGHEST_RATE:g}: float32 has no numbers for such steps")
    return rate


Rate = Annotated[float, Field(gt=0), AfterValidator(_check_rate)]


class TrainingSection(StrictSection):
    init: str = Field(
        default="", description="a run, a model's folder or a model that ships: start with its weights and vocabulary"
    )
    init_parts: list[str] = Field(
        default=[], description='which parts of it: ["encoder"], or ["decoder.embedding"]; []: all'
    )
    init_vocabulary: Literal["keep", "extend"] = Field(
        default="keep", description="extend: add the pieces and labels that the corpus has and the model lacks"
    )
    freeze: list[str] = Field(default=[], description='parts that do not learn, such as ["encoder"]')
    part_rates: dict[str, Rate] = Field(
        default={}, description="the highest learning rate of parts: { encoder = 1e-5 }; of the others it is `rate`"
    )
    updates: Positive = Field(default=8000, description="steps of the optimizer, at most")
    tokens: Positive = Field(default=4096, description="in a batch, padding counted, on the longer side")
    accumulate: Positive = Field(default=1, description="batches per update on each device")
    smoothing: Share = Field(default=0.1, description="of the labels")
    rate: Rate = Field(default=1e-3, description="the highest learning rate")
    schedule: Literal["inverse-square-root", "cosine", "plateau", "constant"] = Field(
        default="cosine", description="after the warm-up; plateau cuts when the validation gets no better"
    )
    warmup: Count = Field(default=0, description="updates over which the rate rises linearly from 0")
    floor: Share = Field(default=0.0, description="cosine: the rate falls to this share of the highest")
    cut: float = Field(default=0.5, gt=0, lt=1, description="plateau: the rate is multiplied by this …")
    hold: Positive = Field(default=2, description="… after this many validations that got no better")
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(default=[0.9, 0.98], description="of Adam")
    decay: float = Field(default=0.0, ge=0, description="of the weights, decoupled (AdamW)")
    clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0 does not clip")
    validate_every: Positive = Field(default=500, description="updates between validations")
    save_every: Positive = Field(default=100, description="updates between checkpoints")
    log_every: Positive = Field(default=10, description="updates between lines of metrics.csv")
    average: Positive = Field(default=10, description="the last so many checkpoints are averaged at the end")
    ema: Share = Field(
        default=0.0, description="decay of a moving average of the weights, which is validated and kept; 0: none"
    )
    patience: Count = Field(default=0, description="stop after this many validations that got no better; 0 goes on")
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "64-true"] = Field(
        default="auto", description="bf16-mixed on a GPU, 32-true elsewhere; 16-mixed is for GPUs without bfloat16"
    )
    activation_checkpointing: bool = Field(
        default=False, description="Transformers: compute activations twice instead of keeping them; saves memory"
    )
    graphs: bool | Literal["auto"] = Field(
        default="auto", description="CUDA graphs; auto uses them where there is one GPU"
    )
    accelerator: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="a CUDA GPU where there is one")
    devices: Positive = Field(default=1, description="per node")
    nodes: Positive = 1
    strategy: Literal["auto", "ddp", "fsdp"] = Field(default="auto", description="how several devices share the work")
    workers: Count = Field(default=0, description="processes that make batches")
    tensorboard: bool = True
    loggers: list[Literal["wandb", "mlflow"]] = Field(
        default=[], description="further places for the metrics and the recipe; each needs its package and may upload"
    )


class SearchSection(StrictSection):
    """Beam search, in validation and as the default of the commands."""

    beams: Positive = 5
    length_penalty: float = Field(default=1.0, ge=0, description="α of Wu et al. 2016; 0 does not normalise")
    coverage_penalty: float = Field(default=0.0, ge=0, description="β of Wu et al. 2016")
