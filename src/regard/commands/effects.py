"""`regard effects`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .shared_options import Device, ModelName, StateFolder, TrustRemoteCode, find_device
from .text_input import digest, one_text, text_or_lines
from .typer_app import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..seeing.capture.huggingface_text_model import TextModel
    from ..seeing.corpus.corpus_run import Process
    from ..seeing.corpus.exact_sums import ExactSums
    from ..seeing.effects.effect_table import Effects

Of = Literal["heads", "layers", "tokens"]
By = Literal["zero", "mean", "patch"]
MAX_TEXTS = 1_000_000
"""Lines of a --file."""


@app.command()
def effects(
    model: ModelName,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="What the model reads, in quotes; or give --file.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tsv", help="A text, tab, answer [, tab, instead] per line: mean effects over them."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="WORD", help="The next word to explain. [default: the likeliest]")
    ] = None,
    instead: Annotated[
        str | None, typer.Option(metavar="WORD", help="Another word: the difference of the two logits is explained.")
    ] = None,
    of: Annotated[Of, typer.Option(help="What is replaced, one at a time.")] = "heads",
    by: Annotated[By, typer.Option(help="By what it is replaced.")] = "zero",
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
    state: StateFolder = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find which heads, layers or tokens a language model's next word depends on, by replacing one at a time.

    \b
    Examples:
      regard effects smollm2 "When Mary and John went out, John gave a book to" --answer Mary --instead John
      regard effects smollm2 "The capital of France is" --of tokens
      regard effects smollm2 "The capital of France is" --exact 20 --save-table heads.csv
      torchrun --nproc-per-node 8 -m regard effects smollm2 --file prompts.tsv --state sums
    """
    from ..seeing.capture.huggingface_text_model import load_text_model
    from ..seeing.corpus.corpus_run import Process
    from ..seeing.drawing.matplotlib_figures import check_figure_path
    from ..seeing.result_table import check_table_path

    if save_plot is not None:
        check_figure_path(save_plot)
        if of != "heads":
            raise ValueError(f"--save-plot draws layers × heads; these are effects of {of}")
    if save_table is not None:
        check_table_path(save_table)
    text, process = one_text(texts), Process.from_environment()
    if (text is None) == (file is None):
        raise ValueError("give one text; or --file, with a text, a tab and its answer on each line")
    if file is None and (state is not None or process.count > 1):
        raise ValueError("--state and several processes are for the texts of a --file; one text is one process's work")
    if file is not None and (of == "tokens" or by == "patch"):
        raise ValueError(
            "over a --file there are effects of heads and layers by zero or mean, no --of tokens, --by patch"
        )
    if file is not None and any(option is not None for option in (answer, instead, corrupted, exact)):
        raise ValueError(
            "the lines of a --file hold the answers; --answer, --instead, --corrupted and --exact are for one text"
        )
    text_model = load_text_model(
        model, find_device(device, process.local), with_head=True, trust_remote_code=trust_remote_code
    )
    if file is None:
        title, result, tokens = _of_text(text_model, text or "", answer, instead, of, by, corrupted, exact)
    else:
        mean = _over_file(text_model, file, of, by, state, process)
        if mean is None:  # another process prints the result
            return
        title, result, tokens = f"logit of the answer, mean over {file}", mean, []
    _report(title, result, tokens, save_table, save_plot)


def _of_text(
    text_model: TextModel,
    text: str,
    answer: str | None,
    instead: str | None,
    of: Of,
    by: By,
    corrupted: str | None,
    exact: int | None,
) -> tuple[str, Effects, list[str]]:
    """What is explained, the effects, and the text's tokens."""
    import torch

    from ..seeing.analysis import effects as sweep

    tokenizer, read = text_model.tokenizer, text_model.encode(text)
    inputs = _inputs(text_model, text)
    other = None if corrupted is None else _inputs(text_model, corrupted)
    if answer is None:
        with torch.no_grad():
            chosen = int(text_model.model(**inputs).logits[0, -1].argmax())
    else:
        chosen = _token(tokenizer, answer)
    metric = _metric(chosen, None if instead is None else _token(tokenizer, instead))
    result = sweep(text_model.model, inputs, metric, of=of, by=by, corrupted=other, exact=exact)
    words = [tokenizer.decode([chosen]).strip(), *([] if instead is None else [instead])]
    return f"logit of {' less that of '.join(repr(word) for word in words)}", result, read.tokens


def _over_file(
    text_model: TextModel, file: Path, of: Of, by: By, state: Path | None, process: Process
) -> Effects | None:
    """The mean effects over the lines of a file; None in all processes but the first."""
    from .. import __version__
    from ..seeing.analysis import effects as sweep
    from ..seeing.corpus.corpus_run import progress_bar, run_corpus, weights_digest
    from ..seeing.corpus.mean_effects import add_effects, mean_effects

    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    lines = text_or_lines(str(file), MAX_TEXTS)
    rows = [line.split("\t") for line in lines]
    answers: list[list[int]] = []
    for number, row in enumerate(rows, 1):  # all of them before the first run, which may take hours
        if len(row) not in (2, 3):
            raise ValueError(
                f"{file}, text {number}: expected a text, an answer and perhaps another, got {len(row)} cells"
            )
        try:
            _inputs(text_model, row[0])
            answers.append([_token(text_model.tokenizer, word) for word in row[1:]])
        except ValueError as error:
            raise ValueError(f"{file}, text {number}: {error}") from None

    def add(sums: ExactSums, number: int) -> None:
        tokens = answers[number]
        metric = _metric(tokens[0], tokens[1] if len(tokens) > 1 else None)
        inputs = _inputs(text_model, rows[number][0])
        add_effects(sums, sweep(text_model.model, inputs, metric, of=of, by=by, progress=False))

    settings = {
        "analysis": f"effects of {of} by {by}",
        "model": text_model.name,
        "weights": weights_digest(text_model.model),
        "regard": __version__,
        "texts": digest(lines),
    }
    sums = run_corpus(len(rows), add, state, settings, process=process, progress=progress_bar("texts", process))
    return None if sums is None else mean_effects(sums, by)


def _report(title: str, result: Effects, tokens: list[str], save_table: Path | None, save_plot: Path | None) -> None:
    from rich.console import Console

    from ..seeing.drawing.matplotlib_figures import save_signed_maps

    console = Console()
    console.print(title, markup=False)
    console.print(repr(result), markup=False)
    if result.of == "tokens":
        lines = [f"  token {site.token}: {tokens[site.token or 0]!r}" for site, _ in result.strongest(10)]
        console.print("\n".join(lines), markup=False)
    if save_table is not None:
        result.save(save_table)
        console.print(f"wrote {save_table}", markup=False)
    if save_plot is not None:
        save_signed_maps(save_plot, {f"effect by {result.by}": result.matrix()})
        console.print(f"wrote {save_plot}", markup=False)


def _inputs(text_model: TextModel, text: str) -> dict[str, Tensor]:
    """The whole text: the logits after a truncated one are not those of its next word."""
    from ..seeing.capture.tokenized_text import TokenizedText

    if not text.strip():
        raise ValueError("there is no text to read: it is empty")
    limit, device = text_model.max_length, next(text_model.model.parameters()).device
    whole = TokenizedText.encode(text_model.tokenizer, text, None, limit + 1)
    if len(whole) > limit:
        raise ValueError(f"the text has more than {limit} tokens, which is as many as {text_model.name} reads")
    return {"input_ids": whole.ids[None].to(device)}


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
