"""Gradients of the outputs of calls, ∂L/∂o: hooks on the tensors that the model goes on with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..attention.blocks import ChangedInPlaceError
from ..attention.contributions import Contributions
from ..attention.weights import Weights
from .generation import Generation, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.masks import Mask
    from .figures import Tokens
    from .generation import Record
    from .modules import HeadShare


def _same(g: Tensor) -> Tensor:
    return g


def _start_graph(x: Tensor) -> None:
    """Let the graph for gradients begin at x.

    As a leaf, the model could not change it in place afterwards. So it becomes the result of an addition to none of
    its numbers. A view stays a leaf: PyTorch loses the hooks of a view whose base is changed in place.
    """
    if x._is_view():
        x.requires_grad_()
    else:
        x[:0].add_(x.new_zeros(()).requires_grad_())


class GraphOutput(NamedTuple):
    """The output of a call as the model goes on to use it, with its graph."""

    tensor: Tensor
    arrange: Callable[[Tensor], Tensor] = _same
    """From the gradient of `tensor` to that of W·v, [*batch, T_q, D_v]."""


class OutputGradients:
    """The gradients of one call's outputs, one for each step, of the last backward pass.

    A hook keeps no graph alive, and needs no other backward pass than the one the caller runs.
    """

    def __init__(self, name: str, store: Callable[[Tensor], Tensor]) -> None:
        self._name = name
        self._store = store
        self._steps: list[Tensor | None] = []
        self._missing = ""

    def follow(self, output: GraphOutput | None) -> None:
        """Keep the gradient of this output, that of the next step, when a backward pass computes it."""
        step = len(self._steps)
        self._steps.append(None)
        if output is None:
            self._missing = "this way of computing attention does not expose its output with a graph"
            return
        tensor, arrange = output
        if torch.is_grad_enabled() and not tensor.requires_grad and not tensor.is_inference():
            _start_graph(tensor)  # no parameter needs a gradient
        if not tensor.requires_grad:
            self._missing = "the model ran without a graph, under torch.no_grad or torch.inference_mode"
            return

        def keep(gradient: Tensor) -> None:
            try:
                with torch.no_grad():
                    self._steps[step] = self._store(arrange(gradient.detach()))
            except Exception as error:  # an error of ours must not stop the backward pass
                self._missing = f"it could not be kept: {error}"

        tensor.register_hook(keep)

    def joined(self) -> Float[Tensor, "*batch q d_v"]:
        """The gradients of all steps, one below the other."""
        steps = [x for x in self._steps if x is not None]
        if not steps or self._missing:
            reason = self._missing or "no backward pass reached it; call loss.backward()"
            raise ValueError(f"{self._name} has no gradient: {reason}")
        if len(steps) < len(self._steps):
            raise ValueError(f"{self._name}: a backward pass reached {len(steps)} of its {len(self._steps)} steps")
        return steps[0] if len(steps) == 1 else torch.cat(steps, dim=-2)


CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|multihead_attn|memory|source")

BUDGET = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The rounding error that weights may have, as a share of what depends on them: of the output less the mean value."""
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""The rounding error of the output itself, as a share of all of it."""


class MeasuredFidelity(NamedTuple):
    """The error |W·v − out| / |out|, and how much of it rounding explains; `error` is None if it cannot be measured.

    `budget` depends on the call: if all values are similar, any weights give nearly the same output, so a wrong
    mask changes it little, and less is allowed.
    """

    error: float | None
    budget: float
    remark: str = ""
    """Why it cannot be measured, or that it was read from a trace."""
    lost: bool = False
    """What the weights depend on was changed since, so that they cannot be computed either."""
    recorded: bool = False
    """Read from a trace, where it cannot be measured again: a claim of whoever wrote the file, not a proof."""

    @property
    def faithful(self) -> bool | None:
        """Whether these are the weights that the model used; None if that cannot be measured here."""
        if self.error is None:
            return False if self.lost else None
        within = self.error <= self.budget
        return None if within and self.recorded else within


class Call:
    """The attention of one module: `call.weights` has the weights, `call.head(5)` those of one head.

    Rows are queries: those of the prompt first, then one for each token generated.
    """

    def __init__(
        self,
        name: str,
        record: Record | Callable[[], Record],
        original: Record | None = None,
        layer: Callable[[], int | None] | int | None = None,
        ablated: str = "",
        share: Callable[[], HeadShare] | None = None,
        inputs: tuple[Tensor, ...] = (),
    ) -> None:
        """`record` may be a function that computes it on first use, from `inputs`.

        `original` is the model's record if `record` is a copy of it.
        """
        self._inputs = inputs
        self.name = name
        self._layer = layer
        self._share = share
        self.ablated = ablated
        """What an `ablate` block around the watch changed in this call: "heads 0, 3"; empty if nothing."""
        self._deferred = record if callable(record) else None
        self._generation = None if callable(record) else Generation(record, original)
        self._gradients: OutputGradients | None = None
        self._weights: Weights | None = None
        self._fidelity: MeasuredFidelity | None = None
        self._measured_versions: list[object] = []

    @property
    def generation(self) -> Generation:
        """What was recorded: the steps, and the record of the first."""
        if self._generation is None:
            assert self._deferred is not None
            self._generation, self._deferred = Generation(placed(self._deferred(), torch.Tensor.detach)), None
        return self._generation

    @property
    def record(self) -> Record:
        """The record of the first step: what computed it, sinks, dropout and so on are those of all steps."""
        return self.generation.first

    @property
    def origin(self) -> str:
        """The function that computed it, and its kernel if that is known."""
        return self.record.origin

    @property
    def matrix(self) -> str:
        """Why the weights are held as a whole matrix; empty if queries and keys are held instead."""
        return "" if self._generation is None else self._generation.first.matrix

    @property
    def kind(self) -> str:
        """ "self" if queries and keys come from the same sequence, otherwise "cross"."""
        if self.record.cross is not None:
            return "cross" if self.record.cross else "self"
        first = self.generation.steps[0]
        causal = first.mask is not None and first.mask.causal_offset is not None
        lengths_differ = first.q.shape[-2] != first.keys and not causal
        return "cross" if CROSS.search(self.name.lower()) or lengths_differ else "self"

    @property
    def steps(self) -> list[int]:
        """The number of queries of each forward pass: the prompt's, then usually one for each token."""
        return self.record.steps or [step.q.shape[-2] for step in self.generation.steps]

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], usually [B, heads, T_q, T_k]."""
        queries = sum(step.q.shape[-2] for step in self.generation.steps)
        return (*self.record.energies.batch, queries, self.generation.keys)

    @property
    def heads(self) -> int:
        return self.shape[-3] if len(self.shape) > 2 else 1

    @property
    def head_numbers(self) -> range:
        """The numbers of its heads in the whole model: under tensor parallelism a process has some of them."""
        rank = 0 if self._share is None else self._share().rank
        return range(rank * self.heads, (rank + 1) * self.heads)

    @property
    def all_heads(self) -> int:
        """How many heads all processes have together."""
        return self.heads * (1 if self._share is None else self._share().ranks)

    @property
    def layer(self) -> int | None:
        """The depth among the attention modules of its stack, from 0; None if it is not one of a stack."""
        depth = self._layer() if callable(self._layer) else self._layer
        return layer_of(self.name) if depth is None else depth

    @property
    def v(self) -> Float[Tensor, "*batch k d_v"]:
        """The values, with as many heads as the keys have."""
        return self.generation.v

    def __repr__(self) -> str:
        return f"Call({self.name}, {self.kind}, {list(self.shape)}, {self.origin})"

    @property
    def weights(self) -> Weights:
        """The weights, [*batch, T_q, T_k]. They are those before dropout."""
        if self._weights is None:
            self.check_unchanged()
            energies, state = self.generation.joined()
            self._weights = Weights(energies, self.record.normalize, state)
        return self._weights

    def check_unchanged(self) -> None:
        if self.generation.changed():
            raise ChangedInPlaceError(
                f"{self.name} attended, and what it attended with (queries, keys, values, masks, biases or learned "
                "parts) was changed in place since, so the weights it used can no longer be computed; "
                'watch(model, keep="cpu") keeps copies'
            )

    def tensors(self) -> list[Tensor]:
        """Everything that is held."""
        return [*self._inputs, *(() if self._generation is None else self._generation.tensors())]

    def forget(self) -> None:
        """Free what `weights` has computed (the row state, shared heads repeated); it is computed again on use."""
        self._weights = None

    def head(self, n: int, entry: int = 0) -> Weights:
        """One head of one entry of the batch."""
        weights = self.weights
        lead = len(weights.shape) - 2
        return weights[(*(0,) * (lead - 2), entry, n)[-lead:] if lead else ()]

    @property
    def gradient(self) -> Float[Tensor, "*batch q d_v"]:
        """∂L/∂o of the last backward pass, for calls recorded by `watch(model, gradients=True)`."""
        if self._gradients is None:
            raise ValueError(f"{self.name}: gradients were not kept; record with watch(model, gradients=True)")
        return self._gradients.joined()

    def follow_gradient(self, output: GraphOutput | None, store: Callable[[Tensor], Tensor]) -> None:
        """Keep the gradient of the newest step's output when a backward pass computes it."""
        if self._gradients is None:
            self._gradients = OutputGradients(self.name, store)
        self._gradients.follow(output)

    def contributions(self, g: Float[Tensor, "*batch #q d_v"] | None = None) -> Contributions:
        """w_ij · (g_i · v_j), what each key added to each output along g, [*batch, T_q, T_k].

        Without g it is attention × gradient, w_ij · ∂L/∂w_ij, from the last backward pass.
        """
        return Contributions(self.weights, self.v, self.gradient if g is None else g)

    def plot(
        self,
        heads: int | Sequence[int] | None = None,
        *,
        contributions: Contributions | None = None,
        entry: int = 0,
        tokens: Tokens | None = None,
        cmap: str | None = None,
        labels: tuple[str, str] = ("query", "key"),
        file: str | Path | None = None,
    ) -> Any:
        """The weights of one head, of several, or of all, as a `matplotlib.figure.Figure`; `file` writes it, too.

            seen["layers.3"].plot(5, tokens=words, file="head.pdf")          # or .svg, .png
            seen[3].plot(5, contributions=seen[3].contributions(), tokens=words)

        - `contributions`: these in place of the weights, in signed colours.
        - `entry`: of the batch.
        - `tokens`: the words along both sides, or a pair of lists, those of queries and those of keys. Of more than 64
          the positions are written. A matrix of more than 512 tokens is pooled to 512 cells, in O(T) memory.
        - `cmap`: a colour map of matplotlib. `labels`: the names of both axes.
        """
        from .figures import check_figure_path, matrix_figure, save_figure

        if file is not None:
            check_figure_path(file)
        whole = self.weights if contributions is None else contributions
        lead = len(whole.shape) - 2
        if tuple(whole.shape) != self.shape:
            raise ValueError(f"contributions of shape {tuple(whole.shape)} are not those of {self.name}, {self.shape}")
        numbers = range(self.heads) if heads is None else [heads] if isinstance(heads, int) else heads
        at = {f"head {n}": (*(0,) * (lead - 2), entry, n)[-lead:] if lead else () for n in numbers}
        figure = matrix_figure({name: whole[index] for name, index in at.items()}, tokens, cmap, labels)
        if file is not None:
            save_figure(figure, file)
        return figure

    def outputs(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, "*batch rows d_v"]]:
        """The queries whose outputs were kept, and these outputs, as the model computed them."""
        return self.generation.outputs()

    @torch.no_grad()
    def fidelity(self) -> MeasuredFidelity:
        """|W·v − out| / |out| of the worst head, on the outputs of up to 64 queries of each step.

        Measured once, and again if something it depends on was changed in place since. Tensors made in
        `torch.inference_mode` have no version counter: with those it is measured every time.
        """
        if self._fidelity is None or self._measured_versions != self._versions():
            self.forget()
            try:
                self._fidelity = _measure_fidelity(self)
            except ChangedInPlaceError:
                self._fidelity = MeasuredFidelity(None, 0.0, "changed in place since", lost=True)
            except Exception as error:  # the table of calls shows it, and the other calls
                self._fidelity = MeasuredFidelity(None, 0.0, f"{type(error).__name__}: {error}", lost=True)
            self._measured_versions = self._versions()
        return self._fidelity

    def _versions(self) -> list[object]:
        # Empty for a deferred record that could not be computed.
        return [] if self._generation is None else self._generation.version_counters()

    def shorten_masks(self, known: dict[int, tuple[Tensor, Mask | None]]) -> None:
        """At the end of a watch: keep masks in O(T) where that is the same. `known` is shared by all calls."""
        if self._generation is not None:
            self._generation.shorten_masks(known)

    def append_step(self, record: Record, place: Callable[[Tensor], Tensor], trusted: bool = False) -> bool:
        """Append the record if it is the next step of the same generation; otherwise return False."""
        if self._generation is None or not self._generation.append(record, place, trusted):
            return False
        self._weights = self._fidelity = None
        return True

    def extend(self, steps: list[tuple[int, Record]], k: Tensor, v: Tensor) -> None:
        """Append steps that are known to continue this call, each with its first key; `k`, `v` are those of all."""
        self.generation.extend(steps, k, v)


def _measure_fidelity(call: Call) -> MeasuredFidelity:
    """The error of the worst head, on the outputs kept."""
    generation = call.generation
    rows, out = generation.outputs()
    first = generation.first
    budget = BUDGET[_coarsest(out.dtype, first.energies.a.dtype)]
    if first.measured is not None:
        stored = first.steps is not None  # in a trace, whose steps are counted, it is what the file says
        remark = "recorded" if stored else ""
        return MeasuredFidelity(first.measured, first.budget or budget, remark, recorded=stored)
    call.check_unchanged()
    if first.dropout:
        return MeasuredFidelity(None, budget, f"dropout {first.dropout:g}")
    if not out.numel():
        return MeasuredFidelity(None, budget, "output not seen")
    if first.steps is not None and call.weights.kernel_state is not None:
        # The row state of a trace is a number in a file: the weights must follow from queries and keys alone as well.
        energies, _ = generation.joined()
        computed = _measure_product(call, Weights(energies, first.normalize), rows, out)
        if not computed.faithful:
            return computed
    return _measure_product(call, call.weights, rows, out)


def _measure_product(
    call: Call, weights: Weights, rows: Int[Tensor, " rows"], out: Float[Tensor, "*batch rows d_v"]
) -> MeasuredFidelity:
    """|W·v − out| / |out| of the worst head, on these rows."""
    generation = call.generation
    v, first = generation.v, generation.first
    dtype = _coarsest(out.dtype, first.energies.a.dtype)  # weights of float32 may be multiplied with values in float64
    budget = BUDGET[dtype]
    part, after = weights.rows(rows.tolist()), first.after
    mean = v.mean(dim=-2, dtype=torch.float32)  # [*batch, D_v]: the output of uniform weights
    groups = first.energies.groups
    if groups > 1 and mean.shape[-2] != part.shape[-3]:
        mean = mean.repeat_interleave(groups, dim=-2)
    if after is None:
        stats = part.stats(fidelity=(v, out), on=range(call.shape[-1]))
        assert stats.fidelity is not None
        assert stats.on is not None
        uniform = stats.on[..., None].float() * mean[..., None, :]
        error, whole = stats.fidelity, out.float().norm(dim=(-2, -1))
        moved = (out.float() - uniform).norm(dim=(-2, -1))
    else:
        w, at = part.tile(slice(None), slice(None)).to(v.dtype), rows.to(out.device)
        error = (after(w @ v, at) - out).norm() / out.norm()
        # What attention contributes, behind a residual and all that follows it.
        uniform = after((w.sum(dim=-1, keepdim=True) * mean[..., None, :].to(v.dtype)), at)
        whole, moved = out.float().norm(), (out.float() - uniform.float()).norm()
    allowed = (budget * moved / whole.clamp_min(1e-30)).clamp_max(budget) + ROUNDING[dtype]
    worst = int((error / allowed).nan_to_num(torch.inf).argmax())
    return MeasuredFidelity(float(error.flatten()[worst]), float(allowed.flatten()[worst]))


def _coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The floating-point type of the largest rounding error."""
    return max((x for x in dtypes if x in BUDGET), key=BUDGET.__getitem__)


def layer_of(name: str) -> int | None:
    """The first number in a name; a trace of an earlier version has no other."""
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(match[1]) if match else None
