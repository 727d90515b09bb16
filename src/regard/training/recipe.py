"""A recipe: everything that decides a training run, as typed data. Unknown keys are mistakes, never ignored."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator, with_config

from ..models import config

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
for _part in (*config.ENCODERS.values(), *config.DECODERS.values()):
    with_config(STRICT)(_part)  # the model room's own plain dataclasses, checked as strictly as ours

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Source = str | Annotated[list[str], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    model_config = STRICT


class Files(Section):
    """Pairs from files: TSV, JSONL, Parquet or a `datasets` folder, or two line-aligned files; plain, gz or xz."""

    kind: Literal["files"] = "files"
    root: str = Field(
        default="${REGARD_DATA:-../shared/data}", description="where the paths below start; ${NAME:-else} is read"
    )
    train: list[Source] = Field(description="corpora: a file, or [source file, target file], lines side by side")
    valid: list[Source]
    test: list[Source] = []
    columns: Annotated[list[int | str], Field(min_length=2, max_length=4)] = Field(
        default=[0, 1], description="source and target (and gold links): numbers from 0, or names in the header"
    )
    tokenised: bool = Field(default=False, description="the text is already split by spaces: BLEU counts those tokens")
    on_bad: Literal["error", "skip"] = Field(
        default="error", description="what a bad row does: stop, or be skipped and counted"
    )
    longest: Positive = Field(
        default=256, description="pairs with more tokens than this on a side are left out, and counted"
    )


class PhraseBook(Section):
    """Pairs with gold alignments from regard's own English–French grammar; nothing to download."""

    kind: Literal["phrasebook"] = "phrasebook"
    train: Positive = Field(default=20_000, description="how many pairs")
    valid: Positive = 200
    test: Positive = 1000
    seed: Count = Field(default=0, description="of the grammar's choices; the same pairs for every training seed")
    tokenised: bool = True
    longest: Positive = Field(
        default=256, description="pairs with more tokens than this on a side are left out, and counted"
    )


class Tokenizer(Section):
    kind: Literal["bpe", "unigram", "word", "character"] = "bpe"
    size: Positive = Field(default=10_000, description="of the vocabulary, at most; of each, where there are two")
    joint: bool = Field(default=True, description="one vocabulary for both languages, or one each")
    lowercase: bool = False
    load: str = Field(
        default="", description="a folder with tokenizers to use as they are, instead of training new ones"
    )


class Training(Section):
    updates: Positive = Field(default=8000, description="steps of the optimizer, at most")
    tokens: Positive = Field(default=4096, description="in a batch, padding counted, on the longer side")
    accumulate: Positive = Field(default=1, description="batches per update on each device")
    smoothing: Share = Field(default=0.1, description="of the labels")
    rate: float = Field(default=1e-3, gt=0, description="the highest learning rate")
    schedule: Literal["inverse-square-root", "cosine", "plateau", "constant"] = Field(
        default="cosine", description="after the warm-up; plateau cuts when BLEU stops rising"
    )
    warmup: Count = Field(default=0, description="updates over which the rate rises linearly from 0")
    cut: float = Field(default=0.5, gt=0, lt=1, description="plateau: the rate is multiplied by this …")
    hold: Positive = Field(default=2, description="… after this many validations without a better BLEU")
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = Field(default=[0.9, 0.98], description="of Adam")
    decay: float = Field(default=0.0, ge=0, description="of the weights, decoupled (AdamW)")
    clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0 does not clip")
    validate_every: Positive = Field(default=500, description="updates between validations (beam BLEU and loss)")
    save_every: Positive = Field(default=100, description="updates between checkpoints")
    log_every: Positive = Field(default=10, description="updates between lines of metrics.csv")
    average: Positive = Field(default=10, description="the last so many checkpoints are averaged at the end")
    patience: Count = Field(default=0, description="stop after this many validations without a better BLEU; 0 goes on")
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


class Search(Section):
    """How the validation set is decoded, and what `translate` and `evaluate` do unless told otherwise."""

    beams: Positive = 5
    length_penalty: float = Field(default=1.0, ge=0, description="α of Wu et al. 2016; 0 does not normalise")
    coverage_penalty: float = Field(default=0.0, ge=0, description="β of Wu et al. 2016")


def _sensible(part: config.Encoder | config.Decoder) -> config.Encoder | config.Decoder:
    """What the plain dataclasses do not say about themselves."""
    wrong = []
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and value < (0 if field.name == "key_heads" else 1):
            wrong.append(f"{field.name} = {value} is too small")
        if isinstance(value, float) and not (math.isfinite(value) and 0 <= value < 1):
            wrong.append(f"{field.name} = {value} is not in 0 ≤ {field.name} < 1")
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
    if wrong:
        raise ValueError("; ".join(wrong))
    return part


class Recipe(Section):
    name: str = Field(pattern=r"^[\w.-]+$", description="of the run's folder, with the seed")
    about: str = ""
    seed: Count = 1
    tied: Literal["none", "decoder", "all"] = Field(
        default="none", description="share embeddings: the decoder's input and output, or the encoder's too"
    )
    data: Annotated[Files | PhraseBook, Field(discriminator="kind")]
    tokenizer: Tokenizer = Tokenizer()
    encoder: Annotated[config.Encoder, Field(discriminator="kind"), AfterValidator(_sensible)]
    decoder: Annotated[config.Decoder, Field(discriminator="kind"), AfterValidator(_sensible)]
    training: Training = Training()
    search: Search = Search()

    @model_validator(mode="after")
    def _together(self) -> Recipe:
        """What no section can know alone, and the model or the corpus would say only after the tokenising."""
        wrong = []
        encoder, decoder = self.encoder, self.decoder
        widths = [getattr(part, "embedding", getattr(part, "width", 0)) for part in (encoder, decoder)]
        if self.tied == "all" and not self.tokenizer.joint:
            wrong.append('tied = "all" needs tokenizer.joint = true: one table cannot serve two vocabularies')
        if self.tied == "all" and widths[0] != widths[1]:
            wrong.append(f'tied = "all" needs embeddings of one width; encoder and decoder have {widths}')
        if isinstance(decoder, config.RecurrentDecoder):
            memory = getattr(encoder, "width", 0) * (2 if getattr(encoder, "bidirectional", False) else 1)
            if decoder.attention != "none" and decoder.energy == "dot" and decoder.width != memory:
                wrong.append(
                    f'decoder.energy = "dot" needs a decoder as wide as the annotations: decoder.width is '
                    f'{decoder.width}, and they are {memory} wide; change one, or use "general"'
                )
            if decoder.attention == "luong" and self.tied != "none" and decoder.embedding != decoder.width:
                wrong.append(
                    f'tied = "{self.tied}" with attention = "luong" needs decoder.embedding = decoder.width, '
                    f"and they are {decoder.embedding} and {decoder.width}"
                )
            if decoder.attention == "none" and self.search.coverage_penalty:
                wrong.append('search.coverage_penalty needs attention, and decoder.attention is "none"; set it to 0')
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
        return config.Writer(
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            encoder=self.encoder,
            decoder=self.decoder,
            tied=self.tied,
            longest=self.data.longest,
        )

    def to_dict(self) -> dict[str, object]:
        values = self.model_dump()
        return {**values, "encoder": asdict(self.encoder), "decoder": asdict(self.decoder)}


# What the keys of [encoder] and [decoder] mean; the other sections say it where they are defined.
MODEL_NOTES = {
    "cell": "gru or lstm",
    "embedding": "width of the word embeddings",
    "width": "of the states; of each direction in a bidirectional encoder",
    "bidirectional": "read the source both ways",
    "hidden": "width of the feed-forward part",
    "key_heads": "fewer heads for keys and values; 0: as many as heads",
    "norm": "layer norms before (pre) or after (post) each part",
    "positions": "sinusoidal, learned, rotary or alibi",
    "attention": "none: one context vector; bahdanau: look, then step; luong: step, then look",
    "energy": "additive, dot, general or concat",
    "scope": "global; local-m: around the diagonal; local-p: around a place it predicts",
    "window": "D of local attention: it looks at 2D + 1 places",
    "input_feeding": "feed what attention found into the next step",
    "readout": "plain, or maxout over pairs",
}
