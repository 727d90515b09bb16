"""Effects: how much a number that a model computes depends on each head, layer or token, by changing one at a time.

One call sweeps all of them. Many changes share one forward pass: the inputs are repeated along the batch, and each part
of the batch has its own change. Layers below the first change are not computed again.

    by          what replaces the output of a head (or of all heads of a layer)
    zero        zeros
    mean        its mean over all texts and positions (padding left out)
    resample    its output on another text of the batch, or on `corrupted`
    patch       its output on `inputs`, in a run on `corrupted` (activation patching: Meng et al. 2022)

For tokens, "zero" masks the token in every self-attention; the others replace its embedding likewise.

Estimates come from one backward pass: Σ g · (new − old), with g the gradient of the metric by an output. This is
attribution patching (Nanda 2023, Syed et al. 2023). It is exact if the metric is linear in that output.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from ..attention.parts import TensorVersions
from .interventions import ModelIntervention, OutputRecorder, RowReplacement, Site, applied
from .terminal import ResultTable, Tabular
from .terminal import progress as progress_bar
from .text_models import (
    all_tensors,
    batch_rows,
    batch_size,
    check_evaluation_mode,
    first_tensor,
    outputs_agree,
    repeated,
    run_model,
    without_graph,
)
from .watch import named_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .corpus import Sums
    from .interventions import RecordedOutput

    Inputs = Tensor | Mapping[str, Any]
    Metric = Callable[[Any], Tensor]

Of = Literal["heads", "layers", "tokens"]
By = Literal["zero", "mean", "resample", "patch"]
ROWS_ON_CPU, ROWS = 32, 256
"""The largest batch of a forward pass. On a CPU it is small, so that each pass skips as many layers as it can."""


@dataclass(slots=True, eq=False)
class Effects(Tabular):
    """The metric with each head, layer or token replaced, for each entry of the batch. It prints as a table."""

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

    def mean(self) -> Float[Tensor, " sites"]:
        """The mean difference over the batch; the estimate where no run was made."""
        mean = self.differences.mean(1)
        if self.estimates is None or self.measured is None:
            return mean
        return torch.where(self.measured, mean, self.estimates.mean(1))

    def matrix(self) -> Float[Tensor, "layers heads"]:
        """`mean` of heads as a matrix; NaN for heads that a layer does not have."""
        if self.of != "heads":
            raise ValueError(f"a matrix is layers × heads; these are effects of {self.of}")
        where = [(site.layer or 0, site.head or 0) for site in self.sites]
        matrix = torch.full([max(x) + 1 for x in zip(*where, strict=True)], torch.nan, dtype=torch.float64)
        layers, heads = torch.tensor(where).T
        matrix[layers, heads] = self.mean()
        return matrix

    def strongest(self, count: int = 10) -> list[tuple[Site, float]]:
        """The sites of largest mean difference, by size."""
        mean = self.mean()
        order = mean.abs().argsort(descending=True)[:count].tolist()
        return [(self.sites[at], float(mean[at])) for at in order]

    def table(self) -> ResultTable:
        """One row per site."""
        columns: dict[str, Sequence[Any]] = {}
        for name in ("layer", "head", "token"):
            values = [getattr(site, name) for site in self.sites]
            if values and values[0] is not None:
                columns[name] = values
        if self.of != "tokens":
            columns["module"] = [site.module for site in self.sites]
        columns["metric"] = self.values.mean(1).tolist()
        columns["difference"] = self.differences.mean(1).tolist()
        if self.target is not None:
            columns["recovered"] = self.recovered.tolist()
        if self.estimates is not None:
            columns["estimate"] = self.estimates.mean(1).tolist()
        return ResultTable(columns)

    def __repr__(self) -> str:
        base = f"metric {float(self.base.mean()):.4g} without a change, mean of {len(self.base)}"
        lines = [f"Effects of {len(self.sites)} {self.of} by {self.by}; {base}"]
        for site, value in self.strongest(10):
            name = f"layer {site.layer}" if site.head is None else f"{site.layer}.{site.head}"
            name = name if site.token is None else f"token {site.token}"
            lines.append(f"  {name:12} {value:+.4f}")
        return "\n".join(lines)


def effects(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    *,
    of: Of = "heads",
    by: By = "zero",
    corrupted: Inputs | None = None,
    exact: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Effects:
    """The change of `metric` when one head, layer or token at a time is replaced.

        logits = lambda output: output.logits[:, -1]
        difference = lambda output: logits(output)[range(B), mary] - logits(output)[range(B), john]
        effects(model, {"input_ids": ids}, difference).strongest(5)

    - `inputs`: a tensor, or the keyword arguments of the model; the first dimension of tensors is the batch.
    - `metric`: from what the model returns for these inputs to one number for each entry of the batch.
    - `corrupted`: other inputs of the same shape. With `by="patch"` the model runs on them, and one part at a time
      comes from the run on `inputs`.
    - `exact`: estimate all effects from one backward pass, then compute the `exact` largest; 0 for the estimate alone.
      By default all are computed and none is estimated.
    - `rows`: how large the batch of a forward pass may become; by default 32 on a CPU, where larger ones gain nothing,
      and 256 elsewhere.

    Works for scaled_dot_product_attention, Hugging Face's interface, nn.MultiheadAttention (called with
    need_weights=False), flex_attention, regard.attend, and attention that a module writes out. Tokens are masked in the
    first three and refused in the others, and their embeddings are replaced in models with `get_input_embeddings()`.
    """
    for name, given, known in (("of", of, get_args(Of)), ("by", by, get_args(By))):
        if given not in known:
            raise ValueError(f"{name} is {given!r}; expected one of {', '.join(map(repr, known))}")
    if by == "patch" and corrupted is None:
        raise ValueError('by="patch" needs corrupted=…, other inputs of the same shape, into which parts are patched')
    if exact is not None and of == "tokens" and by == "zero":
        raise ValueError("masking a token has no estimate from a gradient; leave exact=None, or replace its embedding")
    check_evaluation_mode(model)
    batch, first = batch_size(inputs), first_tensor(inputs)
    assert first is not None
    times = max(1, (rows or (ROWS_ON_CPU if first.device.type == "cpu" else ROWS)) // batch)
    # Patching runs on the corrupted inputs; everything else on the inputs.
    base, other = (corrupted, inputs) if by == "patch" and corrupted is not None else (inputs, corrupted)
    embedding = _embedding(model) if of == "tokens" and by != "zero" else None
    prefix = LayerPrefix(model)
    with prefix.recorded():
        run = _record(model, base, embedding, gradients=exact is not None)
    modules = [call.module for call in run.calls]
    prefix.keep_layers_of(modules)
    value = _measured(metric, run.output, batch)
    second = None if by == "zero" or other is None else _record(model, other, embedding)
    if second is not None and _shapes(second) != _shapes(run):
        raise ValueError("inputs and corrupted must have one shape, so that each output has its counterpart")
    outputs: list[Tensor | None] = [None] * len(modules)
    embeddings = None
    if by != "zero":
        outputs, embeddings = _replacements(by, second or run, base if second is None else other, second is None, seed)
    sites = _sites(of, run.calls)
    result = Effects(
        of,
        by,
        sites,
        value.detach().double().cpu(),
        torch.full((len(sites), batch), torch.nan, dtype=torch.float64),
        None if by != "patch" or second is None else _measured(metric, second.output, batch).detach().double().cpu(),
    )
    chosen = list(range(len(sites)))
    if exact is not None:
        result.estimates = _estimates(value, sites, run, outputs, embeddings)
        chosen = result.estimates.mean(1).abs().argsort(descending=True)[:exact].tolist()
        result.measured = torch.zeros(len(sites), dtype=torch.bool)
        result.measured[chosen] = True
    if chosen:
        _check_repeats(model, base, run.output, batch, min(2, times))
    del run, second, value  # with the graph

    @torch.no_grad()
    def changed(part: list[Site]) -> Float[Tensor, "sites b"]:
        """The metric with each of these sites changed, from one forward pass."""
        change = RowReplacement(model, part if embedding is None else [], batch, outputs, modules)

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            """The embeddings with one token replaced in each part of the batch."""
            assert embeddings is not None
            output = output.clone()
            for at, site in enumerate(part):
                rows = slice(at * batch, (at + 1) * batch)
                output[rows, site.token] = embeddings[:, site.token].to(output.dtype)
            return output

        skipped = 0 if of == "tokens" else min(prefix.depth(site.module) for site in part)
        with applied(change), _hooked(embedding, hook), prefix.skipped(skipped, batch, len(part)):
            output = run_model(model, repeated(base, batch, len(part)))
        total = batch * len(part)
        parts = (batch_rows(output, total, slice(at, at + batch)) for at in range(0, total, batch))
        return torch.stack([_measured(metric, each, batch) for each in parts]).double().cpu()

    chosen.sort(key=lambda at: prefix.depth(sites[at].module))
    parts = [chosen[at : at + times] for at in range(0, len(chosen), times)]
    for part in progress_bar(parts, f"{len(chosen)} {of}, {by}") if progress else parts:
        result.values[part] = changed([sites[at] for at in part])
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """What a model returned, the outputs of its attention calls, and of its embedding where that was asked for."""

    output: Any
    calls: list[RecordedOutput]
    embeddings: Tensor | None


def _record(model: nn.Module, inputs: Inputs, embedding: nn.Module | None, gradients: bool = False) -> _Run:
    recorder, embeddings = OutputRecorder(model, gradients), list[torch.Tensor]()

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_() if gradients and not output.requires_grad else output)
        return embeddings[-1].clone()  # the model may change what it gets in place

    with torch.set_grad_enabled(gradients), applied(recorder), _hooked(embedding, hook):
        output = run_model(model, inputs)
    if not recorder.outputs:
        raise ValueError(f"{type(model).__name__} called no attention that could be changed; see regard.watch")
    return _Run(output, recorder.outputs, embeddings[-1] if embeddings else None)


def _hooked(module: nn.Module | None, hook: Callable[..., Tensor]) -> Any:
    return nullcontext() if module is None else module.register_forward_hook(hook)


def _shapes(run: _Run) -> list[tuple[str, torch.Size]]:
    return [(call.module, call.by_heads.shape) for call in run.calls]


def _embedding(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_input_embeddings", None)
    if find is None:
        raise ValueError(
            f"{type(model).__name__} has no get_input_embeddings(), so its tokens are not known; take "
            'of="heads" or of="layers"'
        )
    return find()  # type: ignore[no-any-return]


def _measured(metric: Metric, output: Any, batch: int) -> Float[Tensor, " b"]:
    values = metric(output)
    if not isinstance(values, torch.Tensor) or values.shape != (batch,):
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise ValueError(f"metric gives one number for each of {batch} entries of the batch, got {shape}")
    return values


def _sites(of: Of, calls: list[RecordedOutput]) -> list[Site]:
    if of == "tokens":
        return [Site(token=token) for token in range(calls[0].by_heads.shape[2])]
    layers = [Site(layer, module=call.module) for layer, call in enumerate(calls)]
    if of == "layers":
        return layers
    counts = [call.by_heads.shape[1] for call in calls]
    return [replace(site, head=head) for site, count in zip(layers, counts, strict=True) for head in range(count)]


def _replacements(
    by: By, source: _Run, inputs: Inputs | None, is_own: bool, seed: int
) -> tuple[list[Tensor | None], Tensor | None]:
    """What replaces the output of each call, and the embeddings: those of a run on `inputs`, or made of them."""
    outputs: list[Tensor | None] = [call.by_heads for call in source.calls]
    embeddings = None if source.embeddings is None else source.embeddings.detach()
    change = None
    if by == "mean":
        real = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        change = partial(_mean, real=real)
    if by == "resample" and is_own:
        batch = source.calls[0].by_heads.shape[0]
        if batch < 2:
            raise ValueError('by="resample" takes another text of the batch; give two at least, or corrupted=…')
        shift = int(torch.randint(1, batch, (1,), generator=torch.Generator().manual_seed(seed)))
        change = partial(torch.roll, shifts=shift, dims=0)
    if change is not None:
        outputs = [change(call.by_heads) for call in source.calls]
        embeddings = None if embeddings is None else change(embeddings[:, None])[:, 0]
    return outputs, embeddings


def _mean(x: Float[Tensor, "b heads t d"], real: Any) -> Float[Tensor, "b heads t d"]:
    """The mean over the batch and over positions, without those that an attention mask [B, T] marks as padding."""
    if isinstance(real, torch.Tensor) and real.shape == (x.shape[0], x.shape[2]):
        share = real.to(x.dtype)[:, None, :, None]
        mean = (x * share).sum((0, 2), keepdim=True) / share.sum()
    else:
        mean = x.mean((0, 2), keepdim=True)
    return mean.expand(x.shape)


def _estimates(
    metric: Float[Tensor, " b"],
    sites: list[Site],
    run: _Run,
    outputs: Sequence[Tensor | None],
    embeddings: Tensor | None,
) -> Float[Tensor, "sites b"]:
    """Σ g · (new − old) of every site, from a metric with its graph."""
    if embeddings is not None:
        assert run.embeddings is not None
        (g,) = torch.autograd.grad(metric.sum(), [run.embeddings])
        return (g.double() * (embeddings - run.embeddings.detach()).double()).sum(-1).T.cpu()
    gradients = torch.autograd.grad(metric.sum(), [call.tensor for call in run.calls], allow_unused=True)
    layers = []
    for call, gradient, new in zip(run.calls, gradients, outputs, strict=True):
        old = call.by_heads
        # The metric may not depend on a call at all.
        g = torch.zeros_like(old) if gradient is None else call.arranged(gradient)
        change = -old if new is None else new - old
        layers.append((g.double() * change.double()).flatten(2).sum(-1).cpu())  # [B, heads]
    chosen = [(layers[site.layer or 0], site.head) for site in sites]
    return torch.stack([layer.sum(1) if head is None else layer[:, head] for layer, head in chosen])


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
    of = "layers" if sites[0].head is None else "heads"
    return Effects(of, by, sites, sums.mean(BASE)[None], values[:, None])
