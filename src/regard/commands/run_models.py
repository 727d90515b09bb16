"""Trained models of other tasks, and exports: `regard generate`, `classify`, `caption`, `export`, `serve`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from . import inputs, options
from .options import app, check_outputs, check_port, find_device, output_console, remark, search_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from fastapi import FastAPI

    from ..decoding.classification import Classification
    from ..decoding.model_folders import Pretrained
    from ..decoding.translation import Translation


LANGUAGE_MODEL = "shakespeare-transformer"  # that ships


@app.command()
def generate(
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from a pipe. [default: a new line]"),
    ] = "",
    model: options.Model = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="How many tokens to generate.")] = 500,
    temperature: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Sampling temperature; 0 takes the likeliest token.")
    ] = 0.8,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Random seed. [default: a new one, printed]"),
    ] = None,
    device: options.Device = "auto",
) -> None:
    """Continue a text with a language model.

    Each token is printed as soon as it is sampled; Ctrl-C stops.

    \b
    Examples:
      regard generate
      regard generate "ROMEO:" --tokens 300 --seed 1
      regard generate --temperature 0.5 --top-p 0.9 "Good morrow"
      regard generate --model runs/lstm-shakespeare-1 --temperature 0 "The king"
      head -c 200 play.txt | regard generate -
    """
    if temperature == 0 and (top_k, top_p, seed) != (0, 1.0, None):
        raise ValueError("--top-k, --top-p and --seed are for sampling; --temperature 0 does not sample")
    if prompt == "-":
        prompt = inputs.standard_input().read()
        if not prompt:
            remark("standard input is empty, so the text begins on a new line")
    from ..decoding import model_folders
    from ..decoding.beam import Sample
    from ..decoding.generation import generate as generate_text

    used_seed = secrets.randbelow(1 << 31) if seed is None else seed
    sample = Sample(temperature, top_k, top_p, used_seed) if temperature else None
    loaded = model_folders.load(model or LANGUAGE_MODEL, find_device(device), wanted=("write",))
    pieces = generate_text(loaded.model, loaded.tokenizers.target, prompt, tokens=tokens, sample=sample)
    first = next(pieces, "")  # an error about the prompt comes before any output
    if sample is not None and seed is None:
        remark(f"--seed {used_seed} generates this again")
    print(prompt, end="")
    print(first if prompt else first.lstrip(" "), end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    print(flush=True)


TEXT_MODEL, SOUND_MODEL = "opinions-lstm", "digits-cnn"  # that ship
MAX_LABELS = 5  # printed for one text or sound


@app.command()
def classify(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT|SOUND", help="Each argument is one text, or a sound file.")
    ] = None,
    model: options.Model = None,
    file: options.Lines = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The column of a --file with the texts: its name in the header, or a number from 0."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the weights of the words as numbers, beside those of TF-IDF.")
    ] = False,
    save_plot: options.SavePlot = None,
    device: options.Device = "auto",
) -> None:
    """Classify texts or sounds: print the likeliest labels and the attention weights.

    Words are shaded by their weight; for a sound, its loudness and the weights over time are printed. For a file or a
    pipe, each line gives a label, its probability and the line, separated by tabs. A speller prints letters instead.

    \b
    Examples:
      regard classify "The soup was not bad, but the service was awful."
      regard classify --compare "Everyone said that the film was dull, but it was not."
      regard data samples --save samples && regard classify samples/seven.wav
      regard classify --model runs/spell-digits-1 seven.flac --save-plot weights.png
      regard classify --model runs/cnn-sst2-1 --file reviews.txt > labels.tsv
      regard classify --model runs/cnn-sst2-1 --file reviews.csv --column text > labels.tsv
    """
    sources = sources or []
    interactive = bool(sources) or (file is None and inputs.standard_input().isatty())
    check_outputs(save_plot)
    if save_plot is not None and len(sources) != 1:
        raise ValueError(f"--save-plot draws one text or sound, and {len(sources)} are given")
    if column is not None and (file is None or sources):
        raise ValueError("--column describes a --file" + (", and none is given" if file is None else ", not arguments"))
    if column is None and file is not None:
        inputs.refuse_table(file)
    if compare and not interactive:
        raise ValueError("--compare shows the words of texts that are arguments; of lines there are labels only")
    model = model or (SOUND_MODEL if inputs.are_sounds(sources) else TEXT_MODEL)
    batches = inputs.read_texts(sources, file, column)
    from ..decoding import model_folders

    loaded = model_folders.load(model, find_device(device), wanted=("classify", "spell"))
    if loaded.tokenizers.source.kind == "text":
        inputs.require_texts(sources, model)
    elif compare:
        raise ValueError(f"--compare is for texts, whose words TF-IDF weighs; {model} reads sounds")
    else:
        inputs.require_sounds(sources, model)
    if loaded.model.task == "spell":
        if not sources:
            raise ValueError("name the sound files to spell as arguments")
        _spell(loaded, sources, save_plot)
        return
    noun = "text" if sources else "line" if column is None else "row"
    count = failures = unknown = 0
    for batch in batches:
        results = _classified(loaded, batch, interactive, None if len(sources) == 1 else noun, count)
        for result in results:
            if interactive and result.label:
                _print_result(loaded, result, compare, save_plot, with_source=len(sources) > 1)
            elif not interactive:
                probability = f"{result.probabilities[result.label]:.4f}" if result.label else ""
                print(f"{result.label}\t{probability}\t{result.source}", flush=True)
                unknown += bool(result.label) and _knows_no_word(loaded, result)
            failures += not result.label
        count += len(batch)
    if unknown:
        remark(
            f"the model knows no word of {unknown:,} of {count:,} lines, so its answers to these say nothing about them"
        )
    if not count:
        inputs.warn_empty(file, "classify")
    if failures:
        raise typer.Exit(1)


def _classified(
    loaded: Pretrained, batch: list[Any], weights: bool, noun: str | None, before: int
) -> Iterator[Classification]:
    """The labels of a batch, none for what cannot be read. `noun` None: that is an error."""
    from ..data.rows import RowProblem
    from ..decoding.classification import classify

    def refused(number: int, reason: str) -> None:
        item = batch[number - 1]
        if isinstance(item, RowProblem):
            reason = f"is no text: {item.reason}"
        remark(f"{noun} {before + number} {reason}" if loaded.tokenizers.source.kind == "text" else reason)

    texts = ["" if isinstance(item, RowProblem) else item for item in batch]
    return classify(loaded.model, loaded.tokenizers, texts, weights=weights, refused=None if noun is None else refused)


def _knows_no_word(loaded: Pretrained, result: Classification) -> bool:
    from ..decoding.classification import TextWords
    from ..special_tokens import UNKNOWN

    if loaded.tokenizers.source.kind != "text" or UNKNOWN not in result.numbers:
        return False
    return TextWords.of(result, loaded.tokenizers.source).all_unknown


def _print_result(
    loaded: Pretrained, result: Classification, compare: bool, save_plot: Path | None, with_source: bool
) -> None:
    """Print the labels and the weights; `with_source` prints the source above, unless its shaded words follow."""
    from ..seeing.terminal import printable

    labels = list(result.probabilities.items())
    more = f"  and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
    is_text = loaded.tokenizers.source.kind == "text"
    if with_source and not (is_text and (compare or result.weights is not None)):
        print(printable(result.source))
    output_console().print("  ".join(f"{label} {p:.3f}" for label, p in labels[:MAX_LABELS]) + more)
    if is_text:
        _print_words(loaded, result, compare, save_plot)
    else:
        _print_sound(loaded, result, save_plot)
    if save_plot is not None:
        remark_written(save_plot)


def remark_written(file: Path, more: str = "") -> None:
    typer.echo(f"wrote {file}{more}", err=True)


def _print_words(loaded: Pretrained, result: Classification, compare: bool, save_plot: Path | None) -> None:
    import torch

    from ..decoding.classification import TextWords
    from ..seeing.align import sum_by_word
    from ..seeing.figures import save_heatmap
    from ..seeing.terminal import ShadedText, heatmap

    text_words = TextWords.of(result, loaded.tokenizers.source)
    if warning := text_words.warning():
        remark(warning)
    words = [*text_words.marked(), "</s>"]
    word_of_token = [*text_words.word_of_token, len(text_words.words)]  # </s> is a word of its own
    by_method = {"weights": result.weights, "TF-IDF": result.static}
    rows = {name: sum_by_word(w, word_of_token) for name, w in by_method.items() if w is not None}
    if "weights" in rows:
        output_console().print(ShadedText(words, rows["weights"].tolist()))
    elif not compare:
        typer.echo("this model's pooling gives words no weights", err=True)
    if compare:
        output_console().print(heatmap(torch.stack(list(rows.values())), list(rows), words))
    if save_plot is not None:
        save_heatmap(save_plot, torch.stack(list(rows.values())), list(rows), words)


def _print_sound(loaded: Pretrained, result: Classification, save_plot: Path | None) -> None:
    import torch

    from ..seeing.figures import save_sound_figure
    from ..seeing.terminal import sparkline

    rate = loaded.tokenizers.source.rate
    _warn_silent(result.source, result.numbers, rate)
    print(f"sound    {sparkline(torch.from_numpy(result.numbers.astype('float32')).abs())}")
    if result.weights is not None:
        print(f"weights  {sparkline(result.weights)}")
    elif save_plot is not None:
        raise ValueError("this model's pooling gives moments no weights, so there is nothing to draw")
    else:
        typer.echo("this model's pooling gives moments no weights", err=True)
    if save_plot is not None and result.weights is not None:
        save_sound_figure(save_plot, result.numbers, rate, result.weights[None], ["weights"])


def _warn_silent(name: str, samples: np.ndarray[Any, Any], rate: int) -> None:
    from ..data.media import unheard

    if reason := unheard(name, samples, rate):
        remark(f"{reason}, so what the model makes of it means nothing")


def _spell(loaded: Pretrained, sounds: list[str], save_plot: Path | None) -> None:
    """Print the letters of each sound."""
    from ..seeing.figures import save_sound_figure

    reader = loaded.tokenizers.source
    for name, spelling in _written(loaded, sounds, save_plot):
        samples = reader.encode(name)
        _warn_silent(name, samples, reader.rate)
        if save_plot is not None:
            if spelling.weights is None:
                raise ValueError("this model has no attention, so there is nothing to show")
            letters = [piece.replace("▁", "") or "▁" for piece in spelling.pieces]
            save_sound_figure(save_plot, samples, reader.rate, spelling.weights.mean(0), letters)
            remark_written(save_plot)


def _written(
    loaded: Pretrained, names: list[str], save_plot: Path | None, beams: int | None = None
) -> Iterator[tuple[str, Translation]]:
    """Print what a model writes of sounds or pictures, and give it; of several, with their names.

    One of several that cannot be read does not stop the others. It is not given, and at the end the status is 1.
    """
    from ..decoding.translation import translate

    settings, failures, several = search_settings(loaded, beams), set[int](), len(names) > 1
    settings["weights"] = save_plot is not None

    def refused(number: int, reason: str) -> None:
        failures.add(number)
        remark(reason)

    results = translate(loaded.model, loaded.tokenizers, names, refused=refused if several else None, **settings)
    for number, (name, result) in enumerate(zip(names, results, strict=True), 1):
        print(f"{name}\t{result.text}" if several else result.text, flush=True)
        if number not in failures:
            yield name, result
    if failures:
        raise typer.Exit(1)


CAPTIONER = "scenes-soft"  # that ships
FIGURE_PIXELS = 256  # width and height of the picture in a figure


@app.command()
def caption(
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE…", help="Files, or names of scenes, as `regard data scenes` prints.")
    ],
    model: options.Model = None,
    beams: options.Beams = None,
    save_plot: options.SavePlot = None,
    device: options.Device = "auto",
) -> None:
    """Write captions for pictures; for several, one line each: the picture's name, a tab, the caption.

    The captioner that ships knows only the coloured shapes of `regard data scenes`; `regard train soft-photos` trains
    one for photographs.

    \b
    Examples:
      regard data scenes 3 --save examples && regard caption examples/scene-1.png
      regard caption scene:test:0:7 --save-plot weights.png
      regard caption --model runs/soft-photos-1 beach.jpg dog.jpg
    """
    check_outputs(save_plot)
    if save_plot is not None and len(pictures) != 1:
        raise ValueError(f"--save-plot draws one picture, and {len(pictures)} are given")
    from ..data.media import PictureReader
    from ..decoding import model_folders
    from ..seeing.align import caption_word_weights
    from ..seeing.figures import MAX_WORDS, save_caption_figure

    loaded = model_folders.load(model or CAPTIONER, find_device(device), wanted=("caption",))
    for name, result in _written(loaded, pictures, save_plot, beams):
        for about in loaded.tokenizers.source.remarks(name):
            remark(about)
        if save_plot is not None:
            weights, words = caption_word_weights(result)
            save_caption_figure(save_plot, PictureReader(FIGURE_PIXELS).encode(name), weights, words)
            only = f", the first {MAX_WORDS} of {len(words)} words" if len(words) > MAX_WORDS else ""
            remark_written(save_plot, only)


@app.command()
def export(
    run: options.TrainedModel,
    to: Annotated[str, typer.Option(metavar="[ctranslate2|onnx]", help="The library to write for.")] = "ctranslate2",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write. [default: RUN/ENGINE; one that ships: ./RUN-ENGINE]"),
    ] = None,
    quantization: Annotated[
        Literal["none", "int8"],
        typer.Option(
            help="int8, of CTranslate2: matrices as bytes. Smaller, a little different: docs/serving.md has both."
        ),
    ] = "none",
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
) -> None:
    """Convert a model to CTranslate2 (a fast C++ library), or to ONNX graphs.

    CTranslate2: greedy translations are the same, token for token; `regard translate --engine ctranslate2` runs the
    result. ONNX: encoder and one decoder step, with state and attention weights, or a classifier, for any ONNX runtime;
    every model but those with parts of plug-ins.

    An export records which weights it was made from: after more training, --engine ctranslate2 refuses it until it is
    written again with --force.

    \b
    Examples:
      regard export runs/transformer-multi30k-1
      regard export tatoeba-transformer-en-fr --out fast
      regard export tatoeba-bahdanau-en-fr --to onnx --out graphs
      regard export tatoeba-transformer-en-fr --quantization int8 --out small
      regard export runs/transformer-multi30k-1 --force
    """
    from ..data.tokenizer_pair import TokenizerPair
    from ..decoding import model_folders
    from ..decoding.ctranslate2 import export_ctranslate2
    from ..decoding.onnx import export_onnx
    from ..models.configurations import ExportEngine
    from ..models.saved_weights import WEIGHTS, load

    if to == "transformers":
        raise ValueError(
            "folders for transformers are not written any more: run the model in regard, or export it with --to "
            "ctranslate2 or --to onnx"
        )
    if to not in get_args(ExportEngine):
        raise ValueError(f"--to is one of {', '.join(get_args(ExportEngine))}, got {to!r}")
    model, run_folder = model_folders.find(run)
    folder = out or model_folders.export_folder(model, run_folder, to)
    tokenizers = TokenizerPair.load(model)
    how: dict[str, Any] = {"force": force, "weights": model / WEIGHTS}
    if to == "onnx":
        if quantization != "none":
            raise ValueError(
                "--quantization int8 is for ctranslate2; for ONNX graphs give the folder's files to "
                "onnxruntime.quantization.quantize_dynamic"
            )
        export_onnx(load(model), tokenizers, folder, **how)  # type: ignore[arg-type]
    else:
        export_ctranslate2(load(model), tokenizers, folder, quantization=quantization, **how)  # type: ignore[arg-type]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    typer.echo(f"wrote {folder} ({size / 1e6:.1f} MB)")


TOKEN = "REGARD_TOKEN"
"""The environment variable with the token, for a server whose clients must know it beforehand."""


@app.command()
def serve(
    model: options.TrainedModel,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8400,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Texts computed together, at most.")] = 64,
    wait: Annotated[
        float,
        typer.Option(metavar="MS", min=0.0, max=1000.0, help="Milliseconds that a text waits for others, at most."),
    ] = 5.0,
    queue: Annotated[
        int, typer.Option(metavar="N", min=1, help="Texts that may wait; more are refused with status 503.")
    ] = 1024,
    token: Annotated[
        bool,
        typer.Option("--token/--no-token", help=f"Ask for a token: that of {TOKEN}, or a new one, which is printed."),
    ] = True,
    drain: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="Time for open requests when the server is told to stop."),
    ] = 30.0,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Another name that requests may call this server by."),
    ] = None,
    engine: options.EngineName = "torch",
    precision: options.Precision = "float32",
    device: options.Device = "auto",
) -> None:
    """Serve a translator or a text classifier over HTTP, computing the texts of many requests together.

    POST /translate or /classify takes {"texts": [...], "alignment": true}. GET /openapi.json describes the API; /health
    needs no token, /metrics is for Prometheus. Ctrl-C or SIGTERM stops it, once open requests are answered.

    \b
    Examples:
      regard serve tatoeba-transformer-en-fr
      REGARD_TOKEN=secret regard serve runs/mine --host 0.0.0.0 --port 80
      regard serve runs/mine --engine ctranslate2 --batch 128 --wait 10
    """
    check_port(host, port)
    from ..serving import ServedModel, create_serve_app
    from ..viewer.server import AppServer

    def make(*guarded: Any) -> FastAPI:
        served = ServedModel(model, find_device(device), engine, precision)
        return create_serve_app(served, *guarded, batch=batch, wait=wait / 1000, queue=queue)

    secret = os.environ.get(TOKEN) or True
    server = AppServer(make, host, port, token=secret if token else False, names=name or (), drain=drain)
    typer.echo(f"regard serve: {server.address}/{server.app.state.model.task}")
    if server.token is not None:
        typer.echo(f"token: that of {TOKEN}" if secret is not True else f"Authorization: Bearer {server.token}")
    typer.echo("Ctrl-C ends it")
    server.run()
