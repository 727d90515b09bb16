"""Library: the traces that the page can show, and the models that can run to make more."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decoding.answer_scores import watch_text
from ..decoding.beam import check_step
from . import guard
from .guard import RequestError
from .trace_view import TraceView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..decoding.model_folders import Pretrained
    from ..seeing.text_models import TextModel
    from ..seeing.trace import Seen

LOADED = 6
"""Models that stay in memory."""
READ = ("translate", "read", "generate", "classify")
"""Tasks of models that read a text while they are watched."""
TASK_TITLES = {
    "translate": "English to French",
    "classify": "classifies texts",
    "generate": "generates text",
    "caption": "describes pictures",
    "listen": "classifies sounds",
}
"""What the page says of each task of the shipped models."""
MODEL_TITLES = {
    "digits-cnn": "Spoken digits (CNN)",
    "opinions-lstm": "Opinions (LSTM)",
    "phrasebook-lstmn-en": "LSTMN on the phrase book",
    "scenes-soft": "Scenes (soft attention)",
    "shakespeare-transformer": "Shakespeare (Transformer)",
}
"""Titles of shipped models whose names do not read as one; the others are named by their architecture."""
PHRASEBOOK = "phrasebook-"
"""Names of the models of the lectures' sentences begin with it; they know few other words."""
SENTENCES: dict[tuple[str, str], tuple[str, ...]] = {
    ("tatoeba-", "translate"): (
        "My sister has a small black dog.",
        "I would like to know where the station is.",
        "He did not eat because he was not hungry.",
    ),
    (PHRASEBOOK, "translate"): (
        "The agreement on the European Economic Area was signed in August 1992.",
        "He hit me with a pie.",
        "I am a student.",
        "Can you bring me a fork?",
    ),
    (PHRASEBOOK, "generate"): ("The FBI is chasing a criminal on the run.", "He hit me with a"),
}
"""Sentences of the words that a shipped model knows, by the beginning of its name and its task."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that requests can name. The place to load it from is fixed here and never part of a request."""

    name: str
    task: str
    """What it does: "translate", "read", "generate", "classify", "caption", "listen"."""
    title: str
    place: str
    """The folder or name that its loader takes."""
    ours: bool = False
    """Whether it is a model of regard; else one of Hugging Face."""
    layers: int = 0
    """Layers of a Transformer of regard, for the Inside view; 0 for any other model."""
    examples: tuple[str, ...] = ()
    """Sentences to try it with; none where any will do."""
    attends: bool = True
    """Whether it has attention to show."""

    @property
    def summary(self) -> dict[str, Any]:
        """What the page knows of it."""
        return {name: x for name, x in asdict(self).items() if name not in ("place", "ours")}


def installed_models() -> list[ModelEntry]:
    """The models that ship with regard, and MiniLM and SmolLM2 where their packages are installed."""
    from ..decoding.model_folders import SHIPPED, shipped
    from ..seeing.text_models import PACKAGES

    models = []
    for name in sorted(shipped(), key=lambda name: name.startswith(PHRASEBOOK)):
        model = _own_model(name, SHIPPED / name, name)
        known = (texts for (start, task), texts in SENTENCES.items() if name.startswith(start) and task == model.task)
        models.append(replace(model, title=_title(name, model.task), examples=next(known, ())))
    if find_spec("transformers") is not None:
        others = {"minilm": ("read", "MiniLM, reads English"), "smollm2": ("generate", "SmolLM2, writes English")}
        models += [ModelEntry(name, *others[name], name) for name in others if find_spec(PACKAGES[name][0]) is not None]
    return models


def model_at(place: str) -> ModelEntry:
    """The entry of a run folder, a model folder, or a model's name."""
    from ..decoding.model_folders import best_snapshot, is_own_config

    known = next((model for model in installed_models() if model.name == place), None)
    if known is not None:
        return known
    name = Path(place).name if Path(place).is_dir() else place
    folder = next((x for x in (Path(place) / "model", Path(place)) if (x / "config.json").is_file()), None)
    if folder is None and (snapshot := best_snapshot(Path(place))) is not None:
        folder = snapshot.parent
    if folder is None and Path(place).is_dir():
        raise ValueError(f"{place} is neither a trace nor a model: it has no trace.json and no config.json")
    if folder is None or not is_own_config(folder / "config.json"):
        return ModelEntry(name, "read", name, place)
    return _own_model(name, folder, place)


def _own_model(name: str, folder: Path, place: str) -> ModelEntry:
    """The entry of a model of regard, from its configuration: loading the model takes longer."""
    from ..models.saved_weights import MODEL_TYPES, read

    kind, values = read(folder)
    if kind not in MODEL_TYPES:
        raise ValueError(f"{folder} holds a model of type {kind!r:.60}; known are {', '.join(sorted(MODEL_TYPES))}")
    config: Any = MODEL_TYPES[kind].config_class.from_dict(values)
    task = "listen" if config.encoder.reads == "sound" else {"write": "generate"}.get(config.task, config.task)
    decoder = getattr(config, "decoder", None)
    reader = decoder if config.encoder.kind == "none" else config.encoder
    layers = reader.layers if reader is not None and reader.kind == "transformer" and task != "classify" else 0
    attends = bool(getattr(decoder, "attends", True))
    return ModelEntry(name, task, name, place, ours=True, layers=layers, attends=attends)


def _title(name: str, task: str) -> str:
    kind = name.removeprefix("tatoeba-").removeprefix(PHRASEBOOK).removesuffix("-en-fr").removesuffix("-en")
    corpus = " on the phrase book" if name.startswith(PHRASEBOOK) else ""
    title = MODEL_TITLES.get(name, f"{kind.replace('-', ' ').capitalize()}{corpus}")
    return f"{title}, {TASK_TITLES[task]}"


class Library:
    """Traces by id and models by name. Models run on one thread; see `Jobs.run_model`."""

    def __init__(self, traces: Iterable[TraceView] = (), models: Iterable[ModelEntry] = ()) -> None:
        self.traces: OrderedDict[str, TraceView] = OrderedDict((trace.id, trace) for trace in traces)
        self.models = {model.name: model for model in models}
        self.pending: list[tuple[str, str, int]] = []
        """(model, text, tokens to generate) to read after the server has started, so that the page opens at once."""
        self.opening: dict[str, Any] = {}
        """The state of the page where a link names no view, as in a link: {"call": "5", "pins": ["q8"]}."""
        self.on_remove: Callable[[str], None] = lambda id: None
        """Called with the id of a trace that was removed or replaced."""
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        for trace in self.traces.values():
            trace.pinned = True

    def trace(self, id: str) -> TraceView:
        if id not in self.traces:
            raise RequestError(404, f"there is no trace {id[:40]!r}; GET /api/traces lists the traces")
        return self.traces[id]

    def model(self, name: str, *tasks: str) -> ModelEntry:
        """The model of this name, for one of these tasks; a 404 where there is none."""
        model = self.models.get(name)
        if model is None or (tasks and model.task not in tasks):
            names = [x.name for x in self.models.values() if not tasks or x.task in tasks]
            choice = f"choose from {', '.join(names)}" if names else "none is installed"
            raise RequestError(404, f"there is no model {name[:80]!r} for this task; {choice}")
        return model

    def add(self, trace: TraceView) -> None:
        """Add or replace a trace; beyond `limits.TRACES` the oldest that is not pinned is removed."""
        before = self.traces.get(trace.id)
        if before is not None:
            trace.pinned |= before.pinned
            shared = before.owners is None or trace.owners is None
            trace.owners = None if shared else (before.owners or set()) | (trace.owners or set())
        self.traces[trace.id] = trace
        self.traces.move_to_end(trace.id)
        if before is not None:
            self.on_remove(trace.id)
        unpinned = [x.id for x in self.traces.values() if not x.pinned]
        for id in unpinned[: max(0, len(unpinned) - guard.TRACES)]:
            del self.traces[id]
            self.on_remove(id)

    def listed(self, session: str) -> list[TraceView]:
        """The traces that a browser lists: those of the server, and of the texts that were read in it."""
        traces = tuple(self.traces.values())  # another thread may add one at any time
        return [trace for trace in traces if trace.owners is None or session in trace.owners]

    def read(
        self, name: str, text: str, second: str | None = None, generate: int = 0, owner: str | None = None
    ) -> TraceView:
        """Run a model over a text while its attention is watched, and add the trace.

        `owner` is the session of the browser that lists it; None: all do.
        """
        model = self.model(name, *READ)
        if second is not None and model.task != "read":
            raise RequestError(422, f"{name} reads one text; leave out `second`")
        if generate and model.task != "generate":
            raise RequestError(422, f"{name} does not generate text; leave out `generate`")
        title = f"{model.title.split(',')[0]} · {text[:60]}"
        seen, prompt = self.run(model, text, second, generate)
        seen.model = name
        made = {"model": name, "text": text, "second": second, "generate": generate}
        if not model.ours and seen.text is not None and (of := self._tokens(model, text, second)) > len(seen.text):
            made |= {"read": len(seen.text), "cut": of}
        trace = TraceView.of(seen, title, prompt=prompt, made=made, owners=None if owner is None else {owner})
        self.add(trace)
        return trace

    def run(self, model: ModelEntry, text: str, second: str | None = None, generate: int = 0) -> tuple[Seen, int]:
        """What a model attends to over a text, and the number of tokens of its prompt; adds no trace."""
        loaded = self.loaded(model)
        if model.ours:
            return watch_text(loaded, text, generate)
        if generate:
            return loaded.generate(loaded.encode(text), generate), 0
        return loaded.read(loaded.encode(text, second)), 0

    def _tokens(self, model: ModelEntry, text: str, second: str | None) -> int:
        """All tokens of a text, also those that are more than the model reads."""
        texts = (text,) if second is None else (text, second)
        return len(self.loaded(model).tokenizer(*texts, truncation=False, verbose=False)["input_ids"])

    def models_for(self, task: str) -> list[ModelEntry]:
        """The models for a task, at least one."""
        models = [model for model in self.models.values() if model.task == task]
        if not models:
            raise RequestError(404, f"there is no model for {task!r}; start the server with one: regard view RUN")
        return models

    def read_next_pending(self) -> None:
        """Read the next pending text; one that fails is dropped, and a request for the model says why."""
        name, text, tokens = self.pending[0]
        try:
            self.read(name, text, generate=tokens).pinned = True
        finally:
            del self.pending[0]

    def loaded(self, model: ModelEntry) -> Any:
        """A model with its tokenizers, `Pretrained` or `TextModel`; only for the thread of the models."""
        if model.name not in self._loaded:
            self._loaded[model.name] = loaded = _load(model)
            loaded.model.requires_grad_(False)  # nothing is trained here; contributions need gradients of outputs only
            if not model.ours:  # its searches are not ours: each step is one call of the model
                loaded.model.register_forward_pre_hook(lambda *_: check_step())
        self._loaded.move_to_end(model.name)
        while len(self._loaded) > LOADED:
            self._loaded.popitem(last=False)
        return self._loaded[model.name]


def _load(model: ModelEntry) -> Pretrained | TextModel:
    if model.ours:
        from ..decoding import model_folders

        return model_folders.load(model.place)
    from ..seeing.text_models import load_text_model

    return load_text_model(model.place, with_head=model.task == "generate")


SAMPLES = Path(__file__).parent / "data" / "samples"
"""Written by tools/viewer_samples.py."""
PICTURE, SOUND = ".png", ".wav"


def sample_files(suffix: str) -> list[Path]:
    return sorted(SAMPLES.glob(f"*{suffix}"))
