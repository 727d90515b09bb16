"""What a recipe learns from: [data]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator

from ...data.corpus_blocks import BLOCK_LINES
from ...noun_count import count_of
from ...plugins import load_plugin, plugin_path, require_own_name
from .recipe_errors import plugin_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidatorFunctionWrapHandler

    from ...data import Pair

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
