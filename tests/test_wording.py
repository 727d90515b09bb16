"""Counts with their nouns; sentences about invalid values: what was given, and what was expected."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from regard.wording import count_of, problem_sentence


class Settings(BaseModel):
    model_config = {"extra": "forbid"}
    beams: int = Field(default=1, ge=1, le=1600)
    rate: float = Field(default=0.1, gt=0, lt=1)
    texts: list[Annotated[str, Field(max_length=2)]] = Field(default=[], max_length=1)
    word: str = Field(default="a", pattern=r"\S")
    kind: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"beams": 9999}, "is 9999; it should be less than or equal to 1600"),
        ({"beams": 0}, "is 0; it should be greater than or equal to 1"),
        ({"rate": 0.0}, "is 0.0; it should be greater than 0"),
        ({"rate": 1.0}, "is 1.0; it should be less than 1"),
        ({"texts": ["a", "b"]}, "is ['a', 'b']: List should have at most 1 item after validation, not 2"),
        ({"texts": ["abc"]}, "is 'abc': String should have at most 2 characters"),
        ({"word": " "}, "is ' '; it should have a character that is not a space"),
        ({"kind": "c"}, "is 'c'; it should be 'a' or 'b'"),
        ({"kind": "c" * 100}, f"is '{'c' * 78}…; it should be 'a' or 'b'"),
        ({"beam": 1}, "unknown key; did you mean beams?"),
        ({"x": 1}, "unknown key; known are beams, kind, rate, texts, word"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, dict) else "",
)
def test_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(values)
    assert [problem_sentence(problem, Settings.model_fields) for problem in caught.value.errors()] == [sentence]


@pytest.mark.parametrize(("count", "expected"), [(0, "0 rows"), (1, "1 row"), (1500, "1,500 rows")])
def test_the_noun_agrees_with_its_number(count: int, expected: str) -> None:
    assert count_of(count, "row") == expected


def test_a_plural_of_its_own() -> None:
    assert [count_of(n, "corpus", "corpora") for n in (1, 2)] == ["1 corpus", "2 corpora"]
