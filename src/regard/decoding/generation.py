"""Text generation: a language model continues a prompt, token by token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ..special_tokens import END, UNKNOWN
from .beam import Beam, Ranking, decode_steps
from .translation import no_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.tokenizer import Tokenizer
    from ..models.encoder_decoder import EncoderDecoder
    from .beam import Sample


def generate(
    model: EncoderDecoder, tokenizer: Tokenizer, prompt: str = "", *, tokens: int = 256, sample: Sample | None = None
) -> Iterator[str]:
    """y_t ~ p(y_t | prompt, y_<t): the continuation of the prompt, piece by piece, at most `tokens` tokens.

    See `generate_ids`.
    """
    for token in generate_ids(model, tokenizer, prompt, tokens=tokens, sample=sample):
        yield tokenizer.running([token])


@torch.no_grad()
def generate_ids(
    model: EncoderDecoder, tokenizer: Tokenizer, prompt: str = "", *, tokens: int = 256, sample: Sample | None = None
) -> Iterator[int]:
    """The ids of the continuation, at most `tokens` of them.

    Without `sample` each is the likeliest. Without a prompt the text begins a new line. Keys, values and states
    are cached, so a token costs one step. The context is as long as the training windows; when it is full, generation
    continues from its second half.
    """
    decoder, config = model.decoder, model.config
    if config.encoder.kind != "none":
        raise ValueError(
            f"this model reads a source, by an encoder of kind {config.encoder.kind!r}; it cannot generate without one"
        )
    if decoder.training:
        raise ValueError("generating needs the model in evaluation mode (dropout is random): call model.eval() first")
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    device = decoder.output.weight.device
    generator = None if sample is None else sample.generator(device)
    ids, room = _begin(tokenizer, prompt), config.longest
    while tokens > 0:
        if len(ids) >= room:
            ids = ids[-max(room // 2, 1) :]
        beam, state = _read(model, ids, room, device, apart=sample is not None)
        steps = min(tokens, room - len(ids) + 1)  # the first needs no step beyond those of what was read
        # <unk> has no text.
        for _, _, advanced in decode_steps(decoder, state, beam, steps, Ranking(), sample, generator, unknown=False):
            token = int(advanced.tokens[0, 0])
            if token == END:
                return
            ids.append(token)
            tokens -= 1
            yield token


def _begin(tokenizer: Tokenizer, prompt: str) -> list[int]:
    if why := no_text(prompt):
        raise ValueError(f"the prompt {why}")
    ids = tokenizer.continued(prompt or "\n")
    if UNKNOWN in ids:
        raise ValueError(f"this model does not know {', '.join(map(repr, _unknown(tokenizer, prompt)))}; leave it out")
    if not ids:
        raise ValueError("the prompt holds no word of this model's vocabulary; give it one to continue")
    return ids


def _unknown(tokenizer: Tokenizer, prompt: str) -> list[str]:
    """The symbols outside the vocabulary: characters, or whole words where a vocabulary holds words."""
    unknown: dict[str, None] = {}
    for word in re.findall(r"\s|\S+", prompt or "\n"):
        if UNKNOWN in tokenizer.continued(word):
            unknown_symbols = [symbol for symbol in word if UNKNOWN in tokenizer.continued(symbol)]
            unknown.update(dict.fromkeys(unknown_symbols if 0 < len(unknown_symbols) < len(word) else [word]))
    return [word[:40] for word in unknown][:10]


def _read(model: EncoderDecoder, ids: list[int], room: int, device: torch.device, *, apart: bool) -> tuple[Beam, Any]:
    """The state after all ids but the last, and a beam that holds the last."""
    one = torch.ones(1, dtype=torch.int64, device=device)
    state = model.decoder.start(model.encode(one[:, None], one), steps=room)
    if len(ids) > 1:
        state = model.decoder.read(torch.tensor([ids[:-1]], device=device), state)
    beam = Beam.start(one * (room + 1), 1, 1, None, apart=apart)  # no limit: it need not end
    beam.tokens[:] = ids[-1]
    return beam, state
