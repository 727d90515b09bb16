"""A recipe: everything that decides a training run, as typed data. Unknown keys are errors."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import AfterValidator, Field, WrapValidator, model_validator, with_config

from ...models import (
    DECODERS,
    ENCODERS,
    ClassifierConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    HeadConfig,
    MultiDecoderConfig,
)
from ...models.classifier import head_config
from ...models.config_base import SOURCES, TaskName, part_config
from ...plugins import load_plugin, plugin_path
from .data_section import STRICT, Count, Data, Positive, Share, SourceSection, StrictSection, TextSource

for _part in (*ENCODERS.values(), *DECODERS.values(), HeadConfig):
    with_config(STRICT)(_part)  # plain dataclasses, checked as strictly as the sections here

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import ValidatorFunctionWrapHandler

    from ...models import DecoderConfig as AnyDecoderConfig
    from ...models import EncoderConfig as AnyEncoderConfig
else:  # pydantic chooses among them by `kind`
    AnyEncoderConfig = Union[tuple(ENCODERS.values())]  # noqa: UP007
    AnyDecoderConfig = Union[tuple(DECODERS.values())]  # noqa: UP007


def _known_or_plugin(part: str, names: tuple[str, ...], base: Callable[[], type[Any]]) -> Any:
    """A name of ours, or a plug-in, which is loaded to see that it can be."""

    def check(name: str) -> str:
        key = "tokenizer.kind" if part == "tokenizer" else part
        if name not in names:
            if plugin_path(name, part) is None:
                raise ValueError(f"is {name!r}; it should be {', '.join(map(repr, names))}, or a plug-in")
            load_plugin(name, part, base(), key)
        return name

    return AfterValidator(check)


def _tokenizer_base() -> type[Any]:
    from ...data.tokenizer import Tokenizer

    return Tokenizer


def _task_base() -> type[Any]:
    from ..tasks.task import Task

    return Task


class TokenizerSection(StrictSection):
    kind: Annotated[str, _known_or_plugin("tokenizer", ("bpe", "unigram", "word", "character"), _tokenizer_base)] = (
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


def _representable(rate: float) -> float:
    if rate > HIGHEST_RATE:
        raise ValueError(f"is {rate:g}; it should be at most {HIGHEST_RATE:g}: float32 has no numbers for such steps")
    return rate


Rate = Annotated[float, Field(gt=0), AfterValidator(_representable)]


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


def _checked(part: Any) -> Any:
    """The part's own rules, which its configuration class states."""
    if part is not None:
        part.check()
    return part


def _plugin(name: str, kinds: dict[str, type[Any]]) -> WrapValidator:
    """Before pydantic chooses among our own kinds: a plug-in, which reads its own settings."""
    bases = {"encoder": EncoderConfig, "decoder": DecoderConfig}

    def validate(value: Any, other: ValidatorFunctionWrapHandler) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind in kinds or plugin_path(kind, name) is None:
            return other(value)
        return head_config(value) if name == "head" else part_config(value, kinds, name, bases[name])

    return WrapValidator(validate)


class Recipe(StrictSection):
    name: str = Field(pattern=r"^[\w.-]+$", description="of the run's folder, with the seed")
    about: str = ""
    seed: Annotated[Count, Field(le=2**32 - 1 - 2**16)] = 1  # NumPy's, with room for the processes
    task: Annotated[str, _known_or_plugin("task", tuple(SOURCES), _task_base)] = Field(
        default="translate", description="translate, write, classify, caption or spell"
    )
    tied: Literal["none", "decoder", "all"] = Field(
        default="none", description="share embeddings: the decoder's input and output, or the encoder's too"
    )
    decoders: list[str] = Field(
        default=[], description="tags that begin the source, as <2es>: one decoder for each, all over one encoder"
    )
    data: Data
    source: SourceSection = TextSource()
    tokenizer: TokenizerSection = TokenizerSection()
    encoder: Annotated[
        AnyEncoderConfig, Field(discriminator="kind"), _plugin("encoder", ENCODERS), AfterValidator(_checked)
    ]
    decoder: Annotated[
        AnyDecoderConfig | None,
        Field(discriminator="kind"),
        _plugin("decoder", DECODERS),
        AfterValidator(_checked),
    ] = None
    head: Annotated[HeadConfig | None, _plugin("head", {}), AfterValidator(_checked)] = None
    training: TrainingSection = TrainingSection()
    search: SearchSection = SearchSection()

    @model_validator(mode="after")
    def _together(self) -> Recipe:
        """Rules between sections."""
        wrong = self._task_problems()
        vocabulary = 1 if self.source.kind == "text" else 0  # the real size is not known yet
        if self.decoder is not None:
            wrong += self.writer(vocabulary, 1, list(range(1, len(self.decoders) + 1))).problems()
            if self.tied == "all" and not self.tokenizer.joint:
                wrong.append('tied = "all" needs tokenizer.joint = true: source and target share one vocabulary')
            if self.decoder.copies and not self.tokenizer.joint:
                wrong.append("decoder.copy = true needs tokenizer.joint = true: source and target share one vocabulary")
            if self.tokenizer.slots and not self.decoder.copies:
                wrong.append(f"tokenizer.slots = {self.tokenizer.slots} needs decoder.copy = true, which copies them")
            if not self.decoder.attends and self.search.coverage_penalty:
                wrong.append('search.coverage_penalty needs attention, and decoder.attention is "none"; set it to 0')
        elif self.decoders:
            wrong.append(f"decoders = {self.decoders} needs a section [decoder]")
        if self.head is not None:
            wrong += self.classifier(vocabulary, 1).problems()
        if self.training.schedule == "inverse-square-root" and not self.training.warmup:
            wrong.append(
                'training.schedule = "inverse-square-root" falls from the end of the warm-up on, and training.warmup '
                "is 0: set it, to 1000 for instance"
            )
        if self.training.ema and self.training.strategy == "fsdp":
            wrong.append(
                'training.ema averages whole parameters, and training.strategy = "fsdp" shards them; set it to 0'
            )
        if self.training.strategy == "fsdp" and self.training.precision not in ("auto", "32-true", "bf16-mixed"):
            wrong.append(
                f'training.precision = "{self.training.precision}" does not go with training.strategy = "fsdp"; '
                'set it to "32-true" or "bf16-mixed"'
            )
        if self.training.init and self.tokenizer.load:
            wrong.append("training.init brings its own vocabulary, and tokenizer.load names another; remove one")
        if not self.training.init and (self.training.init_parts or self.training.init_vocabulary != "keep"):
            wrong.append("training.init_parts and training.init_vocabulary need training.init, a model to start from")
        for key in ("weights", "tags"):
            if getattr(self.data, key, []) and self.source.kind != "text":
                wrong.append(f'data.{key} is for sources that are text; source.kind = "{self.source.kind}"')
        if self.tokenizer.dropout and (self.tokenizer.kind != "bpe" or self.base_task == "write"):
            wrong.append(
                'tokenizer.dropout leaves out merges of tokenizer.kind = "bpe" in pairs; this recipe has '
                f'tokenizer.kind = "{self.tokenizer.kind}" and task = "{self.task}"; set it to 0'
            )
        if getattr(self.data, "tags", []) and self.tokenizer.slots:
            wrong.append("data.tags and tokenizer.slots both need the end of the vocabulary; remove one")
        if self.training.tokens < self.data.longest:
            wrong.append(
                f"training.tokens = {self.training.tokens} holds no pair of data.longest = {self.data.longest} tokens; "
                "raise the one or lower the other"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def _task_problems(self) -> list[str]:
        """Sections that the task needs, and what its source must be."""
        wrong, task, reads, encoder = [], self.base_task, self.source.kind, self.encoder
        needed, other = ("head", "decoder") if task == "classify" else ("decoder", "head")
        if getattr(self, needed) is None:
            wrong.append(f'task = "{task}" needs a section [{needed}]')
        if getattr(self, other) is not None:
            wrong.append(f'task = "{task}" has no use for a section [{other}]; remove it')
        if reads not in SOURCES[task]:
            wrong.append(f'task = "{task}" reads {" or ".join(SOURCES[task])}; source.kind = "{reads}"')
        if encoder.reads != reads:
            wrong.append(f'source.kind = "{reads}", and the encoder, of kind "{encoder.kind}", reads {encoder.reads}')
        sizes = [getattr(part, "size", None) for part in (self.source, encoder)]
        if encoder.reads == reads == "picture" and sizes[0] != sizes[1]:
            wrong.append(f"source.size = {sizes[0]}, and encoder.size = {sizes[1]}: pictures have one size")
        if self.data.kind == "stream" and (task != "translate" or reads != "text"):
            wrong.append(f'data.kind = "stream" is for task = "translate" and sources that are text; task = "{task}"')
        if (self.data.kind in ("text", "phrases")) != (task == "write"):
            wrong.append(f'task = "{task}" does not go with data.kind = "{self.data.kind}"')
        return wrong

    @property
    def base_task(self) -> TaskName:
        """The task, or the one of ours that a plug-in is a variant of."""
        if self.task in SOURCES:
            return self.task
        name: TaskName = load_plugin(self.task, "task", _task_base(), "task").name
        return name

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can record the loss of its model; the sizes of the vocabularies do not matter."""
        tags = list(range(1, len(self.decoders) + 1))
        return (self.writer(1, 1, tags) if self.head is None else self.classifier(1, 1)).capturable

    def writer(
        self, source_vocabulary: int, target_vocabulary: int, tags: list[int] | None = None
    ) -> EncoderDecoderConfig:
        """The model's config, now that the sizes of the vocabularies are known, and the tokens of `decoders`."""
        assert self.decoder is not None
        values: dict[str, Any] = {
            "source_vocabulary": source_vocabulary,
            "target_vocabulary": target_vocabulary,
            "encoder": self.encoder,
            "decoder": self.decoder,
            "tied": self.tied,
            "longest": self.data.longest,
        }
        return MultiDecoderConfig(**values, tags=tags) if tags else EncoderDecoderConfig(**values)

    def classifier(self, source_vocabulary: int, classes: int) -> ClassifierConfig:
        """The same for a classifier."""
        assert self.head is not None
        return ClassifierConfig(
            source_vocabulary=source_vocabulary,
            classes=classes,
            encoder=self.encoder,
            head=self.head,
            longest=self.data.longest,
        )

    def to_dict(self) -> dict[str, object]:
        parts = {name: getattr(self, name) for name in ("encoder", "decoder", "head")}
        values = {**self.model_dump(exclude={"data", *parts}), "data": self.data.model_dump()}
        return {**values, **{name: part and asdict(part) for name, part in parts.items()}}


# What the keys of [encoder] and [decoder] mean; the other sections say it where they are defined.
MODEL_NOTES = {
    "cell": "gru or lstm",
    "embedding": "width of the word embeddings",
    "width": "of the states; of each direction in a bidirectional encoder",
    "bidirectional": "read the source both ways",
    "hidden": "width of the feed-forward part, or of an additive energy",
    "key_heads": "fewer heads for keys and values; 0: as many as heads",
    "norm": "layer norms before (pre) or after (post) each part; none has none, to see what happens",
    "positions": "sinusoidal, learned, rotary or alibi; none reads a set of tokens",
    "residual": "add each part to its input, x + part(x); false leaves out the x, to see what happens",
    "scaled": "divide energies by √d; false does not, to see what happens",
    "masked": "a token sees itself and those before it; false lets it see all while training, to see what happens",
    "idf": "of TF-IDF: smoothed, log((1 + N) / (1 + n)) + 1, or plain, log(N / n)",
    "attention": "rnn: none, bahdanau (look, then step), luong (step, then look), conditional (step, look, "
    "step); tell: none, soft, hard",
    "energy": "additive, dot, general or concat",
    "scope": "global; local-m: around the diagonal; local-p: around a place it predicts",
    "window": "D of local attention: it looks at 2D + 1 places",
    "fusion": "how an encoder's tape enters: none (no encoder), shallow or deep",
    "input_feeding": "feed what attention found into the next step",
    "readout": "plain, or maxout over pairs",
    "recurrent_dropout": "of the state between steps, one mask for all steps of a sentence",
    "word_dropout": "of whole words at the input",
    "copy": "copy words of the source that attention points to (pointer-generator)",
    "size": "of the pictures, in pixels a side",
    "tuned": "whether weights that others trained learn on",
    "penalty": "λ of Xu et al. 2015: every place is to be looked at once in all; of soft attention",
    "reward": "λ_r of Xu et al. 2015: how much hard attention learns from how well its draws did",
    "entropy": "λ_e of Xu et al. 2015: how much hard attention is kept open",
    "warmup": "updates in which hard attention goes from soft to drawing",
}
