"""The exercises of the course (docs/course): `questions()` lists them, `check(name, answer)` judges an answer."""

from .animation import Animation, heat_map
from .check import Choice, Exercise, Function, Quantity, Verdict, check, questions

__all__ = ["Animation", "Choice", "Exercise", "Function", "Quantity", "Verdict", "check", "heat_map", "questions"]
