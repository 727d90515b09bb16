"""Call: the attention of one module, from the tap that makes it to the page that draws it."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..attention.contributions import Contributions
from ..attention.energies import DotForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import dense
from ..attention.modifiers import Bias, Modifier, SoftCap
from ..attention.normalizers import Softmax
from ..attention.parts import ChangedInPlaceError, Fingerprint, fingerprint, versions_of
from ..attention.weights import Weights
from .fidelity import MeasuredFidelity, measure_fidelity
from .generation_passes import Rounded, joined_mask, joined_modifiers, with_short_masks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.masks import Mask
    from ..attention.normalizers import Normalizer
    from ..attention.parts import Version
    from .figures import Tokens
    from .trace import ModuleDepths

    After = Callable[[Tensor, Tensor], Tensor]
    """From W·v of some rows, [*batch, rows, D_v], and the indices of these rows, to the output of the model."""
    Source = tuple[StorageWeakRef, int, tuple[int, ...], object]

ROWS = 64
"""The most rows of an output that are kept of one step, evenly spaced: fidelity is measured on these."""
CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|multihead_attn|memory|source")

SOFTMAX = Softmax()


class Call:
    """The attention of one module: `call.weights` has the weights, `call.head(5)` those of one head.

    Rows are queries: those of the prompt first, then one for each token generated.

    While the model runs a tap makes one: references to tensors, how often each was changed, and some rows of the
    output. What they mean is decided when somebody asks: `energies` may be a function of the call, which also sets what
    else it finds out (`normalize`, `cross`, `v`, `after`, …). A generation is one call: `later` are those of its later
    forward passes, whose keys contain those before, so that the newest keys and values are all that is held.
    """

    after: After | None = None
    """What the model computes from W·v to get `out`, row by row; None if `out` is W·v."""
    measured: float | None = None
    """The fidelity error, if it was measured before and cannot be measured now."""
    budget: float | None = None
    """The error that rounding explains, as measured with it."""
    untold = ""
    """Why the comparison could not tell, as measured with it."""
    depths: ModuleDepths | None = None
    first = 0
    """The first key that this forward pass sees, among those of all."""
    writes: list[int] | None = None
    """How often keys and values were written to between two steps, if they lie in a buffer that is filled."""
    source: tuple[Source, ...] | None = None
    _changed = False
    _weights: Weights | None = None
    _fidelity: tuple[MeasuredFidelity, bool] | None = None
    _proved_with: list[Fingerprint | None] | None = None
    _gradient: Tensor | None = None
    _no_gradient = "gradients were not kept; record with watch(model, gradients=True)"
    _own: EnergyMatrix | None = None

    def __init__(
        self,
        out: Float[Tensor, "*batch q d_v"] | None,
        *,
        energies: EnergyMatrix | Callable[[Call], EnergyMatrix],
        q: Float[Tensor, "*batch q d"] | None = None,
        k: Float[Tensor, "*batch_k k d"] | None = None,
        v: Float[Tensor, "*batch_k k d_v"] | None = None,
        mask: Tensor | None = None,
        state: Float[Tensor, "*batch q"] | None = None,
        learned: Sequence[Tensor] = (),
        settings: tuple[Any, ...] | None = None,
        normalize: Normalizer = SOFTMAX,
        origin: str = "",
        name: str = "",
        layer: int | None = None,
        ablated: str = "",
        cross: bool | None = None,
        dropout: float = 0.0,
        rows: Int[Tensor, " rows"] | None = None,
        matrix: str = "",
        steps: list[int] | None = None,
    ) -> None:
        """`learned` are further tensors that the weights depend on, or all of them where q, k, v are not known yet.

        `settings` are equal for calls that may be of one generation; None if only their energies can tell. `rows` are
        the queries that `out` belongs to, by default all, of which a copy of some is kept.
        """
        if not callable(energies):
            q, k = energies.a, energies.b
        # Every line here runs once for each call of a watched model, and is written for speed.
        if (
            (out is not None and out.requires_grad)
            or (q is not None and q.requires_grad)
            or (k is not None and k.requires_grad)
            or (v is not None and v.requires_grad)
        ):
            q, k, v, out, state = (None if x is None else x.detach() for x in (q, k, v, out, state))
        self.address = 0 if out is None or out.is_nested else out.data_ptr()
        if rows is None and out is not None:
            rows, out = some_rows(out)
        self.q, self.mask, self.state = q, mask if mask is None or not mask.requires_grad else mask.detach(), state
        self.rows, self.out = rows, torch.empty(0) if out is None else out
        self.name, self._layer, self.origin, self.normalize = name, layer, origin, normalize
        self.ablated = ablated
        """What an `ablate` block around the watch changed in this call: "heads 0, 3"; empty if nothing."""
        self.cross = cross
        """Whether keys come from another sequence than queries, if that is known."""
        self.dropout = dropout
        self.matrix = matrix
        """Why the weights are held as a whole matrix; empty if queries and keys are held instead."""
        self.settings, self._steps, self.learned = settings, steps, learned
        self.later: list[Call] = []
        self.keys = self.total = 0 if k is None else k.size(-2)
        """The keys of this forward pass, and those of all."""
        self.k_parts: list[Tensor] = [] if k is None else [k]  # the rows of all forward passes, in parts
        self.v_parts: list[Tensor] = [] if v is None else [v]
        self.key_versions = self.versions_of_keys()
        self._make = energies if callable(energies) else None
        if callable(energies):
            self._versions = versions_of(self._fixed())
        else:
            self.take(energies)

    # What the taps and the trace do with it

    def _fixed(self) -> list[Tensor]:
        """What the weights depend on, without keys and values, which a cache may fill further in place."""
        if self._own is None:
            return [x for x in (self.q, self.state, self.mask, *self.learned) if x is not None]
        energies, normalize = self._own, self.normalize
        references = [x for x in energies.references() if x is not energies.b]
        state = [] if self.state is None else [self.state]
        return [*references, *energies.learned(), *normalize.tensors(), *normalize.function_tensors(), *state]

    def versions_of_keys(self) -> list[Version]:
        return versions_of((*self.k_parts[-1:], *self.v_parts[-1:]))

    def complete(self) -> Call:
        """Make the energies of all forward passes, where only references were kept."""
        if not self.later:
            self._complete()
        elif any(step.is_pending for step in self.passes):
            k, v = self.k, self.v
            for step in self.passes:
                step.k_parts, step.v_parts = ([x.narrow(-2, step.first, step.keys)] for x in (k, v))
                step._complete()
                step.k_parts = step.v_parts = []
            self.k_parts, self.v_parts = [k], [v]
        return self

    def _complete(self) -> None:
        if self._make is None:
            return
        changed = self._versions != versions_of(self._fixed())
        if changed and self.q is None:
            raise ChangedInPlaceError(
                f"the inputs or parameters of {self.origin} were changed in place since it was called, and its queries "
                "and keys are computed from them; ask before changing them (before optimizer.step())"
            )
        self.take(self._make(self))
        self._changed = self._changed or changed

    def take(self, energies: EnergyMatrix) -> None:
        """Keep the energies of this forward pass; its keys are kept with those of all."""
        if any(x.requires_grad for x in (energies.a, energies.b, *energies.learned())):
            energies = replace(energies.map_learned(torch.Tensor.detach), a=energies.a.detach(), b=energies.b.detach())
        if any(x.requires_grad for x in self.normalize.tensors()):
            self.normalize = self.normalize.map_tensors(torch.Tensor.detach)
        self.k_parts = [energies.b]
        if not self.keys:
            self.keys = self.total = energies.keys
            self.key_versions = self.versions_of_keys()
        self.q, self.mask, self.learned, self._make = energies.a, None, (), None
        self._own = replace(energies, b=energies.b.new_empty(0, 0))
        self._versions = versions_of(self._fixed())

    def place(self, store: Callable[[Tensor], Tensor], keys: bool = True) -> None:
        """Keep the tensors as `store` returns them."""
        self.source = self.sources()  # the originals may be freed
        self._own, self.normalize = self.own.map_tensors(store, keys=False), self.normalize.map_tensors(store)
        self.q, self.out = self._own.a, store(self.out)
        self.state = None if self.state is None else store(self.state)
        self._versions = versions_of(self._fixed())
        if keys:
            self.hold(store(self.k), store(self.v))

    def sources(self) -> tuple[Source, ...]:
        """Where keys and values lie and how often they were changed: whether a buffer has been filled further.

        An address is not enough if only a copy is kept: another tensor may get it once the first is freed.
        """
        if self.source is not None:
            return self.source
        return tuple(
            (StorageWeakRef(x.untyped_storage()), int(x.storage_offset()), tuple(x.shape), n)
            for x, n in zip((self.k_parts[-1], self.v_parts[-1]), self.key_versions, strict=True)
        )

    @property
    def is_stored(self) -> bool:
        """Whether it was read from a trace, whose steps are counted: it is what the file says."""
        return self._steps is not None

    @property
    def is_pending(self) -> bool:
        """Whether its energies are not made yet."""
        return self._make is not None

    def hold(self, k: Tensor, v: Tensor, versions: list[Version] | None = None) -> None:
        """Hold these keys and values; `versions` are those at the call that they are of, by default what they are."""
        self.k_parts, self.v_parts = [k], [v]
        self.key_versions = self.versions_of_keys() if versions is None else versions

    def prove_now(self, values: bool = True) -> None:
        """Measure the fidelity, after which the values, and what else it is measured with, need not be kept."""
        fidelity = self.fidelity()
        self.measured, self.budget, self.untold, self.after = fidelity.error, fidelity.budget, fidelity.untold, None
        self.renew()
        if not values:
            self.out = self.out.new_empty(*self.out.shape[:-1], 0)
            self.hold(self.k, self.v.new_empty(*self.v.shape[:-1], 0))

    def shorten_masks(self, known: dict[int, tuple[Tensor, Mask | None]]) -> None:
        """At the end of a watch: keep masks in O(T) where that is the same. `known` is shared by all calls."""
        own = self._own
        if own is None or self.later:
            return
        tables = [x.added for x in own.modifiers] + [None if own.mask is None else own.mask.seen]
        if any(x is not None for x in tables) and not self.changed():
            self._own = with_short_masks(own, known)
            self._versions = versions_of(self._fixed())

    # What it says

    @property
    def passes(self) -> list[Call]:
        """This forward pass, and the later ones of a generation."""
        return [self, *self.later]

    @property
    def own(self) -> EnergyMatrix:
        """The energies of this forward pass alone, without its keys."""
        if self._own is None:
            self.complete()
            assert self._own is not None
        return self._own

    @property
    def energies(self) -> EnergyMatrix:
        """The energies of all forward passes as one matrix."""
        own = self.own
        if not self.later:
            return replace(own, b=self.k)
        self.complete()
        return replace(
            own,
            a=torch.cat([step.own.a for step in self.passes], dim=-2),
            b=self.k,
            mask=joined_mask(self.passes, self.total),
            modifiers=joined_modifiers(self.passes, self.total),
        )

    @property
    def queries(self) -> int:
        """Those of this forward pass."""
        return self.own.queries if self.q is None else self.q.shape[-2]

    @property
    def k(self) -> Float[Tensor, "*batch k d"]:
        """The keys of all forward passes."""
        self._join_parts()
        return self.k_parts[0]

    @property
    def v(self) -> Float[Tensor, "*batch k d_v"]:
        """The values, with as many heads as the keys have."""
        self._join_parts()
        return self.v_parts[0]

    @v.setter
    def v(self, v: Tensor) -> None:
        self.v_parts = [v]

    def _join_parts(self) -> None:
        if not self.v_parts:
            self.complete()
        if len(self.k_parts) > 1:
            self._changed = self._changed or self.key_versions != self.versions_of_keys()
            self.hold(torch.cat(self.k_parts, dim=-2), torch.cat(self.v_parts, dim=-2))

    def outputs(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, "*batch rows d_v"]]:
        """The queries whose outputs were kept, and these outputs, as the model computed them."""
        self.complete()
        rows, start = [], 0
        for step in self.passes:
            rows.append((torch.arange(step.queries) if step.rows is None else step.rows) + start)
            start += step.queries
        return torch.cat(rows), torch.cat([step.out for step in self.passes], dim=-2)

    @property
    def kind(self) -> str:
        """ "self" if queries and keys come from the same sequence, otherwise "cross"."""
        own = self.own
        if self.cross is not None:
            return "cross" if self.cross else "self"
        causal = own.mask is not None and own.mask.causal_offset is not None
        lengths_differ = own.queries != self.keys and not causal
        return "cross" if CROSS.search(self.name.lower()) or lengths_differ else "self"

    @property
    def steps(self) -> list[int]:
        """The number of queries of each forward pass: the prompt's, then usually one for each token."""
        return self._steps or [step.queries for step in self.passes]

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], usually [B, heads, T_q, T_k]."""
        return (*self.own.batch, sum(step.queries for step in self.passes), self.total)

    @property
    def heads(self) -> int:
        return self.shape[-3] if len(self.shape) > 2 else 1

    @property
    def head_numbers(self) -> range:
        """The numbers of its heads in the whole model: under tensor parallelism a process has some of them."""
        rank, _ = (0, 1) if self.depths is None else self.depths.share(self.name)
        return range(rank * self.heads, (rank + 1) * self.heads)

    @property
    def all_heads(self) -> int:
        """How many heads all processes have together."""
        return self.heads * (1 if self.depths is None else self.depths.share(self.name).ranks)

    @property
    def layer(self) -> int | None:
        """The depth among the attention modules of its stack, from 0; None if it is not one of a stack."""
        depth = self._layer if self.depths is None else self.depths.of(self.name)
        return layer_of(self.name) if depth is None else depth

    def __repr__(self) -> str:
        return f"Call({self.name}, {self.kind}, {list(self.shape)}, {self.origin})"

    @property
    def weights(self) -> Weights:
        """The weights, [*batch, T_q, T_k]. They are those before dropout."""
        if self._weights is None:
            energies = self.energies
            self.check_unchanged()
            states = [step.state for step in self.passes if step.state is not None]
            state = torch.cat(states, dim=-1) if len(states) == len(self.passes) else None
            self._weights = Weights(energies, self.normalize, state)
        return self._weights

    def changed(self) -> bool:
        """Whether something the weights depend on was changed in place."""
        if self.key_versions != self.versions_of_keys():
            return True
        if self._proved_with is not None and self._proved_with != self._fingerprints():
            return True
        return any(x._changed or x._versions != versions_of(x._fixed()) for x in self.passes)

    def _fingerprints(self) -> list[Fingerprint | None]:
        """Of what was read to prove it: numpy and dlpack change tensors without a count of it.

        Copies are the watch's own, and a matrix takes O(T²) to read: these have none.
        """
        if self.source is not None or self.matrix or self.is_stored:
            return []
        read = (*self.k_parts[-1:], *self.v_parts[-1:], *(x.q for x in self.passes if x.q is not None))
        return [None if x.is_inference() else fingerprint(x) for x in read]

    def check_unchanged(self) -> None:
        if self.changed():
            raise ChangedInPlaceError(
                f"{self.name} attended, and what it attended with (queries, keys, values, masks, biases or learned "
                "parts) was changed in place since, so the weights it used can no longer be computed; "
                'watch(model, keep="cpu") keeps copies'
            )

    def tensors(self) -> list[Tensor]:
        """Everything that is held: queries, keys, values, masks, biases, learned parts, row states, some outputs."""
        held = [x for step in self.passes for x in (*step._fixed(), step.out) if not isinstance(x, torch.nn.Parameter)]
        return [x for x in (*held, *self.k_parts, *self.v_parts) if x is not None]

    def forget(self) -> None:
        """Free what `weights` has computed (the row state, shared heads repeated); it is computed again on use."""
        self._weights = None

    def renew(self) -> None:
        """Forget what was computed and measured."""
        self._weights = self._fidelity = self._proved_with = None

    def head(self, n: int, entry: int = 0) -> Weights:
        """One head of one entry of the batch."""
        return self.weights[self.at(n, entry)]

    def at(self, head: int, entry: int = 0) -> tuple[int, ...]:
        """Where a head is among the leading dimensions: of more than two, the first of those before the batch."""
        lead = len(self.shape) - 2
        return (*(0,) * (lead - 2), entry, head)[-lead:] if lead else ()

    @property
    def gradient(self) -> Float[Tensor, "*batch q d_v"]:
        """∂L/∂o of the last backward pass, for calls recorded by `watch(model, gradients=True)`."""
        steps = [step._gradient for step in self.passes if step._gradient is not None]
        if not steps:
            raise ValueError(f"{self.name} has no gradient: {self._no_gradient}")
        if len(steps) < len(self.passes):
            raise ValueError(f"{self.name}: a backward pass reached {len(steps)} of its {len(self.passes)} steps")
        return steps[0] if len(steps) == 1 else torch.cat(steps, dim=-2)

    def follow_gradient(
        self, output: Tensor | None, arrange: Callable[[Tensor], Tensor] | None, store: Callable[[Tensor], Tensor]
    ) -> None:
        """Keep the gradient of this output, the tensor that the model goes on with, when a backward pass computes it.

        `arrange` makes the gradient of W·v, [*batch, T_q, D_v], of it. The hook keeps no graph alive, and needs no
        other backward pass than the one the caller runs.
        """
        if output is None:
            self._no_gradient = "this way of computing attention does not expose its output with a graph"
            return
        if torch.is_grad_enabled() and not output.requires_grad and not output.is_inference():
            _start_graph(output)  # no parameter needs a gradient
        if not output.requires_grad:
            self._no_gradient = "the model ran without a graph, under torch.no_grad or torch.inference_mode"
            return
        self._no_gradient = "no backward pass reached it; call loss.backward()"

        def keep(g: Tensor) -> None:
            try:
                with torch.no_grad():
                    self._gradient = store(g.detach() if arrange is None else arrange(g.detach()))
            except Exception as error:  # an error of ours must not stop the backward pass
                self._no_gradient = f"it could not be kept: {error}"

        output.register_hook(keep)

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
        from .figures import call_figure

        return call_figure(self, heads, contributions, entry, tokens, cmap, labels, file)

    @torch.no_grad()
    def fidelity(self) -> MeasuredFidelity:
        """|W·v − out| / |out| of the worst head, on the outputs of up to 64 queries of each step.

        Measured once, and again if something it depends on was changed in place since.
        """
        changed = self.changed()
        if self._fidelity is None or self._fidelity[1] != changed:
            self.forget()
            try:
                measured = measure_fidelity(self)
            except ChangedInPlaceError:
                measured = MeasuredFidelity(None, 0.0, "changed in place since", lost=True)
            except Exception as error:  # the table of calls shows it, and the other calls
                measured = MeasuredFidelity(None, 0.0, f"{type(error).__name__}: {error}", lost=True)
            self._fidelity = measured, self.changed()
            if self._proved_with is None and measured.error is not None:
                self._proved_with = self._fingerprints()
        return self._fidelity[0]


def some_rows(
    out: Float[Tensor, "*batch q d_v"],
) -> tuple[Int[Tensor, " rows"] | None, Float[Tensor, "*batch rows d_v"]]:
    """The rows of an output that are kept, and a copy of them: the model may change its output in place.

    All rows of a nested tensor, which cannot be indexed by rows.
    """
    if out.is_nested:
        return None, out
    length = out.shape[-2]
    # An odd step, so that what is wrong in every second, fourth or eighth row does not fall between the rows kept.
    step = -(-length // ROWS) | 1
    rows = (_every if type(out) is torch.Tensor else _every.__wrapped__)(length, step)  # a fake tensor's are fake
    # By a view: `index_select` takes more time to launch than the rest of a call.
    return rows, out.clone() if step == 1 else out[..., (length - 1) % step :: step, :].clone()


@functools.lru_cache(maxsize=256)
def _every(length: int, step: int) -> Int[Tensor, " rows"]:
    """Every step-th of `length` rows, the last included, on the CPU."""
    with torch.inference_mode(False):
        return torch.arange((length - 1) % step, length, step, dtype=torch.int64, device="cpu")


def dot_energies(
    q: Float[Tensor, "*batch q d"],
    k: Float[Tensor, "*batch_k k d"],
    scale: float | None = None,
    *,
    masks: tuple[Tensor | Mask | None, ...] = (),
    softcap: float | None = None,
    rounded: bool = False,
) -> EnergyMatrix:
    """softcap(q·k·scale), then each mask: a `Mask` or booleans that close keys, or numbers that are added.

    With `rounded`, each step is rounded to the type of q, as eager attention does.
    """
    q, k = q.detach(), k.detach()
    groups = 1
    if q.dim() >= 4 and k.dim() >= 4 and k.shape[-3] not in (1, q.shape[-3]):
        groups = q.shape[-3] // k.shape[-3]
    batch, lead = tuple(q.shape[:-2]), tuple(k.shape[:-2]) if groups == 1 else (*k.shape[:-3], q.shape[-3])
    if batch != lead:
        batch = tuple(torch.broadcast_shapes(batch, lead))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    modifiers: list[Modifier] = [] if softcap is None else [SoftCap(softcap)]
    kind = str(q.dtype).removeprefix("torch.")
    if rounded:
        modifiers, scale = [Rounded(kind, scale, softcap)], 1.0
    rule: Mask | None = None
    for mask in masks:
        if mask is None:
            continue
        if isinstance(mask, torch.Tensor) and mask.dtype != torch.bool:
            # The same object if possible: a mask that all layers share is kept once.
            modifiers.append(Bias(mask.detach() if mask.requires_grad else mask))
            modifiers += [Rounded(kind)] if rounded else []
            continue
        closed = dense(mask) if isinstance(mask, torch.Tensor) else mask
        rule = closed if rule is None else rule & closed
    return EnergyMatrix(q, k, DotForm(scale), batch, tuple(modifiers), rule, groups)


def _start_graph(x: Tensor) -> None:
    """Let the graph for gradients begin at x.

    As a leaf, the model could not change it in place afterwards. So it becomes the result of an addition to none of
    its numbers. A view stays a leaf: PyTorch loses the hooks of a view whose base is changed in place.
    """
    if x._is_view():
        x.requires_grad_()
    else:
        x[:0].add_(x.new_zeros(()).requires_grad_())


def layer_of(name: str) -> int | None:
    """The first number in a name; a trace of an earlier version has no other."""
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(match[1]) if match else None
