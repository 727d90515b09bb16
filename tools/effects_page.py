"""python -m tools.effects_page: what heads of SmolLM2 do on the indirect-object task; writes docs/effects.svg and .md.

What stands between <!-- effects --> and <!-- end --> of docs/effects.md is rewritten. It takes a minute or two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import regard
from regard.seeing.analysis import effects, logit_attribution
from regard.seeing.figures import save_head_maps
from regard.seeing.text_models import load_text_model

from .indirect_object_prompts import indirect_objects

if TYPE_CHECKING:
    from torch import Tensor

PAGE = Path(__file__).parent.parent / "docs" / "effects.md"
SHOWN = 6


def main() -> None:
    text_model = load_text_model("smollm2", with_head=True)
    model, task = text_model.model, indirect_objects(text_model.tokenizer)
    name = [row.tolist().index(answer) for row, answer in zip(task.ids, task.answers, strict=True)]
    with torch.no_grad(), regard.watch(model) as seen:
        model(task.ids)
    parts = logit_attribution(model, task.ids, task.answers, task.others)
    inputs = {"input_ids": task.ids, "logits_to_keep": 1, "use_cache": False}
    estimated = effects(model, inputs, task.difference, exact=0)
    swept = effects(model, inputs, task.difference)
    looks = torch.stack(
        [torch.stack([call.weights[n].tile(-1, at)[:, 0, 0] for n, at in enumerate(name)]).mean(0) for call in seen]
    )
    maps = {
        "weight on the name": looks.double(),
        "direct logit attribution": parts.heads.mean(0),
        "estimate of silencing": estimated.matrix(),
        "silencing": swept.matrix(),
    }
    save_head_maps(PAGE.with_suffix(".svg"), maps, signed=True)
    rows = [f"| {title} | {_strongest(values)} |" for title, values in maps.items()]
    table = "\n".join(["| | heads of largest size (layer.head value) |", "|---|---|", *rows])
    error = float((parts.total - parts.logit).abs().max())
    notes = (
        f"Mean logit difference {float(swept.base.mean()):.3f} over {len(task.ids)} prompts. The parts of direct logit "
        f"attribution differ from the model's own logits by {error:.1e} at most."
    )
    text = re.sub(
        r"(<!-- effects -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{table}\n\n{notes}\n{match[2]}",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    PAGE.write_text(text, encoding="utf-8")
    print(table, notes, sep="\n\n")


def _strongest(values: Tensor) -> str:
    heads = values.shape[1]
    order = values.abs().flatten().argsort(descending=True)[:SHOWN].tolist()
    return ", ".join(f"{at // heads}.{at % heads} {float(values.flatten()[at]):+.2f}" for at in order)


if __name__ == "__main__":
    main()
