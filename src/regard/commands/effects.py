"""`regard effects`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .shared_options import Device, ModelName, TrustRemoteCode, find_device
from .text_input import one_text
from .typer_app import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@app.command()
def effects(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="What the model reads, in quotes.")],
    answer: Annotated[
        str | None, typer.Option(metavar="WORD", help="The next word to explain. [default: the likeliest]")
    ] = None,
    instead: Annotated[
        str | None, typer.Option(metavar="WORD", help="Another word: the difference of the two logits is explained.")
    ] = None,
    of: Annotated[
        Literal["heads", "layers", "tokens"], typer.Option(help="What is replaced, one at a time.")
    ] = "heads",
    by: Annotated[Literal["zero", "mean", "patch"], typer.Option(help="By what it is replaced.")] = "zero",
    corrupted: Annotated[
        str | None, typer.Option(metavar="TEXT", help="For --by patch: a text of as many tokens, which is repaired.")
    ] = None,
    exact: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Estimate all from one backward pass, then run the N largest."),
    ] = None,
    save_table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write all effects: .csv or .parquet.")
    ] = None,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the effects of heads: .png, .svg or .pdf.")
    ] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find which heads, layers or tokens a language model's next word depends on, by replacing one at a time.

    \b
    Examples:
      regard effects smollm2 "When Mary and John went out, John gave a book to" --answer Mary --instead John
      regard effects smollm2 "The capital of France is" --of tokens
      regard effects smollm2 "The capital of France is" --exact 20 --save-table heads.csv
    """
    import torch
    from rich.console import Console

    from ..seeing.analysis import effects as sweep
    from ..seeing.capture.huggingface_text_model import load_text_model
    from ..seeing.drawing.matplotlib_figures import check_figure_path, save_signed_maps
    from ..seeing.result_table import check_table_path

    if save_plot is not None:
        check_figure_path(save_plot)
        if of != "heads":
            raise ValueError(f"--save-plot draws layers × heads; these are effects of {of}")
    if save_table is not None:
        check_table_path(save_table)
    text_model = load_text_model(model, find_device(device), with_head=True, trust_remote_code=trust_remote_code)
    tokenizer, where = text_model.tokenizer, next(text_model.model.parameters()).device
    text = text_model.encode(one_text(texts) or "")
    inputs = {"input_ids": text.ids[None].to(where)}
    other = None if corrupted is None else {"input_ids": text_model.encode(corrupted).ids[None].to(where)}
    if answer is None:
        with torch.no_grad():
            chosen = int(text_model.model(**inputs).logits[0, -1].argmax())
    else:
        chosen = _token(tokenizer, answer)
    metric = _metric(chosen, None if instead is None else _token(tokenizer, instead))
    result = sweep(text_model.model, inputs, metric, of=of, by=by, corrupted=other, exact=exact)
    console = Console()
    words = [tokenizer.decode([chosen]).strip(), *([] if instead is None else [instead])]
    console.print(f"logit of {' less that of '.join(repr(word) for word in words)}", markup=False)
    console.print(repr(result), markup=False)
    if of == "tokens":
        lines = [f"  token {site.token}: {text.tokens[site.token or 0]!r}" for site, _ in result.strongest(10)]
        console.print("\n".join(lines), markup=False)
    if save_table is not None:
        result.save(save_table)
        console.print(f"wrote {save_table}", markup=False)
    if save_plot is not None:
        save_signed_maps(save_plot, {f"effect by {by}": result.matrix()})
        console.print(f"wrote {save_plot}", markup=False)


def _token(tokenizer: Any, word: str) -> int:
    """The first token of a word after a space."""
    ids = tokenizer(f" {word.strip()}", add_special_tokens=False)["input_ids"]
    if not word.strip() or not ids:
        raise ValueError(f"{word!r} is no word; give one that the model may continue with")
    return int(ids[0])


def _metric(chosen: int, other: int | None) -> Callable[[Any], Tensor]:
    def metric(output: Any) -> Tensor:
        logits: Tensor = output.logits[:, -1]
        return logits[:, chosen] if other is None else logits[:, chosen] - logits[:, other]

    return metric
