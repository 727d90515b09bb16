"""Shelf: the traces that can be looked at, and the models that can be asked for more."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import limits
from .answers import Refused
from .shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..decoding.pretrained import Pretrained
    from ..seeing import Seen
    from ..seeing.reader import Reader

TASKS = {"write": "generate", "spell": "listen"}
"""What the page calls the tasks that have another name among the commands."""
LOADED = 3
"""Models kept in memory."""


@dataclass(frozen=True, slots=True)
class Model:
    """One that can be asked by its name. What the name stands for is decided here, never by a request."""

    name: str
    task: str
    """"translate", "read" or "generate"."""
    title: str
    place: str
    """What its loader takes: a folder or a name."""


def installed() -> list[Model]:
    """The translators that ship, and those of the models known by name that are installed."""
    from ..decoding.pretrained import shipped
    from ..seeing.reader import PACKAGES

    found = [Model(name, "translate", _title(name), name) for name in shipped()]
    if find_spec("transformers") is not None:
        tasks = {"minilm": ("read", "MiniLM, reads English"), "smollm2": ("generate", "SmolLM2, writes English")}
        found += [Model(name, *tasks[name], name) for name in tasks if find_spec(PACKAGES[name][0]) is not None]
    return found


def model_at(place: str) -> Model:
    """The model of a run's folder, a model's folder, or a name, and what it can do."""
    known = next((model for model in installed() if model.name == place), None)
    if known is not None:
        return known
    name = Path(place).name if Path(place).is_dir() else place
    kind = _kind(Path(place))
    if kind is None:
        return Model(name, "read", name, place)
    from ..decoding import pretrained

    task = pretrained.task_of(pretrained.load(place).model)
    return Model(name, TASKS.get(task, task), name, place)


def _kind(folder: Path) -> str | None:
    """The model_type of one of ours, or None."""
    for config in (folder / "model" / "config.json", folder / "config.json"):
        if config.is_file():
            try:
                kind = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
            except (ValueError, AttributeError):
                raise ValueError(f"{config} is not a model's configuration: it should be a JSON object") from None
            return kind if kind.startswith("regard-") else None
    return None


def _title(name: str) -> str:
    kind = name.replace("tatoeba-", "").replace("-en-fr", "")
    return f"{kind.capitalize()}, English to French"


class Shelf:
    def __init__(self, traces: Iterable[Shown] = (), models: Iterable[Model] = ()) -> None:
        self.traces: OrderedDict[str, Shown] = OrderedDict((trace.id, trace) for trace in traces)
        self.models = {model.name: model for model in models}
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        for trace in self.traces.values():
            trace.lasting = True

    def trace(self, id: str) -> Shown:
        found = self.traces.get(id)
        if found is None:
            raise Refused(404, f"there is no trace {id[:40]!r}; GET /api/traces lists those there are")
        return found

    def model(self, name: str, *tasks: str) -> Model:
        found = self.models.get(name)
        if found is None or (tasks and found.task not in tasks):
            able = [model.name for model in self.models.values() if not tasks or model.task in tasks]
            there = f"there are {', '.join(able)}" if able else "none is installed"
            raise Refused(404, f"no model {name[:80]!r} can do this; {there}")
        return found

    def add(self, trace: Shown) -> None:
        self.traces[trace.id] = trace
        passing = [one.id for one in self.traces.values() if not one.lasting]
        for id in passing[: max(0, len(passing) - limits.TRACES)]:
            del self.traces[id]

    # Models at work; on one thread, since loading and running take all cores as it is

    def read(self, name: str, text: str, second: str | None = None, generate: int = 0) -> Shown:
        """Run a model over a text, watched."""
        model = self.model(name, "translate", "read", "generate")
        if second is not None and model.task != "read":
            raise Refused(422, f"{name} reads one text; leave out the second")
        if generate and model.task != "generate":
            raise Refused(422, f"{name} does not write on; leave out generate")
        title = f"{model.title.split(',')[0]} · {text[:60]}"
        if model.task == "translate":
            seen = translated(self.translator(model), text)
            seen.model = name
            found = Shown.of(seen, title)
        else:
            found = Shown.of(self._reader(model, text, second, generate), title)
        self.add(found)
        return found

    def translator(self, model: Model) -> Pretrained:
        def load() -> Pretrained:
            from ..decoding import pretrained

            return pretrained.load(model.place)

        found: Pretrained = self._kept(model.name, load)
        return found

    def _reader(self, model: Model, text: str, second: str | None, generate: int) -> Seen:
        def load() -> Reader:
            from ..seeing import reader

            return reader.load(model.place, writes=model.task == "generate")

        reader: Reader = self._kept(model.name, load)
        if generate:
            return reader.write(reader.text(text), generate)
        return reader.read(reader.text(text, second))

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
    from ..decoding.translate import translate
    from ..seeing import watch

    with watch(loaded.model) as seen:
        (found,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    seen.tokens = [found.source_pieces]
    seen.sides = {"source": found.source_pieces, "target": found.pieces, "read": ["<s>", *found.pieces[:-1]]}
    return seen
