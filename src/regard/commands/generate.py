"""`regard generate`."""

from __future__ import annotations

import math
import secrets
from typing import Annotated

import typer

from .shared_options import Device, Model, find_device
from .text_input import standard_input
from .typer_app import app

LANGUAGE_MODEL = "shakespeare-transformer"  # that ships
MAX_PROMPT = 1 << 20  # characters of a prompt from a pipe
SEEDS = 1 << 63  # that PyTorch takes


@app.command()
def generate(
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from a pipe. [default: a new line]"),
    ] = "",
    model: Model = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="How many tokens to generate.")] = 500,
    temperature: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Sampling temperature; 0 takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sample from the N likeliest tokens only; 0: from all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(metavar="P", help="Sample from the likeliest tokens that reach this probability, 0 < P ≤ 1."),
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=SEEDS - 1, help="Random seed. [default: a new one, printed]"),
    ] = None,
    device: Device = "auto",
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
    if not math.isfinite(temperature):
        raise ValueError(f"--temperature is a finite number ≥ 0, where 0 takes the likeliest; got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"--top-p is a probability, 0 < P ≤ 1; got {top_p}")
    if prompt == "-":
        prompt = standard_input().read(MAX_PROMPT + 1)
        if len(prompt) > MAX_PROMPT:
            raise ValueError(f"the prompt has more than {MAX_PROMPT:,} characters; its end is all a model can read")
        if not prompt:
            typer.echo("regard: standard input is empty, so the text begins on a new line", err=True)
    from ..decoding import Sample, load_model_and_tokenizers
    from ..decoding import generate as generate_text

    loaded = load_model_and_tokenizers.load(model or LANGUAGE_MODEL, find_device(device), wanted=("write",))
    used_seed = secrets.randbelow(1 << 31) if seed is None else seed
    sample = Sample(temperature, top_k, top_p, used_seed) if temperature else None
    pieces = generate_text(loaded.model, loaded.tokenizers.target, prompt, tokens=tokens, sample=sample)
    first = next(pieces, "")  # an error about the prompt comes before any output
    if sample is not None and seed is None:
        typer.echo(f"regard: --seed {used_seed} generates this again", err=True)
    print(prompt, end="")
    print(first if prompt else first.lstrip(" "), end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    print(flush=True)
