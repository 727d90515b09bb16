"""A recipe: everything that decides a training run, as typed data. Unknown keys are mistakes, never ignored."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator, with_config

from ...models import config
from ..tasks import TaskName  # noqa: TC001  pydantic reads it
from .data_section import Data, SourceSection, TextSource
from .strict_section import STRICT, Count, Positive, Share, StrictSection

for _part in (*config.ENCODERS.values(), *config.DECODERS.values(), config.Head):
    with_config(STRICT)(_part)  # the model room's own plain dataclasses, checked as strictly as ours


class TokenizerSection(StrictSection):
    kind: Literal["bpe", "unigram", "word", "character"] = "bpe"
    size: Positive = Field(default=10_000, description="of the vocabulary, at most; of each, where there are two")
    joint: bool = Field(default=True, description="one vocabulary for both languages, or one each")
    lowercase: bool = False
    load: str = Field(
        default="", description="a folder with tokenizers to use as they are, instead of training new ones"
    )


class TrainingSection(StrictSection):
    updates: Positive = Field(default=8000, description="steps of the optimizer, at most")
    tokens: Positive = Field(default=4096, description="in a batch, padding counted, on the longer side")
    accumulate: Positive = Field(default=1, description="batches per update on each device")
    smoothing: Share = Field(default=0.1, description="of the labels")
    rate: float = Field(default=1e-3, gt=0, description="the highest learning rate")
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
    patience: Count = Field(default=0, description="stop after this many validations that got no better; 0 goes on")
    precision: Literal["auto", "32-true", "bf16-mixed", "64-true"] = Field(
        default="auto", description="bf16-mixed on a GPU, 32-true elsewhere"
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


class SearchSection(StrictSection):
    """How what is written is searched for, in validation and by the commands unless told otherwise."""

    beams: Positive = 5
    length_penalty: float = Field(default=1.0, ge=0, description="α of Wu et al. 2016; 0 does not normalise")
    coverage_penalty: float = Field(default=0.0, ge=0, description="β of Wu et al. 2016")


def _sensible(part: Any) -> Any:
    """What the plain dataclasses do not say about themselves."""
    wrong: list[str] = []
    for field in fields(part) if part is not None else ():
        value = getattr(part, field.name)
        if isinstance(value, bool):
            continue
        least = field.metadata.get("least", 0 if field.default == 0 else 1)
        if isinstance(value, int) and value < least:
            wrong.append(f"{field.name} = {value} is too small: it is at least {least}")
        most = field.metadata.get("most", 1.0)
        if isinstance(value, float) and not (math.isfinite(value) and 0 <= value < most):
            wrong.append(f"{field.name} = {value} is not in 0 ≤ {field.name}" + (" < 1" if most == 1 else ""))
    if isinstance(part, config.TransformerEncoder | config.TransformerDecoder) and not wrong:
        if part.width % part.heads:
            wrong.append(f"heads = {part.heads} does not divide width = {part.width}")
        if part.key_heads and part.heads % part.key_heads:
            wrong.append(f"key_heads = {part.key_heads} does not divide heads = {part.heads}")
        if part.positions == "sinusoidal" and part.width % 2:
            wrong.append(f'positions = "sinusoidal" needs an even width, and it is {part.width}')
        if part.positions == "rotary" and part.width // part.heads % 2:
            wrong.append(f'positions = "rotary" needs heads of an even width, and it is {part.width // part.heads}')
    if isinstance(part, config.RecurrentDecoder):
        if part.scope != "global" and part.attention != "luong":
            wrong.append(f'scope = "{part.scope}" needs attention = "luong", and it is "{part.attention}"')
        if part.readout == "maxout" and part.attention == "luong":
            wrong.append('readout = "maxout" is not for attention = "luong", which reads out h̃; set it to "plain"')
    if isinstance(part, config.GridEncoder) and (part.width % 4 or part.size % 8):
        wrong.append(f"width = {part.width} and size = {part.size} must be multiples of 4 and of 8")
    if isinstance(part, config.EfficientNetEncoder) and part.size % 32:
        wrong.append(f"size = {part.size} must be a multiple of 32")
    if isinstance(part, config.TellDecoder) and part.penalty and part.attention != "soft":
        wrong.append(f'penalty = {part.penalty} needs attention = "soft", and it is "{part.attention}"; set it to 0')
    if isinstance(part, config.TellDecoder) and part.warmup and part.attention != "hard":
        wrong.append(f'warmup = {part.warmup} needs attention = "hard", and it is "{part.attention}"; set it to 0')
    if wrong:
        raise ValueError("; ".join(wrong))
    return part


class Recipe(StrictSection):
    name: str = Field(pattern=r"^[\w.-]+$", description="of the run's folder, with the seed")
    about: str = ""
    seed: Annotated[Count, Field(le=2**32 - 1 - 2**16)] = 1  # NumPy's, with room for the processes
    task: TaskName = Field(default="translate", description="translate, write, classify, caption or spell")
    tied: Literal["none", "decoder", "all"] = Field(
        default="none", description="share embeddings: the decoder's input and output, or the encoder's too"
    )
    data: Data
    source: SourceSection = TextSource()
    tokenizer: TokenizerSection = TokenizerSection()
    encoder: Annotated[config.Encoder, Field(discriminator="kind"), AfterValidator(_sensible)]
    decoder: Annotated[config.Decoder | None, Field(discriminator="kind"), AfterValidator(_sensible)] = None
    head: Annotated[config.Head | None, AfterValidator(_sensible)] = None
    training: TrainingSection = TrainingSection()
    search: SearchSection = SearchSection()

    @model_validator(mode="after")
    def _together(self) -> Recipe:
        """What no section can know alone, and the model or the corpus would say only after the tokenising."""
        wrong = _apart(self)
        if self.decoder is not None:
            wrong += _paired(self, self.encoder, self.decoder)
        if self.head is not None and self.head.pooling in ("static", "learned"):  # they weigh the words themselves
            if self.source.kind != "text":
                wrong.append(
                    f'head.pooling = "{self.head.pooling}" weighs words, and source.kind is "{self.source.kind}"'
                )
            if getattr(self.encoder, "stride", 1) > 1:
                wrong.append(f'head.pooling = "{self.head.pooling}" weighs every word: set encoder.stride to 1')
        if self.training.schedule == "inverse-square-root" and not self.training.warmup:
            wrong.append(
                'training.schedule = "inverse-square-root" falls from the end of the warm-up on, and training.warmup '
                "is 0: set it, to 1000 for instance"
            )
        if self.training.tokens < self.data.longest:
            wrong.append(
                f"training.tokens = {self.training.tokens} holds no pair of data.longest = {self.data.longest} tokens; "
                "raise the one or lower the other"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def writer(self, source_vocabulary: int, target_vocabulary: int) -> config.Writer:
        """The model's config, now that the sizes of the vocabularies are known."""
        assert self.decoder is not None
        return config.Writer(
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            encoder=self.encoder,
            decoder=self.decoder,
            tied=self.tied,
            longest=self.data.longest,
        )

    def classifier(self, source_vocabulary: int, classes: int) -> config.Classifier:
        """The same for a classifier."""
        assert self.head is not None
        return config.Classifier(
            source_vocabulary=source_vocabulary,
            classes=classes,
            encoder=self.encoder,
            head=self.head,
            longest=self.data.longest,
        )

    def to_dict(self) -> dict[str, object]:
        parts = {name: getattr(self, name) for name in ("encoder", "decoder", "head")}
        return {**self.model_dump(), **{name: part and asdict(part) for name, part in parts.items()}}


def _apart(recipe: Recipe) -> list[str]:
    """Sections that a task needs, and what its source must be."""
    wrong, task, reads = [], recipe.task, recipe.source.kind
    needed, other = ("head", "decoder") if task == "classify" else ("decoder", "head")
    if getattr(recipe, needed) is None:
        wrong.append(f'task = "{task}" needs a section [{needed}]')
    if getattr(recipe, other) is not None:
        wrong.append(f'task = "{task}" has no use for a section [{other}]; remove it')
    wanted = {"translate": ("text",), "write": ("none",), "caption": ("picture",), "spell": ("sound",)}
    if reads not in wanted.get(task, ("text", "sound")):
        wrong.append(
            f'task = "{task}" reads {" or ".join(wanted.get(task, ("text", "sound")))}; source.kind = "{reads}"'
        )
    kind = recipe.encoder.kind
    heard = getattr(recipe.encoder, "reads", {"none": "none"}.get(kind, "picture"))
    if heard != reads:
        wrong.append(f'source.kind = "{reads}", and the encoder, of kind "{kind}", reads {heard}')
    sizes = [getattr(part, "size", None) for part in (recipe.source, recipe.encoder)]
    if heard == reads == "picture" and sizes[0] != sizes[1]:
        wrong.append(f"source.size = {sizes[0]}, and encoder.size = {sizes[1]}: pictures have one size")
    if (recipe.data.kind in ("text", "phrases")) != (task == "write"):
        wrong.append(f'task = "{task}" does not go with data.kind = "{recipe.data.kind}"')
    return wrong


def _paired(recipe: Recipe, encoder: config.Encoder, decoder: config.Decoder) -> list[str]:
    """What an encoder and a decoder need of each other."""
    wrong = []
    if isinstance(encoder, config.BagEncoder) and not encoder.width:
        wrong.append("encoder.width = 0 is for classifiers, whose classes it then stands for; set it")
    widths = [getattr(part, "embedding", getattr(part, "width", 0)) for part in (encoder, decoder)]
    if recipe.tied == "all" and (recipe.source.kind != "text" or not recipe.tokenizer.joint):
        wrong.append('tied = "all" needs tokenizer.joint = true: one table cannot serve two vocabularies')
    if recipe.tied == "all" and widths[0] != widths[1]:
        wrong.append(f'tied = "all" needs embeddings of one width; encoder and decoder have {widths}')
    if isinstance(decoder, config.LSTMNDecoder) and (decoder.fusion == "none") != (encoder.kind == "none"):
        wrong.append(
            f'decoder.fusion = "{decoder.fusion}" over an encoder of kind "{encoder.kind}": it is "none" where there '
            'is no encoder, and "shallow" or "deep" where there is one'
        )
    if getattr(decoder, "attention", None) == "none" and recipe.search.coverage_penalty:
        wrong.append('search.coverage_penalty needs attention, and decoder.attention is "none"; set it to 0')
    if not isinstance(decoder, config.RecurrentDecoder):
        return wrong
    memory = config.annotated(encoder)
    if decoder.attention != "none" and encoder.kind == "none":
        wrong.append(f'decoder.attention = "{decoder.attention}" has nothing to attend to; set it to "none"')
    elif decoder.attention != "none" and decoder.energy == "dot" and decoder.width != memory:
        wrong.append(
            f'decoder.energy = "dot" needs a decoder as wide as the annotations: decoder.width is '
            f'{decoder.width}, and they are {memory} wide; change one, or use "general"'
        )
    if decoder.attention == "luong" and recipe.tied != "none" and decoder.embedding != decoder.width:
        wrong.append(
            f'tied = "{recipe.tied}" with attention = "luong" needs decoder.embedding = decoder.width, '
            f"and they are {decoder.embedding} and {decoder.width}"
        )
    return wrong


# What the keys of [encoder] and [decoder] mean; the other sections say it where they are defined.
MODEL_NOTES = {
    "cell": "gru or lstm",
    "embedding": "width of the word embeddings",
    "width": "of the states; of each direction in a bidirectional encoder",
    "bidirectional": "read the source both ways",
    "hidden": "width of the feed-forward part, or of an additive energy",
    "key_heads": "fewer heads for keys and values; 0: as many as heads",
    "norm": "layer norms before (pre) or after (post) each part",
    "positions": "sinusoidal, learned, rotary or alibi",
    "attention": "rnn: none, bahdanau (look, then step), luong (step, then look); tell: none, soft, hard",
    "energy": "additive, dot, general or concat",
    "scope": "global; local-m: around the diagonal; local-p: around a place it predicts",
    "window": "D of local attention: it looks at 2D + 1 places",
    "fusion": "how an encoder's tape enters: none (no encoder), shallow or deep",
    "input_feeding": "feed what attention found into the next step",
    "readout": "plain, or maxout over pairs",
    "size": "of the pictures, in pixels a side",
    "tuned": "whether weights that others trained learn on",
    "penalty": "λ of Xu et al. 2015: every place is to be looked at once in all; of soft attention",
    "reward": "λ_r of Xu et al. 2015: how much hard attention learns from how well its draws did",
    "entropy": "λ_e of Xu et al. 2015: how much hard attention is kept open",
    "warmup": "updates in which hard attention goes from soft to drawing",
}
