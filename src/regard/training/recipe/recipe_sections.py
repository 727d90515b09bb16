"""The sections [tokenizer], [training] and [search] of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ...plugins import load_plugin, plugin_path
from .data_section import Count, Positive, Share, StrictSection

if TYPE_CHECKING:
    from collections.abc import Callable


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
    from ...data.tokenizer import Tokenizer

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
