"""Every attention since 2014 in the one formula: `python -m tools.variants_page` writes docs/variants.md.

Formulas and code are the table in tools/variants.py. What is said of backends, of `watch` and the pictures is what
running them gave: 510 tokens for the backend, 12 for the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

import regard
from regard import Weights
from regard.seeing.terminal import SHADES
from tools.variants import VARIANTS, Usual, Variant, inputs, run

PAGE = Path(__file__).parent.parent / "docs" / "variants.md"
SHORT, LONG = 12, 510

INTRODUCTION = """# Variants: every attention since 2014 in the one formula

    e_ij = energy(q_i, k_j)        w_i = normalize(e_i, mask)        z_i = Σ_j w_ij v_j

Each variant below has its paper, its formula, and the same by `attend` in at most five lines.
`python -m tools.variants_page` writes this page from tools/variants.py, where each formula also stands as its paper has
it; `tests/attention/test_variants.py` compares the two in float64, outputs and weights.

In scope are `regard`'s names, `torch`, `F = torch.nn.functional`, `T` tokens, `H` heads of width `D`, the places `i` of
queries (`[T, 1]`) and `j` of keys (`[T]`), and `blocks(x)`, the means of three rows each. `q`, `k`, `v` are
`[B, H, T, D]`; other inputs have the names of the formula. `z` are the outputs, `w` the weights, a `Weights` or a
tensor.

- **backend** is what `explain` names for 510 tokens on a CPU.
- **watch** is what `regard.watch` says of a model that computes the variant in its usual way: the formula as written
  in PyTorch, or its kernel (sdpa) where models call that. *Proved* means that W·v is what flowed on; *nothing*, that
  there is neither a kernel nor a product with a softmax. `regard.note(q, k, v, out, normalize=…)` shows it then.
- The pictures are the weights of the first head over 12 tokens, rows are queries: `░▒▓█` up to the largest, `·` exactly
  0, `-` and `=` less than 0.
"""


def backends(variant: Variant) -> str:
    """What runs the code's calls of `attend`."""
    names: list[str] = []
    given = inputs(LONG, torch.float32)

    def attend(*args: object, **options: object) -> object:
        names.append(regard.explain(*args, **options).backend)  # type: ignore[arg-type]
        return regard.attend(*args, **options)  # type: ignore[call-overload]

    with torch.no_grad():
        run(variant, given | {"attend": attend})
    return ", ".join(dict.fromkeys(names))


def seen_as(variant: Variant, weights: Tensor) -> str:
    """What a trace of the usual code has, beside the weights of the formula."""
    given = inputs(SHORT, torch.float64)
    with torch.no_grad(), regard.watch(model := Usual(variant)) as seen:
        model(**variant.arguments(given))
    if not seen.calls:
        return "nothing" + ("; named as missed" if seen.missed else "")
    if len(seen.calls) > 1 and not any(_is_same(call.weights, weights) for call in seen.calls):
        what = f"{len(seen.calls)} matrices, not their sum"
    else:
        what = "its matrix" if _is_same(seen.calls[0].weights, weights) else f"a matrix {list(seen.calls[0].shape)}"
    verdicts = {call.fidelity().faithful for call in seen.calls}
    proof = "proved" if verdicts == {True} else "not proved" if None in verdicts else "NOT what flowed on"
    return f"{what}, {proof}"


def _is_same(w: Weights, truth: Tensor) -> bool:
    dense, truth = w.dense().squeeze(), truth.squeeze()
    return dense.shape == truth.shape and torch.allclose(dense, truth.to(dense.dtype), atol=1e-5)


def picture(w: Tensor) -> str:
    """One matrix, two characters a cell."""
    w = w.detach().reshape(-1, *w.shape[-2:])[0]
    most = w.abs().max()

    def cell(x: float) -> str:
        if x == 0:
            return "· "
        if x < 0:
            return ("=" if -x > most / 2 else "-") * 2
        return SHADES[max(1, round(x / float(most) * (len(SHADES) - 1)))] * 2

    return "\n".join("".join(map(cell, row)).rstrip() for row in w.tolist())


def matrix(variant: Variant) -> Tensor:
    _, w = run(variant, inputs(SHORT))
    dense = w.dense() if isinstance(w, Weights) else w
    assert dense is not None
    return dense


def row(variant: Variant) -> str:
    place = re.sub(r"[^\w -]", "", variant.name.lower()).replace(" ", "-")
    paper = f"[{variant.paper}](https://arxiv.org/abs/{variant.arxiv})"
    return f"| [{variant.name}](#{place}) | {paper} | {backends(variant)} | {seen_as(variant, matrix(variant))} |"


def section(variant: Variant) -> str:
    remark = f"{variant.remark}\n\n" if variant.remark else ""
    return f"""## {variant.name}

`{variant.formula}`

{remark}```python
{variant.code}
```

```text
{picture(matrix(variant))}
```
"""


def page() -> str:
    table = "\n".join(["| variant | paper | backend | watch |", "|---|---|---|---|", *map(row, VARIANTS)])
    return "\n".join([INTRODUCTION, table, "", *map(section, VARIANTS)])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(VARIANTS)} variants")


if __name__ == "__main__":
    main()
