"""TraceView: one trace as the page asks for it: what was called, its tokens, and numbers about its heads."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...seeing.analysis import THRESHOLDS, Patterns
from ...seeing.capture.even_sample import evenly_spaced
from ...seeing.capture.tokenized_text import WORD_START
from ..http import limits
from .token_labels import TokenLabels

if TYPE_CHECKING:
    from ...attention import Weights
    from ...seeing import Call, Seen
    from ...seeing.analysis import TokenizedText

SAMPLED = 1 << 24
"""Weights of a call that its statistics are taken from; of a longer text, from queries evenly spread."""
THUMBS = 1 << 27
"""Weights up to which thumbnails pool all of them; beyond, one query stands for each row of cells."""


@dataclass(eq=False)
class TraceView:
    """`sides` are the tokens along queries and keys, one `TokenLabels` for each entry of the batch."""

    seen: Seen
    title: str
    sides: dict[str, list[TokenLabels]]
    text: TokenizedText | None = None
    grid: tuple[int, int] | None = None
    prompt: int = 0
    """Queries before the generated ones; those of the first forward pass, unless given."""
    pinned: bool = False
    """It stays however many others are read."""
    id: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _about: dict[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not len(self.seen):
            raise ValueError(f"{self.title}: {self.seen.advice or 'no attention was seen'}")
        for call in self.seen:
            _check(call)
        # The same trace gets the same name, so that a link to it still holds when the server is started again.
        told = [self.seen.model, self.title, [[call.name, *call.shape] for call in self.seen], self.seen.tokens]
        first = self.seen[0].weights.detached.a.flatten()[:256].double().sum().item()
        self.id = hashlib.blake2b(json.dumps([*told, first]).encode(), digest_size=6).hexdigest()

    @classmethod
    def of(
        cls, seen: Seen, title: str = "", sides: dict[str, list[TokenLabels]] | None = None, **more: Any
    ) -> TraceView:
        """What `watch` saw, or `load_trace` read. Without `sides` all that is known are `seen.tokens`."""
        if sides is None and seen.sides:
            sides = {name: [TokenLabels.of(tokens)] for name, tokens in seen.sides.items()}
        if sides is None:
            entries = [TokenLabels.of(tokens) for tokens in seen.tokens or []]
            if seen.text is not None:
                entries[:1] = [TokenLabels.of_text(seen.text)]
            sides = {"text": entries} if entries else {}
        words = " ".join(token.strip(WORD_START) for token in (seen.tokens or [[]])[0][:12] if token.strip(WORD_START))
        return cls(seen, title or " · ".join(x for x in (seen.model, words) if x) or "trace", sides, seen.text, **more)

    # What there is

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "model": self.seen.model,
            "tokens": max(max(call.shape[-2:]) for call in self.seen),
            "calls": len(self.seen),
            "faithful": self.seen.faithful,
        }

    def call(self, number: int) -> Call:
        return self.seen[number]

    @property
    def batch(self) -> int:
        return max(call.shape[-4] if len(call.shape) > 3 else 1 for call in self.seen)

    def about(self, entry: int = 0) -> dict[str, Any]:
        with self._lock:
            calls = [self._told(at, call) for at, call in enumerate(self.seen)]
            sides = {name: found[min(entry, len(found) - 1)] for name, found in self.sides.items()}
            for call in calls:  # a matrix longer than its tokens, or without any, is named by places
                for way, length in (("query_side", call["queries"]), ("key_side", call["keys"])):
                    name = call[way]
                    fits = name in sides and 0 <= length - len(sides[name].tokens) <= 1
                    if not fits and length != len(sides.get(name, TokenLabels.numbers(0)).tokens):
                        name = f"{length} places"
                        sides.setdefault(name, TokenLabels.numbers(length))
                    elif len(sides[name].tokens) < length:
                        sides[name] = sides[name].fit(length)
                    call[way] = name
            first = next(iter(self.sides.values()), [TokenLabels.numbers(0)])
            return {
                **self.summary,
                "batch": self.batch,
                "entry": entry,
                "tokens": [labels.tokens for labels in first],
                "words": [labels.words for labels in first],
                "special": [labels.special for labels in first],
                "sides": {name: labels.tokens for name, labels in sides.items()},
                "side_words": {name: labels.words for name, labels in sides.items()},
                "side_special": {name: labels.special for name, labels in sides.items()},
                "side_sentences": self._sentences(entry),
                "prompt": self.prompt or self.seen.prompt,
                "missed": self.seen.missed,
                "calls": calls,
            }

    def _sentences(self, entry: int) -> dict[str, list[int]]:
        """Which of two sentences each token is of, −1 for special ones, where the model read a pair."""
        if self.text is None or self.text.segments is None or entry:
            return {}
        return {next(iter(self.sides)): self.text.segments.tolist()}

    def _told(self, at: int, call: Call) -> dict[str, Any]:
        faith = call.fidelity()
        *_, queries, keys = call.shape
        names = list(self.sides) or ["text"]
        query_side = key_side = names[0]
        if len(names) > 1:  # an encoder reads the source, a decoder the target
            if call.kind == "cross":
                query_side, key_side = "target", "source"
            elif "decoder" in call.name:
                query_side, key_side = "target", "read"
            else:
                query_side = key_side = "source"
        told = {
            "id": str(at),
            "name": call.name,
            "layer": call.layer,
            "kind": call.kind,
            "heads": call.heads,
            "queries": queries,
            "keys": keys,
            "steps": call.steps,
            "origin": call.origin,
            "fidelity": {
                "error": _finite(faith.error),
                "budget": _finite(faith.budget),
                "kept": faith.kept,
                "word": faith.word,
            },
            "query_side": query_side,
            "key_side": key_side,
        }
        if self.grid is not None and keys >= self.grid[0] * self.grid[1]:
            told["grid"] = list(self.grid)
        return told

    # Numbers

    def weights(self, number: int, entry: int) -> Weights:
        """Every head of one entry, [heads, T_q, T_k]."""
        call = self.call(number)
        with self._lock:
            weights = call.weights
        lead = len(weights.shape) - 2
        if lead == 0:
            raise ValueError(f"{call.name} has no heads to choose from")
        return weights[(*(0,) * (lead - 2), entry)] if lead > 1 else weights

    @torch.no_grad()
    def thumb(self, number: int, entry: int, size: int, pool: str) -> tuple[torch.Tensor, bool]:
        """[heads, size, size] of one call, and whether single queries stand for several."""
        weights = self.weights(number, entry)
        heads, queries, keys = weights.shape
        sampled = heads * queries * keys > THUMBS
        if sampled:
            weights = weights.rows([(2 * at + 1) * queries // (2 * size) for at in range(size)])
        cells = weights.map((size, size), pool).float().cpu()  # type: ignore[arg-type]
        rows, cols = (torch.arange(size) * n // size for n in cells.shape[-2:])  # fewer tokens than cells: repeated
        return cells[:, rows][..., cols], sampled

    @torch.no_grad()
    def statistics(self, number: int, entry: int) -> dict[str, Any]:
        """Of every head: mean entropy in nats, mean largest weight, mean weight on the first key, on the prompt."""
        weights, prompt = self.weights(number, entry), self.prompt or self.call(number).steps[0]
        heads, queries, keys = weights.shape
        rows = max(1, min(queries, SAMPLED // (heads * keys)))
        if rows < queries:
            weights = weights.rows(evenly_spaced(queries, rows).tolist())
        found = weights.stats(entropy=True, top=1, received=True)
        assert found.entropy is not None
        assert found.top is not None
        assert found.received is not None
        told: dict[str, Any] = {
            "id": str(number),
            "rows": rows,
            "of": queries,
            "entropy": _list(found.entropy.mean(-1)),
            "confidence": _list(found.top.values[..., 0].mean(-1)),
            "sink": _list(found.received[:, 0] / rows),
        }
        if prompt < queries:  # generated tokens: how much of each looks back at the prompt
            later = self.weights(number, entry).rows(slice(max(prompt, queries - rows), queries))
            told["prompt"] = _list(later.on(range(min(prompt, keys))).mean(-1))
        return told

    def patterns(self, entry: int) -> dict[str, Any]:
        """Scores and labels of every head, by the published definitions; or why there are none."""
        first = next(iter(self.sides.values()), [])
        if entry >= len(first):
            return {"heads": [], "thresholds": THRESHOLDS, "why": "the tokens of this trace are not known"}
        labels = first[entry]
        square = [call for call in self.seen if call.kind == "self" and call.shape[-2] == call.shape[-1]]
        cells = sum(call.heads * call.shape[-1] ** 2 for call in square)
        if cells > 1 << 28:
            return {
                "heads": [],
                "thresholds": THRESHOLDS,
                "why": f"{cells:,} weights are more than patterns are looked for in while you wait",
            }
        text = self.text if self.text is not None and entry == 0 else labels.text()
        patterns = Patterns()
        try:
            with self._lock:
                found = patterns.add(self.seen, text, entry)
        except ValueError as error:
            return {"heads": [], "thresholds": THRESHOLDS, "why": str(error)}
        numbers: dict[str, str] = {}
        for at, call in enumerate(self.seen):
            if call in square and call.name in found:
                numbers.setdefault(call.name, str(at))
        names = [numbers.get(name, name) for name in patterns.names]
        heads = [
            {"call": names[x.layer], "head": x.head, "scores": x.scores, "p": x.p, "labels": x.labels}
            for x in patterns.heads()
        ]
        return {"heads": heads, "thresholds": THRESHOLDS, "why": ""}


@torch.no_grad()
def _check(call: Call) -> None:
    """Refuse what cannot be asked: a trace from a stranger may say one thing and hold another."""
    try:
        *batch, queries, keys = call.shape
        scores = call.weights.detached
        widest = max(queries, keys) * scores.a.shape[-1] * 4
        if max(queries, keys) > limits.PLACES:
            raise ValueError(f"{max(queries, keys):,} places; at most {limits.PLACES:,} can be shown")
        if not batch or math.prod(batch) > limits.MATRICES or math.prod(batch) * widest > limits.VECTORS:
            raise ValueError(f"{batch} matrices of {queries:,} × {keys:,} are none, or more than can be shown")
        if sum(call.steps) != queries or min(call.steps) < 1:
            raise ValueError(f"its forward passes brought {sum(call.steps):,} queries, and there are {queries:,}")
        call.weights.rows([0, queries - 1]).tile(slice(None), [0, keys - 1])  # a look at its corners
    except Exception as error:
        raise ValueError(f"{call.name[:80]} cannot be shown: {str(error)[:300]}") from None


def _finite(x: float | None) -> float | None:
    return None if x is None or x != x or abs(x) == float("inf") else x


def _list(x: torch.Tensor) -> list[float]:
    return [round(one, 6) for one in x.float().cpu().nan_to_num(0).tolist()]
