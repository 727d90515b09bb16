"""Every exercise accepts its right answer and explains each typical mistake with a text of its own."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from regard.learn import Choice, Exercise, Function, check, questions

EXERCISES = questions()


@pytest.mark.parametrize("task", EXERCISES, ids=lambda task: task.name)
def test_right_is_accepted_and_mistakes_are_explained(task: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(task.name, task.right), task.name
    assert capsys.readouterr().out.startswith(f"{task.name}: right. ")
    assert len(task.mistakes) >= 3
    texts = []
    for wrong, text in task.mistakes:
        verdict = check(task.name, wrong)
        assert not verdict
        assert verdict.text == text
        texts.append(text)
    assert len({*texts, task.hint, task.reason}) == len(texts) + 2, "each mistake has a text of its own"
    if isinstance(task, Choice):
        letters = {wrong for wrong, _ in task.mistakes} | {task.right}
        assert letters == set("abcdefgh"[: len(task.options)])


@pytest.mark.parametrize("task", [x for x in EXERCISES if isinstance(x, Function)], ids=lambda task: task.name)
def test_a_function_that_is_none_of_the_known_ones_gets_the_hint(task: Function) -> None:
    assert check(task.name, lambda *inputs: torch.full((), 123.456)).text == task.hint
    assert "raised ZeroDivisionError" in check(task.name, lambda *inputs: 1 / 0).text
    assert "Expected a function" in check(task.name, 3).text


def test_names_are_unique_and_every_chapter_has_two() -> None:
    names = [task.name for task in EXERCISES]
    assert len(names) == len(set(names))
    for chapter in {task.chapter for task in EXERCISES}:
        assert len(questions(chapter)) >= 2, chapter


def test_answers_of_other_kinds_and_shapes() -> None:
    assert "Expected one number; got a list of 2 numbers" in check("lookup-repeated-key", [50.0, 50.0]).text
    assert "Expected numbers; got str" in check("lookup-repeated-key", "fifty").text
    assert "letters a, b, c, d" in check("lookup-missing-key", "z").text
    assert check("lookup-repeated-key", torch.tensor(50))
    assert check("lookup-missing-key", " B ")
    hint = next(task.hint for task in EXERCISES if task.name == "lookup-repeated-key")
    assert check("lookup-repeated-key", 51.0).text == hint


def test_a_quotient_and_a_number_in_quotes_are_numbers_and_a_count_is_exact() -> None:
    assert check("boxes-325", Fraction(65, 2))
    assert check("boxes-325", "32.5")
    assert not check("boxes-325", "many")
    assert not check("transformer-parameters", 3.15e6)
    assert check("transformer-parameters", 3145728)


def test_without_an_answer_the_question_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not check("lookup-missing-key")
    printed = capsys.readouterr().out
    assert printed.startswith("lookup-missing-key: A dictionary")
    assert "\nb) " in printed
    with pytest.raises(KeyError, match="did you mean 'lookup-missing-key'"):
        check("lookup-missing", 1)


def test_regard_does_not_import_the_exercises() -> None:
    code = "import regard, sys; regard.attend; sys.exit('regard.learn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_printed_exercise_does_not_tell_its_answer() -> None:
    for task in questions():
        text = repr(task)
        assert task.question[:20] in text or repr(task.question)[1:20] in text
        assert task.reason not in text
        assert "right=" not in text


def test_a_letter_may_have_its_bracket() -> None:
    assert check("why-scale", "b)")
