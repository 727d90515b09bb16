"""Experiments on a model: the next tokens it would write, and a run with heads silenced or tokens hidden, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...decoding.classification import classify
from ...decoding.translation import translate
from ...seeing.analysis import ablate
from ..limits import RequestError
from .trace_view import TraceView

if TYPE_CHECKING:
    from torch import Tensor

    from ...seeing import Seen
    from .library import Library, ModelEntry

LISTED = 8
"""Predictions, and heads that changed, that are listed."""


@torch.no_grad()
def next_tokens(library: Library, model: ModelEntry, text: str, temperature: float = 1.0) -> list[dict[str, Any]]:
    """The likeliest next tokens after a text: p = softmax(logits / temperature)."""
    loaded = library.loaded(model)
    if model.ours:
        tokenizer = loaded.tokenizers.target
        ids = tokenizer.continued(text or "\n")[-loaded.model.config.longest :]
        one = torch.ones(1, dtype=torch.int64)
        network = loaded.model
        logits = network.decoder.readout(
            network.decoder(torch.tensor([ids]), network.encode(one[:, None], one)).features
        )
        pieces = tokenizer.pieces
    else:
        ids = loaded.encode(text).ids[None]
        logits = loaded.model(input_ids=ids).logits
        pieces = loaded.tokenizer.convert_ids_to_tokens
    shares = (logits[0, -1].double() / temperature).softmax(-1).topk(LISTED)
    return _listed(pieces(shares.indices.tolist()), shares.values)


def what_if(
    library: Library,
    model: ModelEntry,
    text: str,
    silence: dict[str, list[int]],
    hide: list[int],
    *,
    owner: str | None = None,
) -> dict[str, Any]:
    """A text read as it is and with heads silenced or tokens hidden.

    `silence` has heads by the name of their call, `hide` positions that no self-attention may look at. `before` and
    `after` are what the model predicts, where it predicts something; `heads` those whose weights changed most (total
    variation distance, mean over rows); `trace` is the changed run, which joins the library, listed for `owner`.
    """
    if not silence and not hide:
        raise RequestError(422, "nothing was changed: name heads to silence or tokens to hide")
    plain = library.run(model, text)[0]
    before = _prediction(library, model, text)
    names = {call.name for call in plain}
    unknown = [name for name in silence if name not in names]
    if unknown:
        raise RequestError(404, f"there is no call {unknown[0][:80]!r} in this model")
    network = library.loaded(model).model
    heads: dict[int | str, list[int]] = {name: list(numbers) for name, numbers in silence.items()}
    with ablate(network, heads=heads, tokens=hide):
        changed, prompt = library.run(model, text)
        after = _prediction(library, model, text)
    changes = _changes(plain, changed)
    words = [f"without head {head} of {name}" for name, heads in silence.items() for head in heads]
    words += [f"without token {at}" for at in hide]
    title = f"{model.title.split(',')[0]} · {', '.join(words)} · {text[:40]}"
    changed.model = model.name
    trace = TraceView.of(changed, title, prompt=prompt, owners=None if owner is None else {owner})
    library.add(trace)
    return {"before": before, "after": after, "heads": changes, "trace": trace.id}


@torch.no_grad()
def _prediction(library: Library, model: ModelEntry, text: str) -> list[dict[str, Any]]:
    """What a model makes of a text: likely next tokens, labels, a translation; nothing where it only reads."""
    loaded = library.loaded(model)
    if model.task == "generate":
        return next_tokens(library, model, text)
    if model.task == "classify":
        (result,) = classify(loaded.model, loaded.tokenizers, [text])
        return [{"piece": label, "share": share} for label, share in result.probabilities.items()]
    if model.task == "translate":
        (translation,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
        return [{"piece": translation.text, "share": None}]
    return []


@torch.no_grad()
def _changes(plain: Seen, changed: Seen) -> list[dict[str, Any]]:
    """The heads whose weights changed most, of calls that have the same shape in both runs."""
    changes: list[tuple[float, dict[str, Any]]] = []
    for at, (before, after) in enumerate(zip(plain, changed, strict=False)):
        if before.name != after.name or before.shape != after.shape:
            continue
        for head in range(before.heads):
            distance = float((before.head(head).dense() - after.head(head).dense()).abs().sum(-1).mean()) / 2
            about = {"call": str(at), "layer": before.layer, "head": head, "change": round(distance, 5)}
            changes.append((distance, about))
    return [about for _, about in sorted(changes, key=lambda pair: -pair[0])[:LISTED]]


def _listed(pieces: list[str], shares: Tensor) -> list[dict[str, Any]]:
    return [{"piece": piece, "share": round(float(share), 6)} for piece, share in zip(pieces, shares, strict=True)]
