"""The exercises of the course (docs/course): `questions()` lists them, `check(name, answer)` judges an answer."""

from .animation import Animation
from .check_answer import Verdict, check
from .exercise import Choice, Exercise, Function, Quantity
from .exercise_table import questions
from .heat_map import heat_map

__all__ = ["Animation", "Choice", "Exercise", "Function", "Quantity", "Verdict", "check", "heat_map", "questions"]
