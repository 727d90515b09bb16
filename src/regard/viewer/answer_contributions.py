"""ContributionRun: what each key contributed to one answer of a model, in every call of a trace.

The model reads the text of the trace once more, with a backward pass from L, the score of an answer at a
position (or the difference of two). With g_i = ∂L/∂o_i of each head's output o_i = Σ_j w_ij v_j,

    C_ij = w_ij (g_i · v_j)          Σ_j C_ij = g_i · o_i

The second equation is measured on the outputs that the model computed. To first order, a head that outputs zeros
changes L by −Σ_i g_i · o_i.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..attention.statistics import Cells
from ..decoding.answer_scores import (
    classifier_answers,
    greedy_translation,
    text_model_answers,
    translator_answers,
    writer_answers,
)
from ..decoding.classification import classify
from ..decoding.generation import generate_ids
from ..decoding.translation import translate
from ..seeing.interventions import ablate
from ..seeing.text_models import TokenizedText, all_tensors
from ..seeing.watch import watch
from . import guard
from .guard import RequestError
from .library import READ
from .responses import rounded
from .trace_view import TraceView

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..attention.contributions import Contributions
    from ..decoding.answer_scores import AnswerInputs
    from ..decoding.model_folders import Pretrained
    from ..seeing.call import Call
    from ..seeing.trace import Seen
    from .library import Library, ModelEntry
    from .tiles import Pool, Tile

LISTED = 12
"""Answers that are listed, likeliest first."""
ABLATION_SECONDS = 0.5
"""Seconds after which the rest of the heads is left to the next request."""


@dataclass(frozen=True, slots=True)
class Target:
    """The number that is explained: the score of an answer at a position, less that of another."""

    position: int
    answer: int
    minus: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CallContributions:
    """The contributions of all heads of one call, and the proof that they add up."""

    contributions: Contributions
    """[heads, T_q, T_k]."""
    totals: list[float]
    """Σ_i g_i · o_i of every head."""
    peak: float
    """The largest |C_ij| of all heads."""
    error: float
    """|Σ_j C_ij − g_i · o_i| over the norm of |g_i| |o_i|, of the worst head."""
    budget: float


@dataclass(frozen=True, slots=True, eq=False)
class ContributionRun:
    """One target of one trace: contributions of every call, and the answers that the model chose from.

    It is cached, so it does not keep the model.
    """

    target: Target
    kind: str
    """What an answer is, as in `AnswerInputs`."""
    positions: int
    pieces: dict[int, str]
    """The tokens or labels of the answers that are listed, likeliest first."""
    scores: Float[Tensor, " answers"]
    calls: dict[int, CallContributions]
    missing: dict[int, str]
    """Calls of the trace that have no contributions, and why."""
    nbytes: int
    """Memory that is held: queries, keys, values, masks, gradients and scores."""

    @property
    def value(self) -> float:
        """L."""
        scores, target = self.scores, self.target
        return float(scores[target.answer]) - (0.0 if target.minus is None else float(scores[target.minus]))

    def of(self, number: int) -> CallContributions:
        """Those of one call; a 422 with the reason where there are none."""
        if number not in self.calls:
            raise RequestError(422, self.missing[number])
        return self.calls[number]

    def describe(self) -> dict[str, Any]:
        target, scores = self.target, self.scores
        shares = None if self.kind == "similarity" else scores.softmax(-1)
        answers = [
            {
                "id": at,
                "piece": piece,
                "score": rounded(scores[at], 8),
                "share": None if shares is None else rounded(shares[at]),
            }
            for at, piece in self.pieces.items()
        ]
        calls = [
            {
                "id": str(number),
                "error": call.error,
                "budget": call.budget,
                "kept": call.error <= call.budget,
                "peak": call.peak,
                "totals": rounded(call.totals),
            }
            for number, call in self.calls.items()
        ]
        return {
            "position": target.position,
            "positions": self.positions,
            "kind": self.kind,
            "answer": target.answer,
            "minus": target.minus,
            "value": self.value,
            "answers": answers,
            "calls": calls,
            "missing": {str(number): why for number, why in self.missing.items()},
        }


def trace_answers(library: Library, trace: TraceView, position: int) -> AnswerInputs:
    """The answers at a position of a trace, from the model that made it; a 422 where it was not made here."""
    made = trace.made
    if made is None:
        raise RequestError(422, "the model of this trace is not here; open it with a text: regard view MODEL TEXT")
    model = library.model(made["model"], *READ)
    longest = max(max(call.shape[-2:]) for call in trace.seen.calls)
    if longest > guard.EXPLAINED:
        raise RequestError(
            413,
            f"the text has {longest:,} tokens; the page computes contributions for at most {guard.EXPLAINED:,}. In "
            "Python they take any length: regard.watch(model, gradients=True)",
        )
    loaded = library.loaded(model)
    if not model.ours:
        tokens = (trace.seen.tokens or [[]])[0]
        text = trace.text or TokenizedText.from_ids(loaded.tokenizer.convert_tokens_to_ids(tokens), tokens)
        return text_model_answers(loaded, text, position)
    if model.task == "classify":
        return classifier_answers(loaded, made["text"], position)
    if model.task == "translate":
        trace.decoded = trace.decoded or greedy_translation(loaded, made["text"])
        return translator_answers(loaded, made["text"], position, trace.decoded)
    trace.decoded = trace.decoded or ([], _written_ids(loaded, made["text"], len((trace.seen.tokens or [[]])[0])))
    return writer_answers(loaded, trace.decoded[1], position)


def _written_ids(loaded: Pretrained, text: str, count: int) -> list[int]:
    """The first `count` ids of a text and what a language model of regard writes after it."""
    tokenizer = loaded.tokenizers.target
    ids: list[int] = tokenizer.continued(text)
    if len(ids) < count:
        ids += generate_ids(loaded.model, tokenizer, text, tokens=count - len(ids))
    return ids[:count]


def contribution_run(trace: TraceView, answers: AnswerInputs, target: Target | None = None) -> ContributionRun:
    """Run the model with a backward pass from one answer; by default the likeliest."""
    seen, scores, target = backward_run(answers, target)
    calls, missing = {}, {}
    runs = {_place(seen, number): call for number, call in enumerate(seen.calls)}
    for number, call in enumerate(trace.seen.calls):
        again = runs.get(_place(trace.seen, number))
        if again is None or again.shape != call.shape:
            missing[number] = f"{call.name} was called in another way when the text was read at once"
            continue
        try:
            calls[number] = call_contributions(again)
        except ValueError as error:
            missing[number] = str(error)
    best = scores.topk(min(LISTED, len(scores))).indices.tolist()
    chosen = [target.answer, *([] if target.minus is None else [target.minus])]
    listed = list(dict.fromkeys([*best, *chosen]))
    pieces = dict(zip(listed, answers.names(listed), strict=True))
    kept = [scores, *(x for call in seen.calls for x in call.tensors())]
    kept += [x for call in calls.values() for x in call.contributions.values_and_directions()]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept if not x.is_nested}
    nbytes = sum(storages.values())
    return ContributionRun(target, answers.kind, answers.positions, pieces, scores, calls, missing, nbytes)


def backward_run(answers: AnswerInputs, target: Target | None = None) -> tuple[Seen, Float[Tensor, " answers"], Target]:
    """A run of the model and a backward pass from the score of one answer, while its attention is watched."""
    with torch.enable_grad(), watch(answers.model, gradients=True) as seen:
        output = answers.model(**answers.inputs)
        scores = answers.scores(output)[0]
        if target is None:  # of similarities that to the whole text, as a token is most similar to itself
            best = len(scores) - 1 if answers.kind == "similarity" else int(scores.argmax())
            target = Target(answers.position, best)
        for answer in (target.answer, target.minus or 0):
            if not 0 <= answer < len(scores):
                raise RequestError(404, f"there is no answer {answer}; there are {len(scores):,}, counted from 0")
        value = scores[target.answer] if target.minus is None else scores[target.answer] - scores[target.minus]
        if not value.requires_grad:
            raise RequestError(422, "no gradient of this answer reaches the attention of this model")
        # Steps that the answer does not depend on have a gradient of zero instead of none.
        zero = sum((0 * x.sum() for x in all_tensors(output) if x.requires_grad), start=torch.zeros(()))
        (value + zero.to(value)).backward()
    return seen, scores.detach().double().cpu(), target


def silence(library: Library, run: ContributionRun, trace: TraceView, heads: list[tuple[int, int]]) -> list[float]:
    """L without one head (call, head) at a time: as many of `heads` as `ABLATION_SECONDS` allow, at least one."""
    answers = trace_answers(library, trace, run.target.position)
    values, end = [], time.monotonic() + ABLATION_SECONDS
    metric = answers.metric(run.target.answer, run.target.minus)
    for number, head in heads:
        call = trace.seen.calls[number]
        with torch.no_grad(), ablate(answers.model, heads={call.name: [head]}):
            values.append(float(metric(answers.model(**answers.inputs))[0]))
        if time.monotonic() > end:
            break
    return values


@torch.no_grad()
def pooled_contributions(c: Contributions, tile: Tile, pool: Pool) -> Float[Tensor, "height width"]:
    """A rectangle of one head [T_q, T_k]: of each cell the contribution of largest size, or the mean."""
    rows, cols = slice(tile.top, tile.bottom), slice(tile.left, tile.right)
    x = c.tile(rows, cols).float()
    sides = [Cells(edges, x.device) for edges in tile.edges]

    def pooled(x: Tensor) -> Tensor:
        return sides[1].pool(sides[0].pool(x, -2, pool), -1, pool)

    if pool == "max":
        high, low = pooled(x), pooled(-x)
        return torch.where(high >= low, high, -low)
    high_edges, wide_edges = (torch.tensor(edges, dtype=x.dtype, device=x.device).diff() for edges in tile.edges)
    return pooled(x) / (high_edges[:, None] * wide_edges)


def _place(seen: Seen, number: int) -> tuple[str, int]:
    """The name of a call, and how many calls before it have the same."""
    name = seen.calls[number].name
    return name, sum(call.name == name for call in seen.calls[:number])


@torch.no_grad()
def call_contributions(call: Call) -> CallContributions:
    """Of a call that a backward pass reached, of the only text of its batch."""
    lead = len(call.shape) - 2
    whole = call.contributions()
    c = whole[(0,) * (lead - 1)] if lead > 1 else whole  # [heads, T_q, T_k]
    stats = c.stats(total=True, top=1)
    assert stats.total is not None
    assert stats.top is not None
    rows, out = call.outputs()
    g = call.gradient[..., rows.to(call.gradient.device), :].double()
    measured = whole.rows(rows.tolist()).total().double()
    difference = (measured - (g * out.double()).sum(-1)).norm(dim=-1)
    size = (g.norm(dim=-1) * out.double().norm(dim=-1)).norm(dim=-1)
    error = torch.where(difference == 0, 0, difference / size)
    return CallContributions(
        c,
        stats.total.double().sum(-1).tolist(),
        float(stats.top.values.abs().max()),
        float(error.max()),
        call.fidelity().budget,
    )


MOST_LISTED = 8
"""Predictions, and heads that changed, that are listed."""


@torch.no_grad()
def next_tokens(library: Library, model: ModelEntry, text: str, temperature: float = 1.0) -> list[dict[str, Any]]:
    """The likeliest next tokens after a text: p = softmax(logits / temperature)."""
    loaded = library.loaded(model)
    if model.ours:
        ids = loaded.tokenizers.target.continued(text or "\n")[-loaded.model.config.longest :]
        answers = writer_answers(loaded, ids)
    else:
        answers = text_model_answers(loaded, loaded.encode(text))
    logits = answers.scores(answers.model(**answers.inputs))[0]
    shares = (logits.double() / temperature).softmax(-1).topk(MOST_LISTED)
    pieces = answers.names(shares.indices.tolist())
    return [{"piece": piece, "share": rounded(share)} for piece, share in zip(pieces, shares.values, strict=True)]


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
    plain = library.run(model, text)[0]
    before = _prediction(library, model, text)
    heads: dict[int | str, list[int]] = {name: list(numbers) for name, numbers in silence.items()}
    with ablate(library.loaded(model).model, heads=heads, tokens=hide):
        changed, prompt = library.run(model, text)
        after = _prediction(library, model, text)
    words = [f"without head {head} of {name}" for name, heads in silence.items() for head in heads]
    words += [f"without token {at}" for at in hide]
    title = f"{model.title.split(',')[0]} · {', '.join(words)} · {text[:40]}"
    changed.model = model.name
    trace = TraceView.of(changed, title, prompt=prompt, owners=None if owner is None else {owner})
    library.add(trace)
    return {"before": before, "after": after, "heads": _changes(plain, changed), "trace": trace.id}


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
    changes = []
    for at, (before, after) in enumerate(zip(plain, changed, strict=False)):
        if before.name == after.name and before.shape == after.shape:
            distances = (before.weights.dense() - after.weights.dense()).abs().sum(-1).mean(-1) / 2
            for head, distance in enumerate(distances.flatten().tolist()):
                changes.append({"call": str(at), "layer": before.layer, "head": head, "change": round(distance, 5)})
    return sorted(changes, key=lambda x: -x["change"])[:MOST_LISTED]
