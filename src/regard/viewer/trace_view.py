"""One trace as the page shows it: its calls, tokens and their words, patterns."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..seeing.align import group_pieces
from ..seeing.patterns import THRESHOLDS, Patterns, strongest_links
from ..seeing.rollout_and_distances import evenly_spaced
from ..seeing.storage import load_trace
from ..seeing.text_models import WORD_START, TokenizedText
from .responses import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..attention.weights import Weights
    from ..seeing.call import Call
    from ..seeing.trace import Seen

SPECIAL = re.compile(r"\[[A-Z]+\d*\]|</?[a-z]+>|<\|.+\|>|<(start|end)_of_\w+>")


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """The tokens along one side of a matrix."""

    tokens: list[str]
    words: list[int]
    """The number of each token's word; a special token is a word of its own."""
    special: list[bool]

    @classmethod
    def of(cls, tokens: Sequence[str]) -> TokenLabels:
        """By the marks of tokenizers: ## before a piece that continues a word, ▁ or Ġ before one that begins a word."""
        special = [SPECIAL.fullmatch(token) is not None for token in tokens]
        continues = any(token.startswith("##") for token in tokens)
        begins = any(token[:1] in WORD_START[:2] for token in tokens if token)
        words, word = [], -1
        for at, token in enumerate(tokens):
            if continues:
                new = not token.startswith("##")
            elif begins:
                new = token[:1] in WORD_START[:2] and (at == 0 or tokens[at - 1] not in WORD_START)
            else:
                new = True
            if at == 0 or new or special[at] or special[at - 1]:
                word += 1
            words.append(word)
        return cls(list(tokens), words, special)

    @classmethod
    def of_text(cls, text: TokenizedText) -> TokenLabels:
        """By the word numbers of the tokenizer, where they are known."""
        if text.words is None:
            return cls.of(text.tokens)
        return cls(text.tokens, group_pieces(text)[0], [word is None for word in text.words])

    @classmethod
    def positions(cls, count: int) -> TokenLabels:
        """Position numbers, for where the tokens are not known."""
        return cls([str(at) for at in range(count)], list(range(count)), [False] * count)

    def padded(self) -> TokenLabels:
        """With one more label: a search may run one step more than it keeps, and padding has no tokens."""
        return TokenLabels([*self.tokens, ""], [*self.words, max(self.words, default=-1) + 1], [*self.special, True])

    def text(self) -> TokenizedText:
        """The text for head patterns where only the tokens are known: equal tokens get equal ids."""
        numbers = {token: at for at, token in enumerate(dict.fromkeys(self.tokens))}
        plain = TokenizedText.from_ids([numbers[token] for token in self.tokens], self.tokens)
        special = torch.tensor(self.special)
        delimiters = special & (torch.arange(len(special)) > 0)
        words = [None if odd else word for odd, word in zip(self.special, self.words, strict=True)]
        return replace(plain, delimiters=delimiters, punctuation=plain.punctuation & ~special, words=words)


SAMPLED = 1 << 24
"""Weights of a call that its statistics use; for a longer text, those of evenly spread queries."""
THUMBNAILS = 1 << 27
"""Weights of a call up to which thumbnails pool all of them; beyond, each row of cells shows one query."""


@dataclass(eq=False)
class TraceView:
    """`sides` are the token labels along queries and keys, one for each entry of the batch."""

    seen: Seen
    title: str
    sides: dict[str, list[TokenLabels]]
    text: TokenizedText | None = None
    grid: tuple[int, int] | None = None
    prompt: int = 0
    """Queries before the generated ones; by default those of the first forward pass."""
    made: dict[str, Any] | None = None
    """The model and the text it was made of: {"model", "text", "second", "generate"}, for links."""
    decoded: tuple[list[int], list[int]] | None = None
    """Token ids that the model of regard decodes from and into, once they were needed; see `trace_answers`."""
    pinned: bool = False
    """Whether it stays in the library however many traces are added."""
    id: str = ""
    owners: set[str] | None = None
    """The browsers that it is listed in, by session; None: all."""

    def __post_init__(self) -> None:
        if not self.seen.calls:
            raise ValueError(f"{self.title}: {self.seen.advice or 'no attention was watched'}")
        for call in self.seen.calls:
            _check(call)
        # The same trace gets the same id, so that a link to it still works after the server is restarted.
        shapes = [[call.name, *call.shape] for call in self.seen.calls]
        content = [self.seen.model, self.title, shapes, self.seen.tokens]
        first = self.seen.calls[0].weights.detached.a.flatten()[:256].double().sum().item()
        self.id = hashlib.blake2b(json.dumps([*content, first]).encode(), digest_size=6).hexdigest()

    @classmethod
    def of(cls, seen: Seen, title: str = "", **more: Any) -> TraceView:
        """The view of what `watch` or `load_trace` gave."""
        sides = {name: [TokenLabels.of(tokens)] for name, tokens in seen.sides.items()}
        if not sides and (seen.tokens or seen.text):
            sides = {"text": [TokenLabels.of(tokens) for tokens in seen.tokens or []]}
            if seen.text is not None:
                sides["text"][:1] = [TokenLabels.of_text(seen.text)]
        words = " ".join(token.strip(WORD_START) for token in (seen.tokens or [[]])[0][:12] if token.strip(WORD_START))
        return cls(seen, title or " · ".join(x for x in (seen.model, words) if x) or "trace", sides, seen.text, **more)

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "model": self.seen.model,
            "tokens": max(max(call.shape[-2:]) for call in self.seen.calls),
            "calls": len(self.seen.calls),
            "faithful": self.seen.faithful,
        }

    @property
    def batch(self) -> int:
        return max(call.shape[-4] if len(call.shape) > 3 else 1 for call in self.seen.calls)

    def describe(self, entry: int = 0) -> dict[str, Any]:
        """The calls, and the tokens along their sides, of one batch entry."""
        calls = [self._describe_call(at, call) for at, call in enumerate(self.seen.calls)]
        sides = {name: entries[min(entry, len(entries) - 1)] for name, entries in self.sides.items()}
        for call in calls:
            _shift_sides(call, sides)
        for call in calls:
            for side, length in (("query_side", call["queries"]), ("key_side", call["keys"])):
                name = call[side]
                known = len(sides[name].tokens) if name in sides else None
                if known == length - 1:
                    sides[name] = sides[name].padded()
                elif known != length:  # a side whose tokens are not known, or too few, is labelled by positions
                    call[side] = f"{length} places"
                    sides.setdefault(call[side], TokenLabels.positions(length))
        first = next(iter(self.sides.values()), [TokenLabels.positions(0)])
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
            "made": self.made,
            "calls": calls,
        }

    def _sentences(self, entry: int) -> dict[str, list[int]]:
        """The sentence of each token (0 or 1, −1 for special tokens), where the model read a pair."""
        if self.text is None or self.text.segments is None or entry:
            return {}
        return {next(iter(self.sides)): self.text.segments.tolist()}

    def _describe_call(self, at: int, call: Call) -> dict[str, Any]:
        fidelity = call.fidelity()
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
        description = {
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
                "error": fidelity.error,
                "budget": fidelity.budget,
                "kept": fidelity.faithful,
                "word": fidelity.remark,
                "rows": fidelity.rows,
            },
            "query_side": query_side,
            "key_side": key_side,
        }
        if self.grid is not None and keys >= self.grid[0] * self.grid[1]:
            description["grid"] = list(self.grid)
        return description

    def weights(self, number: int, entry: int) -> Weights:
        """The weights of every head of one entry, [heads, T_q, T_k]."""
        call = self.seen.calls[number]
        weights = call.weights
        lead = len(weights.shape) - 2
        if lead == 0:
            raise ValueError(f"{call.name} has no dimension of heads")
        return weights[(*(0,) * (lead - 2), entry)] if lead > 1 else weights

    @torch.no_grad()
    def thumbnails(self, number: int, entry: int, size: int, pool: str) -> tuple[torch.Tensor, bool]:
        """[heads, size, size] of one call, and whether each row of cells shows a single query."""
        weights = self.weights(number, entry)
        heads, queries, keys = weights.shape
        sampled = heads * queries * keys > THUMBNAILS
        if sampled:
            weights = weights.rows([(2 * at + 1) * queries // (2 * size) for at in range(size)])
        cells = weights.map((size, size), pool).float().cpu()  # type: ignore[arg-type]
        # With fewer tokens than cells they are repeated.
        rows, cols = (torch.arange(size) * n // size for n in cells.shape[-2:])
        return cells[:, rows][..., cols], sampled

    @torch.no_grad()
    def statistics(self, number: int, entry: int) -> dict[str, Any]:
        """For every head: mean entropy in nats, mean largest weight, mean weight on the first key and on the prompt."""
        weights, prompt = self.weights(number, entry), self.prompt or self.seen.calls[number].steps[0]
        heads, queries, keys = weights.shape
        rows = max(1, min(queries, SAMPLED // (heads * keys)))
        if rows < queries:
            weights = weights.rows(evenly_spaced(queries, rows).tolist())
        stats = weights.stats(entropy=True, top=1, received=True)
        assert stats.entropy is not None
        assert stats.top is not None
        assert stats.received is not None
        content: dict[str, Any] = {
            "id": str(number),
            "rows": rows,
            "of": queries,
            "entropy": rounded(stats.entropy.mean(-1)),
            "confidence": rounded(stats.top.values[..., 0].mean(-1)),
            "sink": rounded(stats.received[:, 0] / rows),
        }
        if prompt < queries:  # for generated tokens: how much of their weight is on the prompt
            later = self.weights(number, entry).rows(slice(max(prompt, queries - rows), queries))
            content["prompt"] = rounded(later.on(range(min(prompt, keys))).mean(-1))
        return content

    def patterns(self, entry: int) -> dict[str, Any]:
        """Pattern scores and labels of every head, or the reason why there are none."""
        first = next(iter(self.sides.values()), [])
        if entry >= len(first):
            return _no_patterns("the tokens of this trace are not known")
        labels = first[entry]
        square = [call for call in self.seen if call.kind == "self" and call.shape[-2] == call.shape[-1]]
        cells = sum(call.heads * call.shape[-1] ** 2 for call in square)
        if cells > 1 << 28:
            return _no_patterns(f"{cells:,} weights take too long")
        text = self.text if self.text is not None and entry == 0 else labels.text()
        patterns = Patterns()
        try:
            names = patterns.add(self.seen, text, entry)
        except ValueError as error:
            return _no_patterns(str(error))
        ids: dict[str, str] = {}
        for at, call in enumerate(self.seen.calls):
            if call in square and call.name in names:
                ids.setdefault(call.name, str(at))
        calls = [ids.get(name, name) for name in patterns.names]
        heads = [
            {"call": calls[x.layer], "head": x.head, "scores": x.scores, "p": x.p, "labels": x.labels}
            for x in patterns.heads()
        ]
        return {"heads": heads, "thresholds": THRESHOLDS, "why": ""}


def _shift_sides(call: dict[str, Any], sides: dict[str, TokenLabels]) -> None:
    """Label a call in which each token attends to those before it, as in an LSTMN: the first token has no row."""
    name, length = call["query_side"], call["queries"]
    labels = sides.get(name)
    if labels is None or call["kind"] != "self" or not call["keys"] == length == len(labels.tokens) - 1:
        return
    for side, part in (("query_side", slice(1, None)), ("key_side", slice(None, -1))):
        call[side] = f"{name}, {'later' if side == 'query_side' else 'earlier'}"
        sides[call[side]] = TokenLabels(labels.tokens[part], labels.words[part], labels.special[part])


@torch.no_grad()
def _check(call: Call) -> None:
    """Raise where a trace contradicts itself: its file may come from anybody."""
    try:
        *_, queries, keys = call.shape
        if sum(call.steps) != queries or min(call.steps) < 1:
            raise ValueError(f"its forward passes have {sum(call.steps):,} queries, but the call has {queries:,}")
        call.weights.rows([0, queries - 1]).tile(slice(None), [0, keys - 1])  # computes the corners
    except Exception as error:
        raise ValueError(f"{call.name[:80]} cannot be shown: {str(error)[:300]}") from None


def _no_patterns(why: str) -> dict[str, Any]:
    return {"heads": [], "thresholds": THRESHOLDS, "why": why}


LONGEST = 256
"""Tokens of a trace up to which the page opens on what stands out most in it."""


def opening(trace: TraceView) -> dict[str, Any]:
    """The state of the page that shows the head and the word whose weight is least a habit (seeing/habit.py)."""
    if max(max(call.shape[-2:]) for call in trace.seen) > LONGEST:
        return {}
    found = strongest_links(trace.seen, 1)
    return {"call": str(found[0].layer), "pins": [f"q{found[0].query}"], "mute": ["special"]} if found else {}


FOLDER = Path(__file__).parent / "data" / "minilm_cat_trace"
"""Written by tools/first_trace.py."""
MODEL = "minilm"
TEXT = "The cat sat on the mat because it was tired and warm."
STATE: dict[str, Any] = {"call": "5", "pins": ["q8"], "mute": ["special"]}
"""What the page shows first: the word “it” in the layer whose heads look most at “cat”, without [CLS] and [SEP]."""


def first_trace() -> TraceView:
    made = {"model": MODEL, "text": TEXT, "second": None, "generate": 0}
    return TraceView.of(load_trace(FOLDER), f"MiniLM · {TEXT}", made=made, pinned=True)
