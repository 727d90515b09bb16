"""Each row of docs/variants.md: the code by `attend` gives the paper's formula, in float64."""

from __future__ import annotations

import pytest
import torch

import regard
from tools.variants import VARIANTS, inputs, run
from tools.variants_page import PAGE, page

TOKENS = 12
NAMED = {variant.name: variant for variant in VARIANTS}


@pytest.mark.parametrize("name", NAMED)
def test_attend_is_the_papers_formula(name: str) -> None:
    variant, given = NAMED[name], inputs(TOKENS)
    z, w = run(variant, given)
    truth, weights = variant.plain(**variant.arguments(given))
    assert z.dtype == torch.float64
    torch.testing.assert_close(z, truth, rtol=1e-9, atol=1e-10)
    dense = w.dense() if isinstance(w, regard.Weights) else w
    torch.testing.assert_close(dense, weights.expand_as(dense), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMED)
def test_the_usual_code_is_the_same_function(name: str) -> None:
    variant, given = NAMED[name], inputs(TOKENS)
    arguments = variant.arguments(given)
    usual, truth = variant.usual(**arguments)[0], variant.plain(**arguments)[0]
    torch.testing.assert_close(usual.reshape(truth.shape), truth, rtol=1e-9, atol=1e-10)


def test_names_and_lengths() -> None:
    assert len(NAMED) == len(VARIANTS) >= 30
    for variant in VARIANTS:
        assert len([line for line in variant.code.splitlines() if line]) <= 5, variant.name


def test_the_page_says_what_running_them_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python -m tools.variants_page"


@pytest.mark.parametrize("name", ["README.md", "docs/course/03_energies.md"])
def test_pages_that_count_them(name: str) -> None:
    assert f"{len(VARIANTS)} published attentions" in (PAGE.parent.parent / name).read_text(encoding="utf-8")
