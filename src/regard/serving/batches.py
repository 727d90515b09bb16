"""Dynamic batching: the texts of requests that arrive within a few milliseconds are computed together.

A model computes 32 sentences in little more time than one. The first text of a batch waits at most `wait` seconds for
others; while a batch is computed, the next one gathers. Requests take turns.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..decoding import classification, load_model_and_tokenizers, translation
from ..decoding.beam import limits
from ..decoding.classification import classify
from ..decoding.translation import read, translate
from ..messages import count_of
from ..seeing.align import translation_word_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ..decoding.classification import Classification
    from ..decoding.load_model_and_tokenizers import PrecisionName
    from ..decoding.translation import Translation

LOG = logging.getLogger(__name__)


class QueueFullError(Exception):
    """There is no room for more texts now, or the thread that computes them has ended."""


class TooManyTextsError(ValueError):
    """More texts than the queue has room for when it is empty."""


@dataclass
class QueuedText:
    """A text that waits for its batch, and its source tokens."""

    text: str
    tokens: int = 1
    result: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class QueuedRequest:
    """The texts of one request. Requests with the same `settings` can share a batch.

    `results` has a future for each text, in the order of the request. `waiting` are those that no batch has yet, the
    shortest first, so that a batch has little padding.
    """

    texts: list[QueuedText]
    settings: Hashable
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque[QueuedText] = field(init=False)
    running_since: float | None = None  # while a batch with some of its texts is computed
    computed_tokens: int = 0
    computed_seconds: float = 0.0  # its share of the time of the batches that its texts were in

    def __post_init__(self) -> None:
        self.waiting = deque(sorted(self.texts, key=lambda item: item.tokens))

    @property
    def results(self) -> list[Future[Any]]:
        return [item.result for item in self.texts]

    @property
    def computed(self) -> int:
        """How many texts have a result."""
        return sum(item.result.done() and not item.result.cancelled() for item in self.texts)

    def larger_than(self, seconds: float) -> bool:
        """Whether a server without other requests would need more time, to judge by the texts that were computed."""
        if self.running_since is not None and 2 * (time.monotonic() - self.running_since) > seconds:
            return True
        return self.computed_seconds * sum(item.tokens for item in self.texts) > seconds * self.computed_tokens


class DynamicBatches:
    """Calls `compute(texts, settings)`, which returns a result or an exception for each text, in a thread of its own.

    At most `size` texts are in a batch, and `room` in the queue. A batch of more than one text has at most `tokens`
    source tokens, padding counted. Requests take turns, a text at a time: one that arrives while a batch of a large
    request is computed comes before the rest of that request. `observe` is called with the number of texts and the
    seconds of every batch. If `compute` raises an error, each text of the batch is computed alone: a text that makes
    the model fail does not fail those of other requests.
    """

    def __init__(
        self,
        compute: Callable[[list[str], Any], Sequence[Any]],
        *,
        size: int,
        wait: float,
        room: int,
        tokens: float = math.inf,
        observe: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self.compute, self.size, self.wait, self.room, self.observe = compute, size, wait, room, observe
        self.tokens = tokens
        self._queue: deque[QueuedRequest] = deque()  # whose turn is next comes first
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="regard-batches", daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str], settings: Hashable, lengths: Sequence[int] | None = None) -> QueuedRequest:
        """A request with a future for each text. A QueueFullError or TooManyTextsError refuses all of them.

        `lengths` are the source tokens of each text; without them each counts as one.
        """
        if len(texts) > self.room:
            raise TooManyTextsError(
                f"{count_of(len(texts), 'text')}, and the queue of this server has room for {self.room}; send fewer"
            )
        request = QueuedRequest(list(map(QueuedText, texts, lengths or [1] * len(texts))), settings)
        with self._changed:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            if not self.alive:
                raise QueueFullError("the thread that computes batches has ended; restart the server")
            if self.waiting + len(texts) > self.room:
                self._remove_cancelled()
            if self.waiting + len(texts) > self.room:
                raise QueueFullError(
                    f"the server is busy: its queue has {count_of(self.waiting, 'text')}, and room for {self.room}; "
                    "try again later"
                )
            self._queue.append(request)
            self._changed.notify()
        return request

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return sum(len(request.waiting) for request in list(self._queue))

    @property
    def alive(self) -> bool:
        """Whether texts are computed: False after `close`."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Compute what is in the queue, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            live = [(request, item) for request, item in batch if item.result.set_running_or_notify_cancel()]
            if live:
                self._compute(live)
            turned = dict.fromkeys(request for request, _ in batch)
            with self._changed:  # their next turn is after those that arrived meanwhile
                others = [request for request in self._queue if request not in turned]
                self._queue = deque([*others, *(request for request in turned if request.waiting)])

    def _next(self) -> list[tuple[QueuedRequest, QueuedText]]:
        """The next batch, each text with its request. Empty: the end."""
        with self._changed:
            batch: list[tuple[QueuedRequest, QueuedText]] = []
            while not batch:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return []
                left = self._queue[0].arrived + self.wait - time.monotonic()
                self._changed.wait_for(lambda: self._closed or self._full(), timeout=max(0.0, left))
                self._remove_cancelled()
                batch = self._batch()
            for request, _ in batch:
                request.waiting.popleft()
            return batch

    def _remove_cancelled(self) -> None:
        """Remove texts that nobody waits for any more, and requests without texts."""
        for request in self._queue:
            request.waiting = deque(item for item in request.waiting if not item.result.cancelled())
        self._queue = deque(request for request in self._queue if request.waiting)

    def _full(self) -> bool:
        """Whether no more texts would be added to the next batch."""
        batch = self._batch()
        alike = sum(len(request.waiting) for request in self._queue if request.settings == self._queue[0].settings)
        return len(batch) == self.size or len(batch) < alike

    def _batch(self) -> list[tuple[QueuedRequest, QueuedText]]:
        """A text of each request in turn, as long as they fit. The first in the queue decides on the settings."""
        batch: list[tuple[QueuedRequest, QueuedText]] = []
        longest = 0
        turns = deque(
            (request, iter(request.waiting)) for request in self._queue if request.settings == self._queue[0].settings
        )
        while turns and len(batch) < self.size:
            request, items = turns.popleft()
            item = next(items, None)
            if item is None or (batch and max(longest, item.tokens) * (len(batch) + 1) > self.tokens):
                continue  # the others of this request are longer still
            longest = max(longest, item.tokens)
            batch.append((request, item))
            turns.append((request, items))
        return batch

    def _compute(self, batch: list[tuple[QueuedRequest, QueuedText]]) -> None:
        began = time.monotonic()
        for request, _ in batch:
            request.running_since = began
        results = self._results([item for _, item in batch], batch[0][0].settings)
        seconds = time.monotonic() - began
        try:
            self.observe(len(batch), seconds)
        except Exception:
            LOG.exception("a batch was computed and not counted")
        for (request, item), result in zip(batch, results, strict=True):
            request.running_since = None
            request.computed_tokens += item.tokens
            request.computed_seconds += seconds / len(batch)
            if isinstance(result, Exception):
                item.result.set_exception(result)
            else:
                item.result.set_result(result)

    def _results(self, batch: list[QueuedText], settings: Hashable) -> list[Any]:
        """A result or an exception for each text; the exceptions are raised where the results are awaited.

        Extensions in Rust raise a BaseException when they panic. It would end this thread, and later the event loop's
        task, so it becomes a RuntimeError.
        """
        failure: Exception
        try:
            results = list(self.compute([item.text for item in batch], settings))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} texts were computed, and there are {len(results)} results")
            return results
        except Exception as error:
            failure = error
        except BaseException as error:
            failure = RuntimeError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        if len(batch) == 1:
            return [failure]
        return [result for item in batch for result in self._results([item], settings)]


TASKS = ("translate", "classify")
DIGITS = 5
"""Decimals of weights and probabilities in an answer."""


class RefusedTextError(ValueError):
    """A text that the model cannot read: too long, or empty."""


@dataclass(frozen=True)
class ServeSettings:
    """What texts of one batch have in common. `best` and `beams` are of translations.

    `beams` 0 is the model's own, or `best` where that is more.
    """

    beams: int = 0
    best: int = 1
    weights: bool = False


class ServedModel:
    """A translator or a text classifier: a run, a model's folder, or one that ships."""

    def __init__(
        self, name: str, device: str = "cpu", engine: str = "torch", precision: PrecisionName = "float32"
    ) -> None:
        self.name = name
        self.loaded = load_model_and_tokenizers.load(name, device, engine, wanted=TASKS, precision=precision)
        self.task: str = self.loaded.model.task
        if self.loaded.tokenizers.source.kind != "text":
            raise ValueError(f"{name} reads {self.loaded.tokenizers.source.kind}; `regard serve` serves models of text")
        self.attends = engine == "torch"  # other engines keep no weights

    def __call__(self, texts: list[str], settings: ServeSettings) -> list[dict[str, Any] | Exception]:
        """An answer for each text, or a RefusedTextError. Weights are tensors, which take less memory than lists."""
        refusals: dict[int, RefusedTextError] = {}

        def refused(number: int, reason: str) -> None:
            refusals[number - 1] = RefusedTextError(reason)

        compute = {"translate": self._translations, "classify": self._labels}[self.task]
        answers = compute(texts, settings, refused)
        return [refusals.get(n, answer) for n, answer in enumerate(answers)]

    @property
    def batch_tokens(self) -> int:
        """Source tokens of a batch, padding counted, that are computed at once."""
        of_task = {"translate": translation.batch_tokens, "classify": classification.batch_tokens}[self.task]
        return of_task(self.loaded.model)

    def lengths(self, texts: list[str]) -> list[int]:
        """The source tokens of each text; 0 for one that cannot be read, which is refused when it is computed."""
        sources, _ = read(self.loaded.tokenizers.source, texts)
        return [0 if source is None else len(source) for source in sources]

    def possible_weights(self, source_lengths: list[int]) -> int:
        """How many weights the alignments of texts have if every output is as long as the search allows."""
        lengths = torch.tensor(source_lengths)
        if self.task == "classify":
            return int(lengths.sum())
        longest = limits(lengths, self.loaded.search.get("longest"))
        return int((lengths * longest).sum())

    def _translations(
        self, texts: list[str], settings: ServeSettings, refused: Callable[[int, str], None]
    ) -> Iterator[dict[str, Any]]:
        how: Any = dict(self.loaded.search)
        how["beams"] = settings.beams or max(how.get("beams", 5), settings.best)
        how["best"], how["weights"] = settings.best, settings.weights and "first"  # an answer has the best's alignment
        for each in translate(self.loaded.model, self.loaded.tokenizers, texts, refused=refused, **how):
            yield _translation_answer(each, settings)

    def _labels(
        self, texts: list[str], settings: ServeSettings, refused: Callable[[int, str], None]
    ) -> Iterator[dict[str, Any]]:
        model, tokenizers = self.loaded.model, self.loaded.tokenizers
        for result in classify(model, tokenizers, texts, weights=settings.weights, refused=refused):
            yield _label_answer(result, tokenizers, settings)


def _translation_answer(translation: Translation, settings: ServeSettings) -> dict[str, Any]:
    several = zip(translation.texts, translation.hypotheses, strict=True)
    hypotheses = [{"text": text, "score": round(hypothesis.score, DIGITS)} for text, hypothesis in several]
    answer: dict[str, Any] = {**hypotheses[0], "source": translation.source}
    if settings.best > 1:
        answer["hypotheses"] = hypotheses
    if settings.weights:
        answer["alignment"] = None
        if translation.weights is not None and len(translation.source_tokens) > 1:
            weights, target, source = translation_word_weights(translation)
            answer["alignment"] = {"source": source, "target": target, "weights": weights}
    return answer


def _label_answer(result: Classification, tokenizers: Any, settings: ServeSettings) -> dict[str, Any]:
    probabilities = {label: round(share, DIGITS) for label, share in result.probabilities.items()}
    answer: dict[str, Any] = {"label": result.label, "probabilities": probabilities, "source": result.source}
    if settings.weights:
        answer["alignment"] = None
        if result.weights is not None:
            pieces = tokenizers.source.pieces([int(number) for number in result.numbers])
            answer["alignment"] = {"source": pieces, "weights": result.weights}
    return answer


def alignment_size(answer: dict[str, Any]) -> int:
    """How many weights an answer has."""
    alignment = answer.get("alignment")
    return 0 if alignment is None else int(alignment["weights"].numel())


def listed_alignment(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose weights are lists of rounded numbers, as JSON has them."""
    alignment = answer.get("alignment")
    if alignment is None:
        return answer
    rounded = alignment["weights"].double().mul(10**DIGITS).round().div(10**DIGITS).tolist()
    return {**answer, "alignment": {**alignment, "weights": rounded}}
