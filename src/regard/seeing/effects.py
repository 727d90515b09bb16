"""Effects: what heads, layers and tokens do to what a model computes.

Estimates of effects from one backward pass: Σ g · (new − old), with g the gradient of the metric by an output.

This is attribution patching (Nanda 2023, Syed et al. 2023). It is exact if the metric is linear in that output.

Effects: how much a number that a model computes depends on each head, layer or token, by changing one at a time.

One call sweeps all of them. Many changes share one forward pass: the inputs are repeated along the batch, and each part
of the batch has its own change. Layers below the first change are not computed again.

    by          what replaces the output of a head (or of all heads of a layer)
    zero        zeros
    mean        its mean over all texts and positions (padding left out)
    resample    its output on another text of the batch, or on `corrupted`
    patch       its output on `inputs`, in a run on `corrupted` (activation patching: Meng et al. 2022)

For tokens, "zero" masks the token in every self-attention; the others replace its embedding likewise.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..attention.blocks import TensorVersions
from .interventions import EmbeddingHook, ModelIntervention, OutputRecorder, RowReplacement, Site, applied
from .modules import named_parts
from .terminal import ResultTable
from .terminal import progress as progress_bar
from .text_models import (
    all_tensors,
    batch_rows,
    batch_size,
    first_tensor,
    outputs_agree,
    repeated,
    run_model,
    without_graph,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .interventions import RecordedOutput


@dataclass(slots=True, eq=False)
class Effects:
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

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def save(self, path: Any) -> None:
        """Write the table to .csv or .parquet."""
        self.table().save(path)

    def __repr__(self) -> str:
        base = f"metric {float(self.base.mean()):.4g} without a change, mean of {len(self.base)}"
        lines = [f"Effects of {len(self.sites)} {self.of} by {self.by}; {base}"]
        for site, value in self.strongest(10):
            name = f"layer {site.layer}" if site.head is None else f"{site.layer}.{site.head}"
            name = name if site.token is None else f"token {site.token}"
            lines.append(f"  {name:12} {value:+.4f}")
        return "\n".join(lines)


def gradient_estimates(
    metric: Float[Tensor, " b"],
    sites: list[Site],
    records: Sequence[RecordedOutput],
    outputs: Sequence[Tensor | None],
    embedding: EmbeddingHook,
    embeddings: Tensor | None,
) -> Float[Tensor, "sites b"]:
    """The estimate of every site, from a metric with its graph.

    `outputs` replace those of the `records`, zeros where None; `embeddings` replace those that `embedding` recorded.
    """
    if embeddings is not None:
        assert embedding.output is not None
        (g,) = torch.autograd.grad(metric.sum(), [embedding.output])
        products = g.double() * (embeddings - embedding.output.detach()).double()
        return products.sum(-1).T.cpu()
    gradients = torch.autograd.grad(metric.sum(), [x.tensor for x in records], allow_unused=True)
    layers = []
    for record, gradient, new in zip(records, gradients, outputs, strict=True):
        old = record.by_heads
        # The metric may not depend on a call at all.
        g = torch.zeros_like(old) if gradient is None else record.arranged(gradient)
        change = -old if new is None else new - old
        layers.append((g.double() * change.double()).flatten(2).sum(-1).cpu())  # [B, heads]
    estimates = []
    for site in sites:
        assert site.layer is not None
        layer = layers[site.layer]
        estimates.append(layer.sum(1) if site.head is None else layer[:, site.head])
    return torch.stack(estimates)


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
        self._runs, self._kept = [], []
        handles = [
            part.register_forward_hook(self._hook(name), with_kwargs=True)
            for name, part in named_parts(self._model)
            if name.rpartition(".")[2].isdecimal()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            versions = TensorVersions(all_tensors(output))
            self._runs.append(_LayerRun(name, module, first_tensor((*args, *kwargs.values())), output, versions))

        return hook

    def keep_layers_of(self, modules: list[str]) -> None:
        """Keep the layers that contain these attention modules, if they are one stack; otherwise nothing is skipped.

        Nothing is skipped either if the model changed the output of a layer in place.
        """
        runs = [run for run in self._runs if any(name.startswith(f"{run.name}.") for name in modules)]
        names = [run.name for run in runs]
        outer = [run for run in runs if not any(run.name.startswith(f"{name}.") for name in names)]
        stacks, layers = {run.name.rpartition(".")[0] for run in outer}, {run.name for run in outer}
        one_stack = len(stacks) == 1 and len(layers) == len(outer)
        chained = all(
            following.first_input is not None and following.first_input is first_tensor(run.output)
            for run, following in pairwise(outer)
        )
        unchanged = all(run.is_unchanged() for run in outer)
        kept = outer if one_stack and chained and unchanged else []
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
        skipped = self._kept[:count]
        with _lock:
            before = [vars(module).get("forward") for _, module, _ in skipped]
            try:
                for _, module, output in skipped:
                    module.forward = _constant(output, batch, times, module.forward)
                yield
            finally:
                for (_, module, _), forward in zip(skipped, before, strict=True):
                    if forward is None:
                        vars(module).pop("forward", None)
                    else:
                        module.forward = forward


def _constant(output: Any, batch: int, times: int, computed: Any) -> Any:
    """A forward that returns a repeated output in this thread, and what `computed` returns in others."""
    thread = threading.get_ident()

    def forward(*args: Any, **kwargs: Any) -> Any:
        return repeated(output, batch, times) if threading.get_ident() == thread else computed(*args, **kwargs)

    return forward


if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    Inputs = Tensor | Mapping[str, Any]
    Metric = Callable[[Any], Tensor]

Of = Literal["heads", "layers", "tokens"]
By = Literal["zero", "mean", "resample", "patch"]


ROWS_ON_CPU, ROWS = 32, 256
"""The largest batch of a forward pass. On a CPU it is small, so that each pass skips as many layers as it can."""


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
    for name, value, known in (("of", of, get_args(Of)), ("by", by, get_args(By))):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}")
    if by == "patch" and corrupted is None:
        raise ValueError('by="patch" needs corrupted=…, other inputs of the same shape, into which parts are patched')
    if exact is not None and of == "tokens" and by == "zero":
        raise ValueError("masking a token has no estimate from a gradient; leave exact=None, or replace its embedding")
    _check_evaluation_mode(model)
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    corrupted = dict(corrupted) if isinstance(corrupted, Mapping) else corrupted
    return _Sweep(model, inputs, metric, of, by, corrupted, rows, seed).run(exact, shown=progress)


def _check_evaluation_mode(model: nn.Module) -> None:
    """Refuse modules that are random, or that mix the entries of a batch, each of which has its own change."""
    for name, part in model.named_modules():
        if isinstance(part, _DropoutNd) and part.training and part.p > 0:
            raise ValueError(f"{type(model).__name__} is in training mode with {part}; call model.eval() first")
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            advice = "call model.eval() first" if part.training else "it has no running statistics"
            raise ValueError(
                f"{name or type(model).__name__}, {type(part).__name__}, normalizes by the mean of its batch, in which "
                f"changed and unchanged entries would mix; {advice}"
            )


class _Sweep:
    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        metric: Metric,
        of: Of,
        by: By,
        corrupted: Inputs | None,
        rows: int | None,
        seed: int,
    ) -> None:
        self.model, self.metric, self.of, self.by = model, metric, of, by
        self.batch = batch_size(inputs)
        # Patching runs on the corrupted inputs; everything else on the inputs.
        self.base: Inputs | None = corrupted if by == "patch" else inputs
        self.other: Inputs | None = inputs if by == "patch" else corrupted
        if rows is None:
            first = first_tensor(inputs)
            rows = ROWS_ON_CPU if first is None or first.device.type == "cpu" else ROWS
        self.times, self.seed = max(1, rows // self.batch), seed
        self.prefix = LayerPrefix(model)
        self.modules: list[str] = []

    def run(self, exact: int | None, *, shown: bool) -> Effects:
        assert self.base is not None
        output, recorder, embedding = self._record(self.base, gradients=exact is not None)
        self.modules = [x.module for x in recorder.outputs]
        self.prefix.keep_layers_of(self.modules)
        base = self._measure(output)
        outputs, embeddings, other = self._replacements(recorder, embedding)
        sites = self._sites(recorder)
        result = Effects(
            self.of,
            self.by,
            sites,
            base.detach().double().cpu(),
            torch.full((len(sites), self.batch), torch.nan, dtype=torch.float64),
            None if self.by != "patch" else other,
        )
        chosen = list(range(len(sites)))
        if exact is not None:
            result.estimates = gradient_estimates(base, sites, recorder.outputs, outputs, embedding, embeddings)
            order = result.estimates.mean(1).abs().argsort(descending=True)
            chosen = order[:exact].tolist()
            result.measured = torch.zeros(len(sites), dtype=torch.bool)
            result.measured[chosen] = True
        if chosen:
            self._check_repeats(output)
        del output, recorder, base
        chosen.sort(key=lambda at: self.prefix.depth(sites[at].module))
        parts = [chosen[at : at + self.times] for at in range(0, len(chosen), self.times)]
        for part in progress_bar(parts, f"{len(chosen)} {self.of}, {self.by}") if shown else parts:
            values = self._run_part([sites[at] for at in part], outputs, embeddings)
            result.values[part] = values
        return result

    def _record(
        self, inputs: Inputs, gradients: bool = False, prefix: bool = True
    ) -> tuple[Any, OutputRecorder, EmbeddingHook]:
        recorder, hook = OutputRecorder(self.model, gradients), EmbeddingHook()
        hook.gradients = gradients
        handle = None
        if self.of == "tokens" and self.by != "zero":
            handle = self._embedding().register_forward_hook(hook)
        try:
            with torch.set_grad_enabled(gradients), applied(recorder):
                if prefix:
                    with self.prefix.recorded():
                        output = run_model(self.model, inputs)
                else:
                    output = run_model(self.model, inputs)
        finally:
            if handle is not None:
                handle.remove()
        if not recorder.outputs:
            raise ValueError(f"{type(self.model).__name__} called no attention that could be changed; see regard.watch")
        return output, recorder, hook

    @torch.no_grad()
    def _check_repeats(self, output: Any) -> None:
        """Refuse a model that does not give the same again for its inputs repeated along the batch."""
        times = min(2, self.times)
        with applied(ModelIntervention(self.model)):
            again = run_model(self.model, repeated(self.base, self.batch, times))
        for start in range(0, self.batch * times, self.batch):
            part = batch_rows(again, self.batch * times, slice(start, start + self.batch))
            if not outputs_agree(output, part, self.batch):
                raise ValueError(
                    f"{type(self.model).__name__} does not give the same output again for the same inputs, repeated "
                    f"{times} times along the batch: it drops out at random (call model.eval() first), or one of its "
                    f"inputs has no batch dimension but the size of the batch, {self.batch}, as its first"
                )

    def _embedding(self) -> nn.Module:
        find = getattr(self.model, "get_input_embeddings", None)
        if find is None:
            raise ValueError(
                f"{type(self.model).__name__} has no get_input_embeddings(), so its tokens are not known; take "
                'of="heads" or of="layers"'
            )
        return find()  # type: ignore[no-any-return]

    def _measure(self, output: Any) -> Float[Tensor, " b"]:
        values = self.metric(output)
        if not isinstance(values, torch.Tensor) or values.shape != (self.batch,):
            shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise ValueError(f"metric gives one number for each of {self.batch} entries of the batch, got {shape}")
        return values

    def _sites(self, recorder: OutputRecorder) -> list[Site]:
        if self.of == "tokens":
            return [Site(token=token) for token in range(recorder.outputs[0].by_heads.shape[2])]
        layers = [Site(layer, module=x.module) for layer, x in enumerate(recorder.outputs)]
        if self.of == "layers":
            return layers
        counts = [x.by_heads.shape[1] for x in recorder.outputs]
        return [replace(site, head=head) for site, count in zip(layers, counts, strict=True) for head in range(count)]

    def _replacements(
        self, recorder: OutputRecorder, embedding: EmbeddingHook
    ) -> tuple[list[Tensor | None], Tensor | None, Tensor | None]:
        """What replaces the output of each call and the embeddings, and the metric on the other inputs."""
        if self.by == "zero":
            return [None] * len(recorder.outputs), None, None
        source, vectors, other = [x.by_heads for x in recorder.outputs], embedding.output, None
        inputs = self.base
        if self.other is not None:
            output, second, hook = self._record(self.other, prefix=False)
            others = [x.by_heads for x in second.outputs]
            same = [x.shape for x in source] == [x.shape for x in others]
            if [x.module for x in second.outputs] != self.modules or not same:
                raise ValueError("inputs and corrupted must have one shape, so that each output has its counterpart")
            source, vectors, inputs = others, hook.output, self.other
            other = self._measure(output).detach().double().cpu()
        vectors = None if vectors is None else vectors.detach()
        if self.by == "resample" and self.other is None:
            if self.batch < 2:
                raise ValueError('by="resample" takes another text of the batch; give two at least, or corrupted=…')
            generator = torch.Generator().manual_seed(self.seed)
            shift = int(torch.randint(1, self.batch, (1,), generator=generator))
            source = [x.roll(shift, 0) for x in source]
            vectors = None if vectors is None else vectors.roll(shift, 0)
        if self.by == "mean":
            real = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
            source = [_mean(x, real) for x in source]
            vectors = None if vectors is None else _mean(vectors[:, None], real)[:, 0]
        return list(source), vectors, other

    @torch.no_grad()
    def _run_part(
        self, sites: list[Site], outputs: list[Tensor | None], embeddings: Tensor | None
    ) -> Float[Tensor, "sites b"]:
        """The metric with each of these sites changed, from one forward pass."""
        times, handle = len(sites), None
        embedded = self.of == "tokens" and self.by != "zero"
        change = RowReplacement(self.model, [] if embedded else sites, self.batch, outputs, self.modules)
        if embedded:
            handle = self._embedding().register_forward_hook(EmbeddingHook(sites, self.batch, embeddings))
        skipped = 0 if self.of == "tokens" else min(self.prefix.depth(site.module) for site in sites)
        try:
            with applied(change), self.prefix.skipped(skipped, self.batch, times):
                output = run_model(self.model, repeated(self.base, self.batch, times))
        finally:
            if handle is not None:
                handle.remove()
        total, values = self.batch * times, []
        for start in range(0, total, self.batch):
            values.append(self._measure(batch_rows(output, total, slice(start, start + self.batch))))
        return torch.stack(values).double().cpu()


def _mean(x: Float[Tensor, "b heads t d"], real: Any) -> Float[Tensor, "b heads t d"]:
    """The mean over the batch and over positions, without those that an attention mask [B, T] marks as padding."""
    if isinstance(real, torch.Tensor) and real.shape == (x.shape[0], x.shape[2]):
        share = real.to(x.dtype)[:, None, :, None]
        mean = (x * share).sum((0, 2), keepdim=True) / share.sum()
    else:
        mean = x.mean((0, 2), keepdim=True)
    return mean.expand(x.shape)
