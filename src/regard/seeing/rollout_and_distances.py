"""Heads compared, mapped, traced through all layers, and found by what they do on a text made for it.

Distances: JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2 is the Jensen–Shannon divergence of two heads' rows, averaged
over queries (Clark et al. 2019, section 6, who sum), with their smoothing of rows: 0.999 p + 0.001 / T.

Attention rollout and attention flow, how much of the input reaches a token through all layers (Abnar & Zuidema 2020):

    Ã_l = rows of (mean over heads of A_l + I), divided by their sums
    rollout:  R_l = Ã_l R_{l−1},  R_0 = I
    flow:     the maximum flow from a token of the last layer to a token of the input, with capacities Ã
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from .call import layer_of
from .terminal import ResultTable, Tabular
from .text_models import check_evaluation_mode
from .watch import watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from ..attention.statistics import Block
    from ..attention.weights import Weights
    from .call import Call
    from .trace import Seen


def layer_stack(calls: Sequence[Call]) -> list[Call]:
    """The calls, if they are the layers of one stack over one forward pass; otherwise a ValueError.

    A module called several times in a row is several layers (ALBERT). A module called again after others is a second
    forward pass.
    """
    names = [call.name for call in calls]
    distinct = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    repeated = next((name for at, name in enumerate(distinct) if name in distinct[:at]), None)
    if repeated is not None:
        raise ValueError(
            f"{repeated} was called again after other layers: these are several forward passes. Watch each in a block "
            "of its own"
        )
    numbered = [name for name in names if layer_of(name) is not None]
    stacks = list(dict.fromkeys(re.split(r"(?:^|\.)\d+(?:\.|$)", name)[0] for name in numbered))
    if len(stacks) > 1:
        raise ValueError(
            f"these are layers of several stacks: {', '.join(stacks)}. Watch one of them, with "
            f"watch(model, layers={stacks[0]!r})"
        )
    return list(calls)


def entry_weights(call: Call, entry: int) -> Weights:
    """[heads, T_q, T_k]: one entry of the batch, and the first of any dimension before it, as in `Call.head`."""
    lead = len(call.shape) - 2
    return call.weights[(*(0,) * (lead - 2), entry)] if lead > 1 else call.weights


def evenly_spaced(length: int, count: int) -> Int[Tensor, " count"]:
    """At most `count` of `length` positions, the first and the last included."""
    count = min(count, length)
    # Integers on the CPU, whatever the default dtype and device are.
    return torch.tensor([n * (length - 1) // max(count - 1, 1) for n in range(count)], dtype=torch.int64, device="cpu")


ROWS = 64
"""Queries compared, evenly spaced over the text."""


def head_distances(
    seen: Seen, entry: int = 0, rows: int = ROWS, *, other: Seen | None = None
) -> Float[Tensor, "heads others"]:
    """The distance between all heads of all self-attention layers, ordered by layer, then head.

    With `other`, between the heads of two runs on the same tokens: of two models, or two checkpoints of one.
    """
    if rows < 1:
        raise ValueError(f"rows is the number of queries to compare, at least 1, got {rows}")
    sides = [_self_attention(each) for each in ([seen] if other is None else [seen, other])]
    lengths = {call.shape[-2:] for calls in sides for call in calls}
    if not all(sides):
        raise ValueError("there are no heads to compare: a run has no self-attention")
    if len(lengths) > 1:
        found = " and ".join(f"{queries} × {keys}" for queries, keys in sorted(lengths))
        raise ValueError(f"heads are compared over one text: all self-attention must have one length, got {found}")
    ((queries, keys),) = lengths
    sample = evenly_spaced(queries, rows).tolist()
    total: Tensor | None = None
    for query in sample:  # one row of every head at once: [all heads, keys]
        p, *more = (0.999 * _row(calls, entry, query) + 0.001 / keys for calls in sides)
        divergence = _jensen_shannon(p, *more) if more else _jensen_shannon(p, p).fill_diagonal_(0)
        total = divergence if total is None else total + divergence
    assert total is not None
    return total / len(sample)


def head_matches(seen: Seen, other: Seen, entry: int = 0, rows: int = ROWS) -> ResultTable:
    """For each head of a run the nearest head of another run on the same tokens: two models, or two checkpoints.

    `mutual` says whether the two are each other's nearest; `same place` is the distance to the head of the same layer
    and number, None where there is none.
    """
    distances = head_distances(seen, entry, rows, other=other)
    mine, theirs = (_places(_self_attention(each)) for each in (seen, other))
    nearest, back = distances.argmin(1).tolist(), distances.argmin(0).tolist()
    at = {place: number for number, place in enumerate(theirs)}
    return ResultTable(
        {
            "layer": [layer for layer, _ in mine],
            "head": [head for _, head in mine],
            "other layer": [theirs[n][0] for n in nearest],
            "other head": [theirs[n][1] for n in nearest],
            "distance": [float(distances[n, m]) for n, m in enumerate(nearest)],
            "mutual": [back[m] == n for n, m in enumerate(nearest)],
            "same place": [float(distances[n, at[place]]) if place in at else None for n, place in enumerate(mine)],
        }
    )


def _self_attention(seen: Seen) -> list[Call]:
    return layer_stack([call for call in seen if call.kind == "self"])


def _places(calls: list[Call]) -> list[tuple[int, int]]:
    """(layer, head) of all heads, in the order of the distances."""
    return [(layer, head) for layer, call in enumerate(calls) for head in range(call.heads)]


def _row(calls: list[Call], entry: int, query: int) -> Float[Tensor, "heads t"]:
    parts = [entry_weights(call, entry).tile(query, slice(None)).squeeze(-2).float().cpu() for call in calls]
    return torch.cat(parts)


def _jensen_shannon(p: Float[Tensor, "heads t"], q: Float[Tensor, "others t"]) -> Float[Tensor, "heads others"]:
    def entropy(x: Tensor) -> Tensor:
        return -torch.special.xlogy(x, x).sum(-1)  # type: ignore[no-any-return]

    # One head at a time: [others, t], not [heads, others, t].
    mixed = torch.stack([entropy((q + row) / 2) for row in p])
    return (mixed - (entropy(p)[:, None] + entropy(q)) / 2).clamp_min(0)


def classical_scaling(distances: Float[Tensor, "heads heads"]) -> Float[Tensor, "heads 2"]:
    """Points in the plane whose distances approximate these: classical multidimensional scaling (Torgerson 1952)."""
    d = distances.double()
    n = len(d)
    centre = torch.eye(n, dtype=d.dtype) - 1 / n
    values, vectors = torch.linalg.eigh(-0.5 * centre @ d.square() @ centre)
    points = vectors[:, -2:].flip(-1) * values[-2:].flip(-1).clamp_min(0).sqrt()
    # The sign of an eigenvector is arbitrary: make the largest coordinate positive, so that maps are reproducible.
    signs = points.gather(0, points.abs().argmax(0, keepdim=True)).sign()
    oriented: Tensor = points * torch.where(signs == 0, 1, signs)
    return oriented.float()


def repeated_sequence(vocabulary: int, length: int, seed: int = 0, avoid: Sequence[int] = ()) -> Int[Tensor, " twice"]:
    """Random tokens, twice in a row; `avoid` are tokens not to use."""
    allowed = torch.tensor([x for x in range(vocabulary) if x not in set(avoid)])
    half = allowed[torch.randint(len(allowed), (length,), generator=torch.Generator().manual_seed(seed))]
    return torch.cat([half, half])


def induction_scores(seen: Seen, length: int) -> Float[Tensor, "layers heads"]:
    """On `repeated_sequence(…, length)`: the mean weight from the second half to the token after the same one.

    It is the mean over the `length` queries whose token occurred before (Olsson et al. 2022). TransformerLens takes the
    whole diagonal at offset 1 − length, with the last query of the first half, whose token is new.
    """
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] >= 2 * length]
    if not calls:
        raise ValueError(f"no self-attention over a sequence of twice {length} tokens was seen")
    rows = slice(calls[0].shape[-2] - length, None)
    return torch.stack([_offsets(call, 0, rows, [1 - length])[:, 0] for call in layer_stack(calls)])


def _offsets(call: Call, entry: int, rows: slice, offsets: list[int]) -> Float[Tensor, "heads offsets"]:
    """The mean weight of these rows at each offset."""
    found = entry_weights(call, entry).rows(rows).stats(offsets=offsets).offsets
    assert found is not None
    call.forget()
    return found.mean(-2).cpu()


class RepeatedSequenceScores(Tabular):
    """What heads do on random tokens said twice, and on as many tokens of which none is said twice: the control."""

    def __init__(
        self, scores: dict[str, Float[Tensor, "sequences layers heads"]], control: dict[str, Tensor], length: int
    ) -> None:
        self.scores, self.control, self.length = scores, control, length

    def table(self) -> ResultTable:
        """One row per head: means over sequences, their standard errors, and the means of the control."""
        _, layers, heads = self.scores["induction"].shape
        places = torch.cartesian_prod(torch.arange(layers), torch.arange(heads)).T.tolist()
        columns: dict[str, Sequence[object]] = {"layer": places[0], "head": places[1]}
        for name, values in self.scores.items():
            columns[name] = values.mean(0).flatten().tolist()
            columns[f"standard error of {name}"] = (values.std(0) / len(values) ** 0.5).flatten().tolist()
            columns[f"{name}, control"] = self.control[name].mean(0).flatten().tolist()
        return ResultTable(columns)

    def strongest(self, pattern: str = "induction", count: int = 5) -> list[tuple[int, int, float]]:
        """(layer, head, mean score) of the heads that score highest."""
        mean = self.scores[pattern].mean(0)
        order = mean.flatten().argsort(descending=True)[:count].tolist()
        return [(*divmod(n, mean.shape[1]), float(mean.flatten()[n])) for n in order]

    def __repr__(self) -> str:
        rows = [
            f"{len(self.scores['induction'])} sequences of twice {self.length} random tokens; layer.head score ± SE"
        ]
        for name, values in self.scores.items():
            error = values.std(0) / len(values) ** 0.5
            found = [f"{x}.{y} {mean:.2f} ± {float(error[x, y]):.2f}" for x, y, mean in self.strongest(name, 3)]
            x, y, _ = self.strongest(name, 1)[0]
            rows.append(f"  {name:10} {'  '.join(found)}  (control {float(self.control[name].mean(0)[x, y]):.2f})")
        return "\n".join(rows)


@torch.no_grad()
def repeated_sequence_scores(
    model: nn.Module, vocabulary: int, length: int = 64, sequences: int = 5, seed: int = 0, avoid: Sequence[int] = ()
) -> RepeatedSequenceScores:
    """Induction, duplicate-token and previous-token scores on random sequences said twice, beside a control.

        repeated_sequence_scores(model, vocabulary=49152, avoid=tokenizer.all_special_ids)

    Means over the queries of the second half, of the weight on the token after the same one (offset 1 − length), on the
    same one (−length) and on the one before (−1). In the control the second half is other tokens.
    """
    check_evaluation_mode(model)
    device = next(model.parameters()).device
    offsets = {"induction": 1 - length, "duplicate": -length, "previous": -1}
    found: list[list[Tensor]] = [[], []]
    for number in range(sequences):
        twice = repeated_sequence(vocabulary, length, seed + number, avoid)
        halves = twice[:length], repeated_sequence(vocabulary, length, seed + number + 10_000, avoid)[:length]
        for values, ids in zip(found, (twice, torch.cat(halves)), strict=True):
            with watch(model) as seen:
                model(ids[None].to(device))
            calls = layer_stack([call for call in seen if call.kind == "self" and call.shape[-1] == 2 * length])
            if not calls:
                raise ValueError(f"no self-attention over a sequence of twice {length} tokens was seen: {seen!r}")
            rows = [_offsets(call, 0, slice(length, None), [*offsets.values()]) for call in calls]
            values.append(torch.stack(rows))
    scores, control = ({name: torch.stack(x)[..., at] for at, name in enumerate(offsets)} for x in found)
    return RepeatedSequenceScores(scores, control, length)


def retrieval_scores(
    seen: Seen, ids: Int[Tensor, " t"], needle: range, entry: int = 0, prompt: int | None = None
) -> Float[Tensor, "layers heads"]:
    """The share of the needle's tokens that each head copied. Above 0.1 it is a retrieval head (Wu et al. 2024).

    `ids` are prompt and answer; `needle` is where in the prompt the text to be found stands. A head copies a token if,
    at the step that writes it, its key of largest weight lies in the needle and is that token. The answer may have been
    generated while watched, or been read with the prompt in one pass (teacher-forced): then `prompt` is how many of the
    tokens are the prompt.
    """
    ids, start = ids.cpu(), seen.prompt if prompt is None else prompt
    if start >= len(ids):
        raise ValueError(
            f"prompt and answer are {len(ids)} tokens and were read in one pass: say how many of them are the prompt, "
            "with prompt=…"
        )
    if not 0 <= needle.start < needle.stop <= start:
        raise ValueError(f"the needle {needle} must lie in the prompt, which has {start} tokens")
    scores = []
    for call in (call for call in seen if call.kind == "self"):
        queries = call.shape[-2]
        if queries < start or queries > len(ids):
            raise ValueError(
                f"{call.name} saw {queries} queries, which are not a prompt of {start} tokens and its answer, "
                f"{len(ids)} tokens together"
            )
        # The query at position i writes token i + 1, so the prompt's last query writes the first token.
        rows = range(start - 1, min(queries, len(ids) - 1))
        best = entry_weights(call, entry).rows(list(rows)).top(1).indices[..., 0].cpu()  # [heads, rows]
        generated = ids[start : start + len(rows)]
        hits = (best >= needle.start) & (best < needle.stop) & (ids[best] == generated)
        copied = [len(set(keys[hit].tolist())) for keys, hit in zip(best, hits, strict=True)]
        scores.append(torch.tensor(copied) / len(needle))
        call.forget()
    return torch.stack(scores)


MAX_FLOW_TOKENS = 128
"""Flow takes one maximum-flow computation per token, over T² edges per layer."""


class RowProducts:
    """Σ_i r_i w_ij, summed over heads, for chosen rows r: a statistic for `Weights.stats(also=…)`."""

    def __init__(self, rows: Float[Tensor, "rows q"], keys: int) -> None:
        self.rows, self.result = rows, rows.new_zeros(len(rows), keys)

    def add(self, block: Block) -> None:
        w = block.w.sum(0)  # [queries, width]
        self.result[:, : w.shape[-1]] += self.rows[:, block.rows] @ w


def rollout(seen: Seen, rows: Sequence[int] | None = None, entry: int = 0) -> Float[Tensor, "rows t"]:
    """R_L for some tokens of the last layer (all by default), over the tokens of the input.

    Each row is multiplied by one layer after another in O(T) memory, so a few rows are possible at any length.
    """
    calls = _square_weights(seen)
    length = calls[0].shape[-1]
    chosen = torch.arange(length) if rows is None else torch.tensor(list(rows))
    product = torch.zeros(len(chosen), length)
    product[torch.arange(len(chosen)), chosen] = 1
    for call in reversed(calls):
        weights = entry_weights(call, entry)
        # Rows of A sum to one, or less if there is a sink; Ã divides by that sum and the one of I.
        sums = weights.stats(on=torch.ones(length, dtype=torch.bool)).on
        assert sums is not None
        scaled = product / (1 + sums.mean(0).cpu())
        attended = RowProducts(scaled.to(weights.device), length)
        weights.stats(also=[attended])
        product = scaled + attended.result.cpu() / weights.shape[0]
        call.forget()
    return product


def flow(seen: Seen, row: int, entry: int = 0) -> Float[Tensor, " t"]:
    """The maximum flow from one token of the last layer to each token of the input. Up to 128 tokens."""
    import networkx  # which PyTorch installs

    calls = _square_weights(seen)
    length = calls[0].shape[-1]
    if length > MAX_FLOW_TOKENS:
        raise ValueError(
            f"flow is computed for up to {MAX_FLOW_TOKENS} tokens, there are {length}; rollout has no limit"
        )
    graph = networkx.DiGraph()  # a node is a layer, counted from the last, and a token
    for depth, call in enumerate(reversed(calls)):
        mixed = entry_weights(call, entry).tile(slice(None), slice(None)).mean(0).cpu() + torch.eye(length)
        for i, j in mixed.nonzero().tolist():
            graph.add_edge((depth, i), (depth + 1, j), capacity=float(mixed[i, j] / mixed[i].sum()))
    source = (0, range(length)[row])
    return torch.tensor([networkx.maximum_flow_value(graph, source, (len(calls), j)) for j in range(length)])


def _square_weights(seen: Seen) -> list[Call]:
    calls = [call for call in seen if call.kind == "self" and call.shape[-1] == call.shape[-2]]
    if not calls or len({call.shape[-1] for call in calls}) > 1:
        lengths = sorted({call.shape[-1] for call in calls})
        raise ValueError(f"rollout takes self-attention layers of one length; the lengths seen are {lengths}")
    return layer_stack(calls)
