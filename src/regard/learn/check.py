"""All exercises of the course by name. A chapter's list of exercises is added to `TABLE` here."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .exercise import Choice
from .exercises_lookup import ALIGNMENT, LOOKUP
from .exercises_models import CLASSIFICATION, RECURRENT, TRANSFORMER, TRANSFORMER_LAYER
from .exercises_self_attention import HEADS_AND_MASKS, SELF_ATTENTION

if TYPE_CHECKING:
    from .exercise import Exercise

TABLE = (
    *LOOKUP,
    *SELF_ATTENTION,
    *HEADS_AND_MASKS,
    *TRANSFORMER_LAYER,
    *TRANSFORMER,
    *RECURRENT,
    *ALIGNMENT,
    *CLASSIFICATION,
)


@cache
def _table() -> dict[str, Exercise]:
    return {task.name: task for task in sorted(TABLE, key=lambda task: task.chapter)}


def questions(chapter: int | None = None) -> list[Exercise]:
    """The exercises of one chapter, or all of them in the order of the course."""
    return [task for task in _table().values() if chapter in (None, task.chapter)]


def exercise(name: str) -> Exercise:
    if name not in _table():
        near = difflib.get_close_matches(name, _table(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "questions() lists them"
        raise KeyError(f"no exercise is called {name!r}; {hint}")
    return _table()[name]


WIDTH = 100


@dataclass(frozen=True)
class Verdict:
    """True in an `if` where the answer is right. `text` is the reason, or the explanation of the mistake."""

    right: bool
    text: str

    def __bool__(self) -> bool:
        return self.right

    def _ipython_display_(self) -> None:
        """Nothing: `check` has printed it already."""


def check(name: str, answer: Any = ...) -> Verdict:
    """Print and return whether `answer` is right, and why. Without an answer, print the question.

    check("boxes-325", 32.5)
    """
    task = exercise(name)
    if answer is ... or answer is None:
        verdict = Verdict(False, question_text(task))
        print(verdict.text)
        return verdict
    mistake = task.explanation(answer)
    verdict = Verdict(True, task.reason) if mistake is None else Verdict(False, mistake)
    print(_wrapped(f"{name}: {'right' if verdict.right else 'not yet'}. {verdict.text}"))
    return verdict


def question_text(task: Exercise) -> str:
    """The name and the question, with the options of a choice below it."""
    lines = [_wrapped(f"{task.name}: {task.question}")]
    if isinstance(task, Choice):
        lines += [_wrapped(f"{letter}) {text}", "   ") for letter, text in zip("abcdefgh", task.options, strict=False)]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
