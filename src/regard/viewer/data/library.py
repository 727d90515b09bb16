"""Library: the traces that can be looked at, and the models that can be asked for more."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..http import limits
from ..http.responses import ClientDisconnected, RequestError
from .trace_view import TraceView

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from torch import nn

    from ...decoding.pretrained import Pretrained
    from ...seeing import Seen
    from ...seeing.capture.huggingface_text_model import TextModel

LOADED = 3
"""Models kept in memory."""
DOES = {
    "translate": "English to French",
    "classify": "names texts",
    "generate": "writes on",
    "caption": "describes pictures",
    "listen": "names sounds",
}
"""What the models that ship do, by their task."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One that can be asked by its name. What the name stands for is decided here, never by a request."""

    name: str
    task: str
    """What the page can ask of it: "translate", "read", "generate", "classify", "caption", "listen"."""
    title: str
    place: str
    """What its loader takes: a folder or a name."""
    ours: bool = False
    """Trained by regard."""


def installed_models() -> list[ModelEntry]:
    """The translators that ship, and those of the models known by name that are installed."""
    from ...decoding.pretrained import SHIPPED, shipped
    from ...seeing.capture.huggingface_text_model import PACKAGES

    tasks = {name: _task(SHIPPED / name) for name in shipped()}
    found = [ModelEntry(name, task, _title(name, task), name, ours=True) for name, task in tasks.items()]
    if find_spec("transformers") is not None:
        known = {"minilm": ("read", "MiniLM, reads English"), "smollm2": ("generate", "SmolLM2, writes English")}
        found += [ModelEntry(name, *known[name], name) for name in known if find_spec(PACKAGES[name][0]) is not None]
    return found


def model_at(place: str) -> ModelEntry:
    """The model of a run's folder, a model's folder, or a name, and what it can do."""
    from ...decoding.pretrained import is_own_config

    known = next((model for model in installed_models() if model.name == place), None)
    if known is not None:
        return known
    folder = Path(place)
    name = folder.name if folder.is_dir() else place
    config = next((x / "config.json" for x in (folder / "model", folder) if (x / "config.json").is_file()), None)
    if config is None and folder.is_dir():
        raise ValueError(f"{place} is no trace, and holds no model: there is neither trace.json nor config.json in it")
    if config is None or not is_own_config(config):
        return ModelEntry(name, "read", name, place)
    return ModelEntry(name, _task(config.parent), name, place, ours=True)


def _task(folder: Path) -> str:
    """What a model of ours does, by its configuration: loading it takes longer."""
    from ...models.load_model import KINDS
    from ...models.model_folder import read

    kind, values = read(folder)
    if kind not in KINDS:
        raise ValueError(f"{folder} holds a model of type {kind!r:.60}; known are {', '.join(sorted(KINDS))}")
    config: Any = KINDS[kind].config_class.from_dict(values)
    return "listen" if config.encoder.reads == "sound" else {"write": "generate"}.get(config.task, config.task)


def _title(name: str, task: str) -> str:
    kind = name.replace("tatoeba-", "").replace("-en-fr", "").replace("-", " ")
    return f"{kind.capitalize()}, {DOES[task]}"


class Library:
    def __init__(self, traces: Iterable[TraceView] = (), models: Iterable[ModelEntry] = ()) -> None:
        self.traces: OrderedDict[str, TraceView] = OrderedDict((trace.id, trace) for trace in traces)
        self.models = {model.name: model for model in models}
        self.coming: list[tuple[str, str, int]] = []
        """(model, text, tokens to write) to be read once the server has begun: the page need not wait for it."""
        self.left: threading.Event | None = None
        """Of the request a model works for: once set, nobody waits, and the model stops."""
        self.on_drop: Callable[[str], None] = lambda id: None
        """Told of a trace that is no longer here, or no longer the same."""
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        for trace in self.traces.values():
            trace.pinned = True

    def trace(self, id: str) -> TraceView:
        found = self.traces.get(id)
        if found is None:
            raise RequestError(404, f"there is no trace {id[:40]!r}; GET /api/traces lists those there are")
        return found

    def model(self, name: str, *tasks: str) -> ModelEntry:
        found = self.models.get(name)
        if found is None or (tasks and found.task not in tasks):
            able = [model.name for model in self.models.values() if not tasks or model.task in tasks]
            there = f"there are {', '.join(able)}" if able else "none is installed"
            raise RequestError(404, f"no model {name[:80]!r} can do this; {there}")
        return found

    def add(self, trace: TraceView) -> None:
        before = self.traces.get(trace.id)
        if before is not None:  # read again
            trace.pinned |= before.pinned
        self.traces[trace.id] = trace
        self.traces.move_to_end(trace.id)
        if before is not None:
            self.on_drop(trace.id)
        passing = [one.id for one in self.traces.values() if not one.pinned]
        for id in passing[: max(0, len(passing) - limits.TRACES)]:
            del self.traces[id]
            self.on_drop(id)

    # Models at work; on one thread, since loading and running take all cores as it is

    def read(self, name: str, text: str, second: str | None = None, generate: int = 0) -> TraceView:
        """Run a model over a text, watched."""
        model = self.model(name, "translate", "read", "generate")
        if second is not None and model.task != "read":
            raise RequestError(422, f"{name} reads one text; leave out the second")
        if generate and model.task != "generate":
            raise RequestError(422, f"{name} does not write on; leave out generate")
        title = f"{model.title.split(',')[0]} · {text[:60]}"
        if model.ours:
            loaded = self.loaded(model)
            seen, prompt = (
                (translated(loaded, text), 0) if model.task == "translate" else written(loaded, text, generate)
            )
        else:
            seen, prompt = self._reader(model, text, second, generate), 0
        seen.model = name
        if not len(seen):
            raise RequestError(422, f"{name} has no attention that could be seen: {seen.advice}")
        found = TraceView.of(seen, title, prompt=prompt)
        self.add(found)
        return found

    def able(self, task: str) -> list[ModelEntry]:
        """The models for a task, at least one."""
        found = [model for model in self.models.values() if model.task == task]
        if not found:
            raise RequestError(404, f"no model here can {task}; start the server with one: regard view RUN")
        return found

    def catch_up(self) -> None:
        """Read the next of those that are to come; one that cannot be read is left out, and asked for it says why."""
        name, text, more = self.coming[0]
        try:
            self.read(name, text, generate=more).pinned = True
        finally:
            del self.coming[0]

    def loaded(self, model: ModelEntry) -> Pretrained:
        """One of our own models; where others run, on the thread for models."""

        def load() -> Pretrained:
            from ...decoding import pretrained

            loaded = pretrained.load(model.place)
            self._stoppable(loaded.model)
            return loaded

        found: Pretrained = self._kept(model.name, load)
        return found

    def _reader(self, model: ModelEntry, text: str, second: str | None, generate: int) -> Seen:
        def load() -> TextModel:
            from ...seeing.capture.huggingface_text_model import load_text_model

            loaded = load_text_model(model.place, with_head=model.task == "generate")
            self._stoppable(loaded.model)
            return loaded

        reader: TextModel = self._kept(model.name, load)
        if generate:
            return reader.generate(reader.encode(text), generate)
        return reader.read(reader.encode(text, second))

    def _stoppable(self, model: nn.Module) -> None:
        """Before each of its parts is called it is seen whether anybody still waits: once a step at least."""

        def check(*_: object) -> None:
            if self.left is not None and self.left.is_set():
                raise ClientDisconnected

        for part in model.modules():
            part.register_forward_pre_hook(check)

    def _kept(self, name: str, load: Callable[[], Any]) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load()
        self._loaded.move_to_end(name)
        while len(self._loaded) > LOADED:
            self._loaded.popitem(last=False)
        return self._loaded[name]


def translated(loaded: Pretrained, text: str) -> Seen:
    """A translator at work, greedily.

    A row of the decoder is named by what it writes; its own keys are what it has read by then.
    """
    from ...decoding.translation import translate
    from ...seeing.capture.watch import watch

    with watch(loaded.model) as seen:
        (found,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    seen.tokens = [found.source_pieces]
    seen.sides = {"source": found.source_pieces, "target": found.pieces, "read": ["<s>", *found.pieces[:-1]]}
    return seen


def written(loaded: Pretrained, text: str, tokens: int) -> tuple[Seen, int]:
    """A language model of ours going on with a text, by the likeliest tokens; and how many the text itself has."""
    from ...decoding.text_generation import generate
    from ...seeing.capture.watch import watch

    tokenizer = loaded.tokenizers.target
    given = tokenizer.pieces(tokenizer.continued(text))
    with watch(loaded.model) as seen:
        more = list(generate(loaded.model, tokenizer, text, tokens=tokens + 1))
    seen.tokens = [[*given, *more[:-1]]]  # the last is never read
    return seen, len(given)
