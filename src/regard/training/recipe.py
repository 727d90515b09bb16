"""Recipes: the settings of a training run, where they come from, and how they are checked."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Literal, Self

from ..models.classifier import ClassifierConfig, HeadConfig
from ..models.configurations import SOURCES, TaskName
from ..models.decoder import DecoderConfig  # noqa: TC001  the reader asks for the types of fields
from ..models.encoder_decoder import DECODERS, ENCODERS, EncoderDecoderConfig
from ..models.encoders import EncoderConfig  # noqa: TC001
from ..models.several_decoders import MultiDecoderConfig
from ..plugins import PluginError, load_plugin, plugin_path
from .recipe_sections import (
    LONGEST,
    Data,
    DataSection,
    SearchSection,
    Section,
    SourceSection,
    TextSource,
    TokenizerSection,
    TrainingSection,
    by_kind,
    key,
    known_or_plugin,
    natural,
    plugin_base,
)


class Recipe(Section):
    name: str = key(about="of the run's folder, with the seed", pattern=r"^[\w.-]+$")
    about: str = ""
    seed: int = natural(default=1, most=2**32 - 1 - 2**16)  # NumPy's, with room for the processes
    task: str = key(
        default="translate",
        about="translate, write, classify, caption or spell",
        check=known_or_plugin("task", SOURCES),
    )
    tied: Literal["none", "decoder", "all"] = key(
        default="none", about="share embeddings: the decoder's input and output, or the encoder's too"
    )
    decoders: list[str] = key(
        default=[], about="tags that begin the source, as <2es>: one decoder for each, all over one encoder"
    )
    data: Data = key(kinds=by_kind(Data), part="data")
    source: SourceSection = key(default=TextSource(), kinds=by_kind(SourceSection), part="source")
    tokenizer: TokenizerSection = TokenizerSection()
    encoder: EncoderConfig = key(kinds=ENCODERS, part="encoder")
    decoder: DecoderConfig | None = key(default=None, kinds=DECODERS, part="decoder")
    head: HeadConfig | None = key(default=None, kinds={None: HeadConfig}, part="head")
    training: TrainingSection = TrainingSection()
    search: SearchSection = SearchSection()

    def with_settings(self, section: str, **values: Any) -> Self:
        """The same with other values in a section."""
        return replace(self, **{section: replace(getattr(self, section), **values)})

    def problems(self) -> list[str]:
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
        if self.training.optimizer != "AdamW" and self.training.strategy == "fsdp":
            wrong.append('training.strategy = "fsdp" is for training.optimizer = "AdamW"')
        if self.training.init and self.tokenizer.load:
            wrong.append("training.init brings its own vocabulary, and tokenizer.load names another; remove one")
        if not self.training.init and self.training.init_parts:
            wrong.append("training.init_parts needs training.init, a model to start from")
        if getattr(self.data, "tags", []) and self.source.kind != "text":
            wrong.append(f'data.tags is for sources that are text; source.kind = "{self.source.kind}"')
        if getattr(self.data, "tags", []) and self.tokenizer.slots:
            wrong.append("data.tags and tokenizer.slots both need the end of the vocabulary; remove one")
        if self.training.tokens < self.data.longest:
            wrong.append(
                f"training.tokens = {self.training.tokens} holds no pair of data.longest = {self.data.longest} tokens; "
                "raise the one or lower the other"
            )
        if self.training.best not in ("score", "loss") and self.training.best not in (known := self._measures()):
            names = ", ".join(f'"{name}"' for name in known)
            wrong.append(
                f'training.best is "{self.training.best}"; of task = "{self.task}" it should be one of {names}'
            )
        return wrong

    def _measures(self) -> list[str]:
        """What `training.best` may be."""
        from .tasks import column_name, task_class

        return ["score", "loss", *map(column_name, task_class(self.task).measures)]

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
        name: TaskName = load_plugin(self.task, "task", plugin_base("task"), "task").name
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


def with_longest(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe's values with the default of data.longest, which is that of the source, unless the data has its own."""
    data, source = values.get("data"), values.get("source")
    kind = getattr(source, "kind", None) or (source.get("kind") if isinstance(source, dict) else None)
    if not isinstance(kind, str) or kind not in LONGEST or not isinstance(data, dict) or "longest" in data:
        return values
    chosen, name = by_kind(Data).get(str(data.get("kind"))), str(data.get("kind"))
    if chosen is None and plugin_path(name, "data") is not None:
        with suppress(PluginError):  # it is reported where it is read
            chosen = load_plugin(name, "data", plugin_base("data"), "data.kind")
    if chosen is None or chosen.longest != DataSection.longest:
        return values
    return {**values, "data": {**data, "longest": LONGEST[kind]}}


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


WIDTH = 44  # column of the comments, where a line leaves room for them
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")  # what TOML forbids in a comment, ends of lines among them


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as commented TOML, defaults included: a run can be repeated from this file alone."""
    head: list[str] = []
    sections: list[str] = []
    for each in fields(recipe):
        name, value = each.name, getattr(recipe, each.name)
        if name == "about" and value:
            head.insert(0, f"# {CONTROL.sub(' ', value)}")  # a comment is one line
        if value is None:  # a section that this task has no use for
            continue
        if isinstance(value, bool | int | float | str | list):
            head.append(_line(name, value, each.metadata.get("about")))
        else:
            sections.extend(["", f"[{name}]", *_section(value)])
    return "\n".join([*head, *sections]) + "\n"


def settings_toml(values: dict[str, Any]) -> str:
    """Settings as they are, without defaults and comments."""
    head = [_line(key, value, None) for key, value in values.items() if not isinstance(value, dict)]
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    for name, section in sections.items():
        head += ["", f"[{name}]", *(_line(key, value, None) for key, value in section.items())]
    return "\n".join(head).strip("\n") + "\n"


def _section(part: Any) -> list[str]:
    return [
        _line(each.name, getattr(part, each.name), each.metadata.get("about") or MODEL_NOTES.get(each.name))
        for each in fields(part)
        if hasattr(part, each.name)
    ]


def _line(key: str, value: object, note: str | None) -> str:
    line = f"{key} = {_value(value)}"
    return f"{line:<{WIDTH}}  # {note}" if note else line


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings are JSON's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)  # int and float: TOML reads what Python writes, 1e-05 included
