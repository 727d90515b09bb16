"""The exercises of the course (docs/course): `questions()` lists them, `check(name, answer)` judges an answer."""

from .check import Choice, Exercise, Function, Quantity, Verdict, check, questions
from .notebook_figures import Animation, heat_map

__all__ = ["Animation", "Choice", "Exercise", "Function", "Quantity", "Verdict", "check", "heat_map", "questions"]
