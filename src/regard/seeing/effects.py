"""Effects: how much a number that a model computes depends on each site, by changing one at a time.

One call sweeps all of them. Many changes share one forward pass: the inputs are repeated along the batch, and each part
of the batch has its own change. Layers below the first change are not computed again.

    of                  what is changed, one at a time
    heads               the output of each head; "head positions": at each position
    layers              the outputs of all heads of each layer
    mlps                the output of each MLP; "mlp positions": at each position
    stream              the residual stream before each layer and after the last, at each position
    edges               each weight of each head: key j is closed to query i (Geva et al. 2023)
    tokens              each token, in all layers
    a list of sites     these (`interventions.Site`)

    by          what replaces it
    zero        zeros; a token is masked in every self-attention
    mean        its mean over all texts and positions (padding left out)
    resample    its output on another text of the batch, or on `corrupted`
    patch       its output on `inputs`, in a run on `corrupted` (activation patching: Meng et al. 2022)

Estimates come from one backward pass: Σ g · (new − old), with g the gradient of the metric by an output. This is
attribution patching (Nanda 2023, Syed et al. 2023). It is exact if the metric is linear in that output. Without key j,
the output of query i is Σ_{k≠j} w_ik v_k / (1 − w_ij), so that for edges new − old = w_ij (o_i − v_j) / (1 − w_ij).

Paths from sender to receiver are in `paths.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import nn

from ..attention.parts import TensorVersions
from .corpus import benjamini_hochberg, bootstrap_interval, sign_flip_p
from .interventions import Edit, ModelIntervention, Place, Site, SiteRecorder, SiteReplacement, applied
from .paths import Paths
from .terminal import ResultTable, Tabular
from .terminal import progress as progress_bar
from .text_models import (
    all_tensors,
    batch_rows,
    batch_size,
    check_evaluation_mode,
    first_tensor,
    outputs_agree,
    read_inputs,
    repeated,
    run_model,
    without_graph,
)
from .watch import named_parts, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .corpus import Sums
    from .interventions import Part, RecordedOutput
    from .paths import Through
    from .text_models import TextModel
    from .trace import Seen

    Inputs = Tensor | Mapping[str, Any]
    Metric = Callable[[Any], Tensor]

Of = Literal["heads", "head positions", "edges", "mlps", "mlp positions", "layers", "stream", "tokens"]
By = Literal["zero", "mean", "resample", "patch"]
PARTS: dict[str, Part] = {"mlps": "mlp", "mlp positions": "mlp", "stream": "stream", "tokens": "embedding"}
BY_POSITION = ("head positions", "mlp positions", "stream", "tokens")
SINK = 1e-5
"""What the weights of a row lack to 1 that is a sink, and not rounding."""
ROWS_ON_CPU, ROWS = 32, 256
"""The largest batch of a forward pass. On a CPU it is small, so that each pass skips as many layers as it can."""


@dataclass(slots=True, eq=False)
class Effects(Tabular):
    """The metric with each site replaced, for each entry of the batch. It prints as a table.

    Entries of the batch are prompts: means over them have a standard error, a bootstrap interval, and p values by
    turning signs round, corrected for the number of sites (Benjamini–Hochberg).
    """

    of: str
    by: str
    sites: list[Site]
    base: Float[Tensor, " b"]
    """The metric without a change; of patching, on the corrupted inputs."""
    values: Float[Tensor, "sites b"]
    """The metric with one change; NaN where it was estimated only."""
    target: Float[Tensor, " b"] | None = None
    """Of patching, the metric on the inputs that parts come from."""
    estimates: Float[Tensor, "sites b"] | None = None
    """The estimate of `differences` from one backward pass."""
    measured: Bool[Tensor, " sites"] | None = None
    """Which sites were run; None: all. The metric of a run may be NaN itself."""
    errors: Float[Tensor, " sites"] | None = None
    """Standard errors over texts that were added up."""

    @property
    def differences(self) -> Float[Tensor, "sites b"]:
        """The metric with one change less that without."""
        return self.values - self.base

    @property
    def recovered(self) -> Float[Tensor, " sites"]:
        """Of patching: the share of the distance from the corrupted to the clean metric that one part recovers."""
        if self.target is None:
            raise ValueError('recovered is of by="patch": the share of the distance between two runs')
        return self.differences.mean(1) / (self.target - self.base).mean()

    @property
    def best(self) -> Float[Tensor, "sites b"]:
        """The differences; the estimate where no run was made."""
        if self.estimates is None or self.measured is None:
            return self.differences
        return torch.where(self.measured[:, None], self.differences, self.estimates)

    def mean(self) -> Float[Tensor, " sites"]:
        """The mean difference over the batch; the estimate where no run was made."""
        return self.best.mean(1)

    def standard_error(self) -> Float[Tensor, " sites"]:
        """Of `mean` over prompts; NaN for one prompt."""
        if self.errors is not None:
            return self.errors
        best, count = self.best, len(self.base)
        return best.std(1) / count**0.5 if count > 1 else torch.full_like(best[:, 0], torch.nan)

    def interval(self, coverage: float = 0.95) -> tuple[Float[Tensor, " sites"], Float[Tensor, " sites"]]:
        """Low and high of `mean`, by resampling the prompts."""
        return bootstrap_interval(self.best, coverage)

    def p(self) -> Float[Tensor, " sites"]:
        """The p value of no effect; of n prompts it is at least 2 / 2ⁿ, and 1 of one prompt."""
        return sign_flip_p(self.best)

    def matrix(self) -> Float[Tensor, "layers heads"]:
        """`mean` of heads as a matrix, or of the stream and of MLPs by position; NaN for what is not there."""
        where = [(site.layer, site.head if site.token is None else site.token) for site in self.sites]
        both = any(site.head is not None and site.token is not None for site in self.sites)
        if both or any(None in place for place in where):
            raise ValueError(f"a matrix is layers × heads or × positions; these are effects of {self.of}")
        rows, columns = torch.tensor(cast("list[tuple[int, int]]", where)).T
        matrix = torch.full((int(rows.max()) + 1, int(columns.max()) + 1), torch.nan, dtype=torch.float64)
        matrix[rows, columns] = self.mean()
        return matrix

    def strongest(self, count: int = 10) -> list[tuple[Site, float]]:
        """The sites of largest mean difference, by size."""
        mean = self.mean()
        order = mean.abs().nan_to_num(-1).argsort(descending=True)[:count].tolist()
        return [(self.sites[at], float(mean[at])) for at in order]

    def table(self) -> ResultTable:
        """One row per site; with several prompts the standard error, the interval, p and q of its mean."""
        columns: dict[str, Sequence[Any]] = {}
        for name in ("layer", "head", "token", "key"):
            values = [getattr(site, name) for site in self.sites]
            if any(value is not None for value in values):
                columns["query" if name == "token" and self.of == "edges" else name] = values
        if self.of != "tokens":
            columns["module"] = [site.module for site in self.sites]
        columns["metric"] = self.values.mean(1).tolist()
        columns["difference"] = self.differences.mean(1).tolist()
        if self.target is not None:
            columns["recovered"] = self.recovered.tolist()
        if self.estimates is not None:
            columns["estimate"] = self.estimates.mean(1).tolist()
        if len(self.base) > 1:
            low, high = self.interval()
            p = self.p()
            columns |= {"standard error": self.standard_error().tolist(), "low": low.tolist(), "high": high.tolist()}
            columns |= {"p": p.tolist(), "q (Benjamini-Hochberg)": benjamini_hochberg(p).tolist()}
        elif self.errors is not None:
            columns["standard error"] = self.errors.tolist()
        return ResultTable(columns)

    def __repr__(self) -> str:
        base = f"metric {float(self.base.mean()):.4g} without a change, mean of {len(self.base)}"
        lines = [f"Effects of {len(self.sites)} {self.of} by {self.by}; {base}"]
        errors, (low, high) = self.standard_error(), self.interval()
        for site, value in self.strongest(10):
            at = self.sites.index(site)
            line = f"  {site.name:12} {value:+.4f}"
            if errors[at].isfinite():
                line += f" ± {float(errors[at]):.4f}"
            if low[at].isfinite():
                line += f"  [{float(low[at]):+.4f}, {float(high[at]):+.4f}]"
            estimated = self.measured is not None and not self.measured[at]
            lines.append(line + ("  estimate" if estimated else ""))
        return "\n".join(lines)


def effects(
    model: nn.Module | TextModel,
    inputs: Inputs | str,
    metric: Metric,
    *,
    of: Of | Sequence[Site] = "heads",
    by: By = "zero",
    corrupted: Inputs | str | None = None,
    into: Site | Sequence[Site] | None = None,
    through: Through | None = None,
    exact: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Effects:
    """The change of `metric` when one site at a time is replaced.

        logits = lambda output: output.logits[:, -1]
        difference = lambda output: logits(output)[range(B), mary] - logits(output)[range(B), john]
        effects(model, {"input_ids": ids}, difference).strongest(5)

    - `inputs`: a tensor, or the keyword arguments of the model; the first dimension of tensors is the batch.
    - `metric`: from what the model returns for these inputs to one number for each entry of the batch.
    - `of`: "heads", "head positions", "edges", "mlps", "mlp positions", "layers", "stream", "tokens", or a list of
      sites.
    - `corrupted`: other inputs of the same shape. With `by="patch"` the model runs on them, and one part at a time
      comes from the run on `inputs`.
    - `into`: only along the paths into these heads (`through="query"`, "key" or "value"; without it all three), MLPs or
      stream, `Site(L, part="stream")` being what the output layer reads. All of them receive at once.
    - `exact`: estimate all effects from one backward pass, then compute the `exact` largest; 0 for the estimate alone.
      By default all are computed and none is estimated.
    - `rows`: how large the batch of a forward pass may become; by default 32 on a CPU, where larger ones gain nothing,
      and 256 elsewhere.

    Works for scaled_dot_product_attention, Hugging Face's interface, nn.MultiheadAttention (called with
    need_weights=False), flex_attention, regard.attend, and attention that a module writes out. Tokens and edges are
    masked in the first three and refused in the others; embeddings are replaced in models with
    `get_input_embeddings()`. The MLP of a layer is its one part that has matrices and calls no attention. Paths are for
    models whose layers add to a residual stream (see `logit_attribution`).
    """
    for name, given, known in (("of", of, get_args(Of)), ("by", by, get_args(By))):
        if isinstance(given, str) and given not in known:
            raise ValueError(f"{name} is {given!r}; expected one of {', '.join(map(repr, known))}")
    corrupted = None if corrupted is None else read_inputs(model, corrupted)[1]
    model, inputs = read_inputs(model, inputs)
    if by == "patch" and corrupted is None:
        raise ValueError('by="patch" needs corrupted=…, other inputs of the same shape, into which parts are patched')
    if exact is not None and exact < 0:
        raise ValueError(f"exact is how many sites are run, at least 0; got {exact}")
    masked = (of == "tokens" and by == "zero") or of == "edges"
    if exact is not None and of == "tokens" and by == "zero":
        raise ValueError("masking a token has no estimate from a gradient; leave exact=None, or replace its embedding")
    if of == "edges" and by != "zero":
        raise ValueError(f'edges are closed, by="zero"; got by={by!r}')
    if through is not None and into is None:
        raise ValueError(f"through={through!r} says which side of a head receives; name the heads with into=…")
    check_evaluation_mode(model)
    batch, first = batch_size(inputs), first_tensor(inputs)
    assert first is not None
    times = max(1, (rows or (ROWS_ON_CPU if first.device.type == "cpu" else ROWS)) // batch)
    # Patching runs on the corrupted inputs; everything else on the inputs.
    base, other = (corrupted, inputs) if by == "patch" and corrupted is not None else (inputs, corrupted)
    named = [PARTS.get(of, "attention")] if isinstance(of, str) else [site.place.part for site in of]
    parts = frozenset(part for part in named if part != "attention" and not masked)
    prefix = LayerPrefix(model)
    run = _record(model, base, parts, gradients=exact is not None, prefix=prefix, watched=of == "edges")
    prefix.keep_layers_of([call.module for place, call in run.places.items() if place.part == "attention"])
    value = _measured(metric, run.output, batch)
    second = None if by == "zero" or other is None else _record(model, other, parts)
    if second is not None and _shapes(second) != _shapes(run):
        raise ValueError("inputs and corrupted must have one shape, so that each output has its counterpart")
    new = _replacements(by, second or run, base if second is None else other, second is None, seed)
    sites = _sites(of, run) if isinstance(of, str) else [_checked(site, run) for site in of]
    paths = None
    if into is not None:
        if exact is not None or masked:
            raise ValueError("effects along paths are run, for heads, MLPs and the stream; leave exact=None")
        paths = Paths(
            model, base, prefix, [into] if isinstance(into, Site) else list(into), through, run.places, run.numbers, new
        )
        sites = [site for site in sites if paths.reaches(site)]
    result = Effects(
        of if isinstance(of, str) else "sites",
        by,
        sites,
        value.detach().double().cpu(),
        torch.full((len(sites), batch), torch.nan, dtype=torch.float64),
        None if by != "patch" or second is None else _measured(metric, second.output, batch).detach().double().cpu(),
    )
    chosen = list(range(len(sites)))
    if exact is not None:
        result.estimates = _estimates(value, sites, run, new)
        chosen = result.estimates.mean(1).abs().argsort(descending=True)[:exact].tolist()
        result.measured = torch.zeros(len(sites), dtype=torch.bool)
        result.measured[chosen] = True
    if chosen:
        _check_repeats(model, base, run.output, batch, min(2, times))
    numbers, run.seen = run.numbers, None
    for call in run.places.values():
        call.forget_graph()
    del second, value

    def depth(site: Site) -> int:
        if site.part == "stream" and site.layer is not None and not masked:
            return min(site.layer, prefix.count)
        return prefix.depth(f"{site.module}.")

    @torch.no_grad()
    def changed(part: list[Site]) -> Float[Tensor, "sites b"]:
        """The metric with each of these sites changed, from one forward pass."""
        where = [slice(at * batch, (at + 1) * batch) for at in range(len(part))]
        edits = [Edit(rows, site, None if masked else new[site.place]) for rows, site in zip(where, part, strict=True)]
        skipped = min(map(depth, part))
        if paths is not None:
            edits, skipped = paths.received(part), min(map(depth, paths.receivers))
        change = SiteReplacement(model, [] if masked else edits, edits if masked else [], dict(numbers))
        with change.opened(), prefix.skipped(skipped, batch, len(part)):
            output = run_model(model, repeated(base, batch, len(part)))
        total = batch * len(part)
        each = (batch_rows(output, total, rows) for rows in where)
        return torch.stack([_measured(metric, one, batch) for one in each]).double().cpu()

    chosen.sort(key=lambda at: depth(sites[at]))
    groups = [chosen[at : at + times] for at in range(0, len(chosen), times)]
    for group in progress_bar(groups, f"{len(chosen)} {result.of}, {by}") if progress else groups:
        result.values[group] = changed([sites[at] for at in group])
    return result


@dataclass(slots=True, eq=False)
class _Run:
    """What a model returned, and what flowed at its places."""

    output: Any
    places: dict[Place, RecordedOutput]
    numbers: dict[tuple[str, int], int]
    seen: Seen | None


def _record(
    model: nn.Module,
    inputs: Inputs,
    parts: frozenset[Part],
    gradients: bool = False,
    prefix: LayerPrefix | None = None,
    watched: bool = False,
) -> _Run:
    recorder, seen = SiteRecorder(model, parts, gradients), None
    with torch.set_grad_enabled(gradients), ExitStack() as blocks:
        if watched:
            seen = blocks.enter_context(watch(model))
        blocks.enter_context(recorder.opened())  # before the prefix: it keeps what the layers really gave
        if prefix is not None:
            blocks.enter_context(prefix.recorded())
        output = run_model(model, inputs)
    attention = [place for place in recorder.places if place.part == "attention"]
    if not attention:
        raise ValueError(f"{type(model).__name__} called no attention that could be changed; see regard.watch")
    for part in parts:
        if not any(place.part == part for place in recorder.places):
            raise ValueError(f"{type(model).__name__}: no {part} was found in its layers; see regard.intervene")
    return _Run(output, recorder.places, recorder.numbers, seen)


def _shapes(run: _Run) -> list[tuple[Place, torch.Size]]:
    return [(place, call.by_heads.shape) for place, call in run.places.items()]


def _measured(metric: Metric, output: Any, batch: int) -> Float[Tensor, " b"]:
    values = metric(output)
    if not isinstance(values, torch.Tensor) or values.shape != (batch,):
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise ValueError(f"metric gives one number for each of {batch} entries of the batch, got {shape}")
    return values


def _sites(of: Of, run: _Run) -> list[Site]:
    length = run.places[Place("attention", 0)].by_heads.shape[2]
    if of == "tokens":
        return [Site(token=token) for token in range(length)]
    sites = []
    for (part, layer), call in run.places.items():
        if part != PARTS.get(of, "attention"):
            continue
        _, heads, length = call.by_heads.shape[:3]
        one = Site(layer, module=call.module, part=part)
        each = [replace(one, head=head) for head in range(heads)] if of in ("heads", "head positions") else [one]
        if of in BY_POSITION:
            each = [replace(site, token=token) for site in each for token in range(length)]
        if of == "edges":
            assert run.seen is not None
            open_ = run.seen.calls[layer].weights.dense().detach()
            open_ = (open_ > 0).reshape(-1, *open_.shape[-3:]).any(0)  # [heads, T_q, T_k]
            # A query that sees one key keeps it.
            places = (open_ & (open_.sum(-1, keepdim=True) > 1)).nonzero().tolist()
            each = [Site(layer, head, query, call.module, part, key) for head, query, key in places]
        sites += each
    return sites


def _checked(site: Site, run: _Run) -> Site:
    """A site that was given, with its module and counted from 0; an error if it is not there."""
    call = run.places.get(site.place)
    layers = 1 + max((place.layer for place in run.places if place.part == site.place.part), default=-1)
    if call is None:
        raise ValueError(f"there is no {site.name}: {layers} of {site.place.part} were seen, counted from 0")
    _, heads, length = call.by_heads.shape[:3]
    if site.key is not None or not (site.head is None or 0 <= site.head < heads):
        raise ValueError(f'{site.name}: there are {heads} heads, counted from 0 (single weights: of="edges")')
    if site.token is not None and not -length <= site.token < length:
        raise ValueError(f"{site.name}: there are {length} positions")
    token = None if site.token is None else site.token % length
    return replace(site, module=call.module, token=token)


def _replacements(
    by: By, source: _Run, inputs: Inputs | None, is_own: bool, seed: int
) -> dict[Place, Float[Tensor, "b heads t d"] | None]:
    """What replaces the output at each place: that of a run on `inputs`, or made of it; None for zeros."""
    if by == "zero":
        return dict.fromkeys(source.places)
    outputs = {place: call.by_heads for place, call in source.places.items()}
    change = None
    if by == "mean":
        real = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        change = partial(_mean, real=real)
    if by == "resample" and is_own:
        batch = outputs[Place("attention", 0)].shape[0]
        if batch < 2:
            raise ValueError('by="resample" takes another text of the batch; give two at least, or corrupted=…')
        shift = int(torch.randint(1, batch, (1,), generator=torch.Generator().manual_seed(seed)))
        change = partial(torch.roll, shifts=shift, dims=0)
    return {place: x if change is None else change(x) for place, x in outputs.items()}


def _mean(x: Float[Tensor, "b heads t d"], real: Any) -> Float[Tensor, "b heads t d"]:
    """The mean over the batch and over positions, without those that an attention mask [B, T] marks as padding."""
    if isinstance(real, torch.Tensor) and real.shape == (x.shape[0], x.shape[2]):
        share = real.to(x.dtype)[:, None, :, None]
        mean = (x * share).sum((0, 2), keepdim=True) / share.sum()
    else:
        mean = x.mean((0, 2), keepdim=True)
    return mean.expand(x.shape)


def _estimates(
    metric: Float[Tensor, " b"], sites: list[Site], run: _Run, new: Mapping[Place, Tensor | None]
) -> Float[Tensor, "sites b"]:
    """Σ g · (new − old) of every site, from a metric with its graph."""
    places = {place: run.places[place] for place in dict.fromkeys(site.place for site in sites)}
    gradients = torch.autograd.grad(metric.sum(), [call.tensor for call in places.values()], allow_unused=True)
    changes = {}
    for (place, call), gradient in zip(places.items(), gradients, strict=True):
        old, after = call.by_heads, new[place]
        # The metric may not depend on a call at all.
        g = torch.zeros_like(old) if gradient is None else call.arranged(gradient)
        if run.seen is not None:
            changes[place] = _without_edges(run.seen, place.layer, g)
            continue
        change = (g.double() * (-old if after is None else after - old).double()).sum(-1)  # [B, heads, T]
        change = torch.cat([change, change.sum(1, keepdim=True)], 1)  # the last: all heads, all positions
        changes[place] = torch.cat([change, change.sum(2, keepdim=True)], 2).cpu()
    estimates = torch.empty(len(sites), len(metric), dtype=torch.float64)
    for place, change in changes.items():
        at = [number for number, site in enumerate(sites) if site.place == place]
        index = [[-1 if x is None else x for x in (sites[n].head, sites[n].token, sites[n].key)] for n in at]
        head, token, key = torch.tensor(index).T
        found = change[:, head, token] if change.dim() == 3 else change[:, head, token, key]
        estimates[at] = found.T
    return estimates


@torch.no_grad()
def _without_edges(seen: Seen, number: int, g: Float[Tensor, "b heads t d"]) -> Float[Tensor, "b heads q k"]:
    """g · (o' − o) of every weight that is closed, o' the average of the other values by the other weights."""
    call = seen.calls[number]
    w, c = call.weights.dense().double(), call.contributions(g.to(call.v.dtype)).dense().double()
    total, sink = c.sum(-1, keepdim=True), 1 - w.sum(-1, keepdim=True)
    # 1 − w_ij as the sum of the others: where w_ij is nearly 1 the difference would be rounding alone.
    others = _without_each(w) + sink.where(sink > SINK, 0)
    return (_without_each(c) / others - total).where(others > 0, 0).cpu()


def _without_each(x: Float[Tensor, "... k"]) -> Float[Tensor, "... k"]:
    """Σ_{k≠j} x_k for each j, without a subtraction."""
    before, after = x[..., :-1].cumsum(-1), x[..., 1:].flip(-1).cumsum(-1).flip(-1)
    pad = torch.nn.functional.pad
    return pad(before, (1, 0)) + pad(after, (0, 1))


@torch.no_grad()
def _check_repeats(model: nn.Module, inputs: Inputs, output: Any, batch: int, times: int) -> None:
    """Refuse a model that does not give the same again for its inputs repeated along the batch."""
    with applied(ModelIntervention(model)):
        again = run_model(model, repeated(inputs, batch, times))
    for start in range(0, batch * times, batch):
        if not outputs_agree(output, batch_rows(again, batch * times, slice(start, start + batch)), batch):
            raise ValueError(
                f"{type(model).__name__} does not give the same output again for the same inputs, repeated {times} "
                "times along the batch: it drops out at random (call model.eval() first), or one of its inputs has no "
                f"batch dimension but the size of the batch, {batch}, as its first"
            )


_lock = threading.RLock()
"""Held while layers are skipped: threads that skip layers of one model do so one after the other."""


@dataclass(slots=True, eq=False)
class _LayerRun:
    """One run of a layer: its first input and its output, by reference, and the versions of the output's tensors."""

    name: str
    module: nn.Module
    first_input: Tensor | None
    output: Any
    versions: TensorVersions

    def is_unchanged(self) -> bool:
        """Whether the output is still what the layer gave; not known of inference tensors, which have no version."""
        return not self.versions.changed() and not any(x.is_inference() for x in self.versions.tensors)


class LayerPrefix:
    """The outputs of a stack of layers, each of which reads the output of the one before it and nothing later.

    A run that changes layer l needs none of the layers below: `skipped` replaces their forward by what they gave.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._runs: list[_LayerRun] = []
        self._kept: list[tuple[str, nn.Module, Any]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside the block, the outputs of all layers are recorded."""

        def hook(name: str) -> Any:
            def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
                first, versions = first_tensor((*args, *kwargs.values())), TensorVersions(all_tensors(output))
                self._runs.append(_LayerRun(name, module, first, output, versions))

            return after

        with ExitStack() as hooks:
            for name, part in named_parts(self._model):
                if name.rpartition(".")[2].isdecimal():
                    hooks.enter_context(part.register_forward_hook(hook(name), with_kwargs=True))
            yield

    def keep_layers_of(self, modules: list[str]) -> None:
        """Keep the layers that contain these attention modules, if they are one stack; otherwise nothing is skipped.

        Nothing is skipped either if the model changed the output of a layer in place.
        """
        runs = [run for run in self._runs if any(name.startswith(f"{run.name}.") for name in modules)]
        outer = [run for run in runs if not any(run.name.startswith(f"{other.name}.") for other in runs)]
        names = {run.name for run in outer}
        one_stack = len({name.rpartition(".")[0] for name in names}) == 1 and len(names) == len(outer)
        chained = all(
            following.first_input is not None and following.first_input is first_tensor(run.output)
            for run, following in pairwise(outer)
        )
        kept = outer if one_stack and chained and all(run.is_unchanged() for run in outer) else []
        self._kept = [(run.name, run.module, without_graph(run.output)) for run in kept]
        self._runs = []

    def depth(self, module: str) -> int:
        """How many layers run before that of an attention module; 0 if none can be skipped."""
        return next((at for at, (name, _, _) in enumerate(self._kept) if module.startswith(f"{name}.")), 0)

    @property
    def count(self) -> int:
        """The layers that can be skipped."""
        return len(self._kept)

    @contextmanager
    def skipped(self, count: int, batch: int, times: int) -> Iterator[None]:
        """Inside the block, the first `count` layers return what they gave, for the batch repeated `times` times.

        Other threads that run the model meanwhile compute these layers.
        """
        thread = threading.get_ident()

        def constant(output: Any, computed: Any) -> Any:
            def forward(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() != thread:
                    return computed(*args, **kwargs)
                return repeated(output, batch, times)

            return forward

        with _lock, ExitStack() as undo:
            for _, module, output in self._kept[:count]:
                own = vars(module).get("forward")
                if own is None:
                    undo.callback(delattr, module, "forward")
                else:
                    undo.callback(setattr, module, "forward", own)
                module.forward = constant(output, module.forward)
            yield


BASE = ("metric",)
DIGITS = 6
"""Of numbers in names, which are sorted as text."""


def add_effects(sums: Sums, effects: Effects) -> None:
    """Add the effects of one text, its mean over the batch."""
    sums.add(BASE, effects.base.mean())
    for site, value, change in zip(effects.sites, effects.values.mean(1), effects.differences.mean(1), strict=True):
        if site.layer is None:
            raise ValueError("effects of tokens have no mean over texts: a token's place means something else in each")
        place = (f"{site.layer:0{DIGITS}d}", "" if site.head is None else f"{site.head:0{DIGITS}d}", site.module)
        sums.add(("site", *place), value)
        sums.add(("difference", *place), change)


def mean_effects(sums: Sums, by: str) -> Effects:
    """The mean of each site's metric over the texts, as the effects of one entry."""
    names = sorted(name for name in sums.names if name[0] == "site")
    sites = [Site(int(layer), int(head) if head else None, None, module) for _, layer, head, module in names]
    values = torch.stack([sums.mean(name) for name in names])
    of, errors = "layers" if sites[0].head is None else "heads", None
    changes = [("difference", *name[1:]) for name in names]
    if all(sums.count(change) == sums.count(name) for change, name in zip(changes, names, strict=True)):
        errors = torch.stack([sums.standard_error(name) for name in changes])
    return Effects(of, by, sites, sums.mean(BASE)[None], values[:, None], errors=errors)
