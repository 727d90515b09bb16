"""`regard effects`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .shared_options import Device, ModelName, StateFolder, TrustRemoteCode, find_device
from .text_input import digest, one_text, text_or_lines
from .typer_app import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..seeing.capture.huggingface_text_model import TextModel
    from ..seeing.capture.tokenized_text import TokenizedText
    from ..seeing.corpus import Process, Sums
    from ..seeing.effects.effect_table import Effects
    from ..viewer.data.answer_inputs import AnswerInputs

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
    from ..seeing.corpus import Process
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
    language_model = _load(model, find_device(device, process.local), trust_remote_code)
    if file is None:
        title, result, tokens = _of_text(language_model, text or "", answer, instead, of, by, corrupted, exact)
    else:
        mean = _over_file(language_model, file, of, by, state, process)
        if mean is None:  # another process prints the result
            return
        title, result, tokens = f"logit of the answer, mean over {file}", mean, []
    _report(title, result, tokens, save_table, save_plot)


@dataclass(frozen=True, slots=True)
class _LanguageModel:
    """A model that continues a text, of Hugging Face or of regard."""

    name: str
    network: nn.Module
    answers: Callable[[str], AnswerInputs]
    """The next tokens after a text."""
    tokens: Callable[[str], list[str]]


def _load(name: str, device: str, trust_remote_code: bool) -> _LanguageModel:
    from ..decoding import load_model_and_tokenizers
    from ..seeing.capture.huggingface_text_model import load_text_model
    from ..viewer.data.answer_inputs import text_model_answers, writer_answers

    if load_model_and_tokenizers.is_own_model(name):
        own = load_model_and_tokenizers.load(name, device, wanted=("write",))
        tokenizer = own.tokenizers.target
        return _LanguageModel(
            name,
            own.model,
            lambda text: writer_answers(own, tokenizer.continued(_some_text(text))),
            lambda text: tokenizer.pieces(tokenizer.continued(text)),
        )
    text_model = load_text_model(name, device, with_head=True, trust_remote_code=trust_remote_code)
    return _LanguageModel(
        text_model.name,
        text_model.model,
        lambda text: text_model_answers(text_model, _whole_text(text_model, text)),
        lambda text: text_model.encode(text).tokens,
    )


def _of_text(
    language_model: _LanguageModel,
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

    answers = language_model.answers(text)
    other = None if corrupted is None else language_model.answers(corrupted).inputs
    if answer is None:
        with torch.no_grad():
            chosen = int(answers.scores(answers.model(**answers.inputs))[0].argmax())
    else:
        chosen = answers.find(answer)
    metric = answers.metric(chosen, None if instead is None else answers.find(instead))
    result = sweep(answers.model, answers.inputs, metric, of=of, by=by, corrupted=other, exact=exact)
    words = [answers.names([chosen])[0].strip("▁Ġ ") or " ", *([] if instead is None else [instead])]
    return f"logit of {' less that of '.join(repr(word) for word in words)}", result, language_model.tokens(text)


def _over_file(
    language_model: _LanguageModel, file: Path, of: Of, by: By, state: Path | None, process: Process
) -> Effects | None:
    """The mean effects over the lines of a file; None in all processes but the first."""
    from .. import __version__
    from ..seeing.analysis import effects as sweep
    from ..seeing.corpus import add_effects, mean_effects, progress_bar, run_corpus, weights_digest

    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    lines = text_or_lines(str(file), MAX_TEXTS)
    rows = [line.split("\t") for line in lines]
    chosen: list[list[int]] = []
    for number, row in enumerate(rows, 1):  # all of them before the first run, which may take hours
        if len(row) not in (2, 3):
            raise ValueError(
                f"{file}, text {number}: expected a text, an answer and perhaps another, got {len(row)} cells"
            )
        try:
            answers = language_model.answers(row[0])
            chosen.append([answers.find(word) for word in row[1:]])
        except ValueError as error:
            raise ValueError(f"{file}, text {number}: {error}") from None

    def add(sums: Sums, number: int) -> None:
        answers = language_model.answers(rows[number][0])
        metric = answers.metric(*chosen[number])
        add_effects(sums, sweep(answers.model, answers.inputs, metric, of=of, by=by, progress=False))

    settings = {
        "analysis": f"effects of {of} by {by}",
        "model": language_model.name,
        "weights": weights_digest(language_model.network),
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


def _some_text(text: str) -> str:
    if not text.strip():
        raise ValueError("there is no text to read: it is empty")
    return text


def _whole_text(text_model: TextModel, text: str) -> TokenizedText:
    """The whole text: the logits after a truncated one are not those of its next word."""
    from ..seeing.capture.tokenized_text import TokenizedText

    limit = text_model.max_length
    whole = TokenizedText.encode(text_model.tokenizer, _some_text(text), None, limit + 1)
    if len(whole) > limit:
        raise ValueError(f"the text has more than {limit} tokens, which is as many as {text_model.name} reads")
    return whole
