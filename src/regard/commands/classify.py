"""`regard classify`."""

from __future__ import annotations

import re
from os.path import isfile  # of Path's, a text that is no name at all is an error
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .input_warnings import Oddities
from .options import Device, Model, Tokens, find_device
from .text_input import ending, no_names, standard_input, told_empty
from .text_input import given as arriving
from .typer_app import app

if TYPE_CHECKING:
    import numpy as np

    from ..decoding.classification import Classification
    from ..decoding.pretrained import Pretrained

OF_TEXT, OF_SOUND = "opinions-lstm", "digits-cnn"  # that ship
SHOWN = 5  # labels, at most


@app.command()
def classify(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT|SOUND", help="Each argument is one text, or a file of sound.")
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Classify this file's lines; .gz and .xz too.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="The weights of the words in numbers, beside those of TF-IDF.")
    ] = False,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the weights into a file: .png, .svg or .pdf. One argument."),
    ] = None,
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Name what a text or a sound is: the label, how likely each is, and where the model looked.

    Words are shaded by their weight; under a sound stand its loudness and the weights over time. A file or a pipe is
    answered line by line: label, probability, line, separated by tabs. A model that spells writes what it hears.

    \b
    Examples:
      regard classify "The soup was not bad, but the service was awful."
      regard classify --compare "Everyone said that the film was dull, but it was not."
      regard classify seven.wav
      regard classify --model runs/spell-digits-1 seven.flac --save-plot heard.png
      regard classify --model runs/cnn-sst2-1 --file reviews.txt > labels.tsv
    """
    given = sources or []
    if save_plot is not None:
        from ..seeing.drawing import check_figure_path

        check_figure_path(save_plot)
        if len(given) != 1:
            raise ValueError(f"--save-plot draws one text or sound, and {len(given)} are given")
    from ..decoding import pretrained

    model = model or (OF_SOUND if _heard(given) else OF_TEXT)
    loaded = pretrained.load(model, find_device(device), wanted=("classify", "spell"))
    if loaded.tokenizers.source.kind == "text":
        no_names(given, model)
    else:
        _no_texts(given, model)
    if compare and loaded.tokenizers.source.kind != "text":
        raise ValueError(f"--compare is for texts, whose words TF-IDF weighs; {model} reads sounds")
    if loaded.model.task == "spell":
        if file is not None:
            raise ValueError("--file holds texts, a line each; name the files of sound to spell as arguments")
        wrong = _spell(loaded, given, save_plot, tokens)
    else:
        wrong = _name(loaded, model, given, file, compare, save_plot, tokens)
    if wrong:
        raise typer.Exit(1)


def _heard(given: list[str]) -> bool:
    """Whether these are sounds. What is named like one and is no file is a slip, and gets no opinion as a text."""
    sounds = [one for one in given if _is_sound(one)]
    for one in given:
        if one not in sounds and ending(one) == "sound" and not isfile(one):
            raise ValueError(f"there is no file {one:.200}; if it is a text, give a --model that reads texts")
    texts = [one for one in given if one not in sounds]
    if sounds and texts:
        raise ValueError(f"{sounds[0]:.200} is a sound, and {texts[0]!r:.80} is none: give sounds or texts, not both")
    return bool(sounds)


def _is_sound(given: str) -> bool:
    return given.startswith("tone:") or (isfile(given.split("#")[0]) and ending(given) not in ("text", "picture"))


def _no_texts(given: list[str], model: str) -> None:
    """What is no file and is not named like one was meant as a text."""
    for one in given:
        if not _is_sound(one) and ending(one) != "sound":
            raise ValueError(
                f"{model} reads sounds, and {one!r:.80} names none; for a text, give a --model that reads texts"
            )


def _name(
    loaded: Pretrained,
    model: str,
    given: list[str],
    file: Path | None,
    compare: bool,
    save_plot: Path | None,
    tokens: int | None,
) -> int:
    """How many could not be named."""
    from ..data.batch import UNKNOWN
    from ..data.pair import RowProblem
    from ..decoding.classification import classify as named

    shown = bool(given) or (file is None and standard_input().isatty())  # to someone who looks, and not to a file
    if compare and not shown:
        raise ValueError("--compare shows the words of texts that are arguments; of lines there are labels only")
    text, wrong, before = loaded.tokenizers.source.kind == "text", 0, 0
    odd, strange = Oddities(model), 0
    for arrived in arriving(given, file):
        bad = {number: item.reason for number, item in enumerate(arrived, 1) if isinstance(item, RowProblem)}

        def refused(number: int, why: str, before: int = before, bad: dict[int, str] = bad) -> None:
            nonlocal wrong
            wrong += 1
            why = f"is no text: {bad[number]}" if number in bad else why
            typer.echo(
                f"regard: {'text' if given else 'line'} {before + number} {why}" if text else f"regard: {why}", err=True
            )

        found = named(
            loaded.model,
            loaded.tokenizers,
            ["" if isinstance(item, RowProblem) else item for item in arrived],
            tokens=tokens,
            weights=shown,
            refused=None if len(given) == 1 else refused,
        )
        for number, one in enumerate(found, before + 1):
            if not text and one.label:
                _doubt(one.source, one.numbers, loaded)
            if not shown:
                if text:
                    odd.line(number, one.source)
                    strange += bool(one.label) and UNKNOWN in one.numbers and _foreign(loaded, one)
                sure = f"{one.probabilities[one.label]:.4f}" if one.label else ""
                print(f"{one.label}\t{sure}\t{one.source}", flush=True)
            elif one.label:
                _show(loaded, one, compare, save_plot, named=len(given) > 1)
        before += len(arrived)
    if strange:
        known = f"regard: the model knows no word of {strange:,} of {before:,} lines"
        typer.echo(f"{known}, so its answers to these say nothing about them", err=True)
    if not before:
        told_empty(file, "name")
    return wrong


def _doubt(name: str, samples: np.ndarray[Any, Any], loaded: Pretrained) -> None:
    from ..data.sound_reader import unheard

    if why := unheard(name, samples, loaded.tokenizers.source.rate):
        typer.echo(f"regard: {why}, so what the model makes of it means nothing", err=True)


def _show(loaded: Pretrained, one: Classification, compare: bool, save_plot: Path | None, named: bool) -> None:
    """With its name above it, where there are several; a text whose words are shaded below needs none."""
    from ..seeing.drawing.terminal_heatmap import printable
    from .console import screen

    likely = list(one.probabilities.items())
    more = f"  and {len(likely) - SHOWN} more" if len(likely) > SHOWN else ""
    console = screen()
    text = loaded.tokenizers.source.kind == "text"
    if named and not (text and (compare or one.weights is not None)):
        print(printable(one.source))
    console.print("  ".join(f"{label} {sure:.3f}" for label, sure in likely[:SHOWN]) + more)
    if text:
        _show_words(loaded, one, compare, save_plot)
    else:
        _show_sound(loaded, one, save_plot)


def _show_words(loaded: Pretrained, one: Classification, compare: bool, save_plot: Path | None) -> None:
    import torch

    from ..seeing.alignment import sum_by_word
    from ..seeing.drawing import ShadedText, heatmap
    from .console import screen

    own, places, strange = _words(loaded, one)
    if len(strange) == len(own):
        typer.echo("regard: the model knows no word of this, so its answer says nothing about it", err=True)
    elif strange:
        typer.echo(f"regard: {_unknown(loaded, [own[place] for place in strange])}", err=True)
    for place in strange:
        own[place] = f"⟨{own[place]}⟩"
    places.append(max(places) + 1)  # </s> is a word of its own
    words = [*own, "</s>"]
    rows = {"weights": one.weights, "TF-IDF": one.static}
    kept = {name: sum_by_word(w, places) for name, w in rows.items() if w is not None}
    if "weights" in kept:
        screen().print(ShadedText(words, kept["weights"].tolist()))
    elif not compare:
        typer.echo("this model's pooling gives words no weights", err=True)
    if compare:
        screen().print(heatmap(torch.stack(list(kept.values())), list(kept), words))
    if save_plot is not None:
        from ..seeing.drawing import save_heatmap

        save_heatmap(save_plot, torch.stack(list(kept.values())), list(kept), words)
        typer.echo(f"wrote {save_plot}", err=True)


def _foreign(loaded: Pretrained, one: Classification) -> bool:
    own, _, strange = _words(loaded, one)
    return len(strange) == len(own)


def _words(loaded: Pretrained, one: Classification) -> tuple[list[str], list[int], list[int]]:
    """The words of a text, which of them each token belongs to, and which of them the model does not know."""
    ids = one.numbers[:-1].tolist()
    places = loaded.tokenizers.source.words(ids)
    own = one.source.split()
    if len(own) != max(places) + 1:  # a tokenizer that counts words another way than by spaces
        own = [""] * (max(places) + 1)
        for place, piece in zip(places, loaded.tokenizers.source.pieces(ids), strict=True):
            own[place] += piece.replace("▁", "")
    of_word: list[list[int]] = [[] for _ in own]
    for i, place in zip(ids, places, strict=True):
        of_word[place].append(i)
    return own, places, _strange(loaded, own, of_word)


def _strange(loaded: Pretrained, words: list[str], ids: list[list[int]]) -> list[int]:
    """The places of words the model does not know; a word that lacks only its punctuation is known."""
    from ..data.batch import UNKNOWN

    read = loaded.tokenizers.source.encode
    found = [n for n, some in enumerate(ids) if UNKNOWN in some]
    return [n for n in found if set(ids[n]) == {UNKNOWN} or UNKNOWN in read(_bare(words[n]))]


def _unknown(loaded: Pretrained, words: list[str]) -> str:
    """What is said of words in ⟨⟩; one is often known but for the full stop that touches it."""
    from ..data.batch import UNKNOWN

    said = "the model does not know what stands in ⟨⟩, or a part of it"
    for word in words:
        bare = _bare(word)
        if bare not in ("", word) and UNKNOWN not in loaded.tokenizers.source.encode(bare):
            return f"{said}; {bare!r} it knows, so put a space between it and the punctuation"
    return said


def _bare(word: str) -> str:
    return re.sub(r"^\W+|\W+$", "", word)


def _show_sound(loaded: Pretrained, one: Classification, save_plot: Path | None) -> None:
    import torch

    from ..seeing.drawing import save_sound_figure, sparkline

    loud = torch.from_numpy(one.numbers.astype("float32")).abs()
    print(f"sound    {sparkline(loud)}")
    if one.weights is None:
        if save_plot is not None:
            raise ValueError("this model's pooling gives moments no weights, so there is nothing to draw")
        typer.echo("this model's pooling gives moments no weights", err=True)
        return
    print(f"weights  {sparkline(one.weights)}")
    if save_plot is not None:
        save_sound_figure(save_plot, one.numbers, loaded.tokenizers.source.rate, one.weights[None], ["weights"])
        typer.echo(f"wrote {save_plot}", err=True)


def _spell(loaded: Pretrained, given: list[str], save_plot: Path | None, tokens: int | None) -> int:
    """What is heard, in letters; how many could not be heard."""
    from ..decoding import translate
    from ..seeing.drawing import save_sound_figure
    from .options import settings

    if not given:
        raise ValueError("name the files of sound to spell, as arguments")
    how, wrong = settings(loaded, None, None, None), set[int]()
    how["weights"] = save_plot is not None

    def refused(number: int, why: str) -> None:
        wrong.add(number)
        typer.echo(f"regard: {why}", err=True)

    several = len(given) > 1
    telling = refused if several else None
    said = translate(loaded.model, loaded.tokenizers, given, tokens=tokens, refused=telling, **how)
    reader = loaded.tokenizers.source
    for number, (name, found) in enumerate(zip(given, said, strict=True), 1):
        print(f"{name}\t{found.text}" if several else found.text, flush=True)
        if number in wrong:
            continue
        samples = reader.encode(name)
        _doubt(name, samples, loaded)
        if save_plot is not None:
            if found.weights is None:
                raise ValueError("this model has no attention, so there is nothing to show")
            letters = [piece.replace("▁", "") or "▁" for piece in found.pieces]
            save_sound_figure(save_plot, samples, reader.rate, found.weights.mean(0), letters)
            typer.echo(f"wrote {save_plot}", err=True)
    return len(wrong)
