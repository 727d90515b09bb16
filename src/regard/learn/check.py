"""Exercises: a question, its right answer, mistakes that lead to well-known wrong ones; `check` judges an answer."""

from __future__ import annotations

import difflib
import textwrap
import tomllib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERANCE = 0.005
"""Numbers may be given with two decimals."""


class AnswerError(ValueError):
    """An answer of a kind or shape that cannot be compared with the right one. The text says what is expected."""


@dataclass(frozen=True)
class Exercise(ABC):
    """One question of the course.

    `mistakes` are pairs (wrong answer, explanation): an answer equal to the wrong one is explained by that text.
    Other wrong answers get the `hint`. `reason` says why the right answer is right.
    """

    name: str
    chapter: int
    question: str
    right: Any = field(repr=False)  # a printed list of exercises does not tell the answers
    reason: str = field(repr=False)
    mistakes: Sequence[tuple[Any, str]] = field(repr=False)
    hint: str = field(repr=False)

    @abstractmethod
    def same(self, answer: Any, other: Any) -> bool:
        """Whether two answers count as equal. Raises AnswerError for an answer that cannot be one."""

    def explanation(self, answer: Any) -> str | None:
        """What is wrong with an answer; None if it is right."""
        try:
            if self.same(answer, self.right):
                return None
            texts = [text for wrong, text in self.mistakes if self.same(answer, wrong)]
        except AnswerError as error:
            return str(error)
        return texts[0] if texts else self.hint


@dataclass(frozen=True)
class Quantity(Exercise):
    """The answer is a number, or a list or tensor of numbers."""

    def same(self, answer: Any, other: Any) -> bool:
        value, expected = _numbers(answer), _numbers(other)
        shape = tuple(_numbers(self.right).shape)
        if tuple(value.shape) != shape:
            raise AnswerError(f"Expected {_shape_name(shape)}; got {_shape_name(tuple(value.shape))}.")
        if value.shape != expected.shape:
            return False
        if self.question.startswith("How many") and bool((expected == expected.round()).all()):
            return torch.equal(value, expected)  # a count is exact
        return torch.allclose(value, expected, rtol=TOLERANCE, atol=TOLERANCE)


@dataclass(frozen=True)
class Function(Exercise):
    """The answer is a function. It is called with each entry of `inputs` and compared by what it returns."""

    inputs: Sequence[tuple[Any, ...]] = ()

    def same(self, answer: Any, other: Any) -> bool:
        if not callable(answer):
            raise AnswerError(f"Expected a function; got {type(answer).__name__}.")
        return all(_same_result(self._result(answer, x), self._result(other, x)) for x in self.inputs)

    def _result(self, function: Any, inputs: tuple[Any, ...]) -> torch.Tensor:
        copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
        try:
            value = function(*copies)
        except Exception as error:
            shapes = ", ".join(str(tuple(x.shape)) if isinstance(x, torch.Tensor) else repr(x) for x in inputs)
            raise AnswerError(
                f"With inputs {shapes} the function raised {type(error).__name__}: {error}. {self.hint}"
            ) from error
        return _numbers(value)


@dataclass(frozen=True)
class Choice(Exercise):
    """The answer is the letter of one of the `options`."""

    options: Sequence[str] = ()

    def same(self, answer: Any, other: Any) -> bool:
        letters = "abcdefgh"[: len(self.options)]
        letter = answer.strip().rstrip(")").lower() if isinstance(answer, str) else answer
        if not isinstance(letter, str) or len(letter) != 1 or letter not in letters:
            raise AnswerError(f"Expected one of the letters {', '.join(letters)}; got {answer!r}.")
        return bool(letter == other)


def _numbers(value: Any) -> torch.Tensor:
    try:
        if isinstance(value, str | Fraction):  # "32.5", or a quotient from Python's fractions
            value = float(Fraction(value))
        if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
            value = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in value])
        return torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError):
        raise AnswerError(f"Expected numbers; got {type(value).__name__} {str(value)[:60]!r}.") from None


def _same_result(value: torch.Tensor, other: torch.Tensor) -> bool:
    return value.shape == other.shape and torch.allclose(value, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _shape_name(shape: tuple[int, ...]) -> str:
    if not shape:
        return "one number"
    if len(shape) == 1:
        return f"a list of {shape[0]} number{'s' if shape[0] != 1 else ''}"
    return " × ".join(map(str, shape)) + " numbers"


@cache
def _table() -> dict[str, Exercise]:
    """All exercises by name, those of exercises.toml and of function_exercises.py."""
    from .function_exercises import FUNCTIONS

    written = tomllib.loads(Path(__file__).with_name("exercises.toml").read_text(encoding="utf-8"))["exercise"]
    tasks = [Choice(**each) if "options" in each else Quantity(**each) for each in written]
    return {task.name: task for task in sorted([*tasks, *FUNCTIONS], key=lambda task: task.chapter)}


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
