"""Composition: how much each earlier head, MLP and the embedding adds to an energy, through the query or the key.

The energy of query i and key j is e_ij = s q_i · k_j, with q_i = R_i (W_Q norm(x_i) + b) and k_j likewise (R: rotary
positions, if there are any). With the key held fixed and the norm at its real scale, e_ij is linear in the stream x_i:

    e_ij = u · x_0 + Σ_l Σ_h g_lh · o_lh + Σ_l u · bias_l + Σ_l u · m_l + constant        g_lh = W_O,lhᵀ u

u is s W_Qᵀ R_iᵀ k_j through the norm. Through the key it is the same with the two exchanged. This is Q- and
K-composition (Elhage et al. 2021) for one pair of tokens, exact instead of a product of norms of matrices; the sources
of each head (`sources`) tell the tokens whose values it moved: V- and OV-composition.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..attention.contributions import Contributions
from .attribution import StreamAttribution, record_stream, stream_parts, through_norm
from .call import BUDGET
from .interventions import ModelIntervention, applied
from .terminal import ResultTable
from .text_models import first_tensor, run_model
from .watch import named_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jaxtyping import Float

    from .attribution import ResidualStream
    from .call import Call

Side = Literal["query", "key"]


@dataclass(slots=True, eq=False)
class EnergyAttribution(StreamAttribution):
    """The parts of one energy of one head, for each entry of the batch, from the layers below it."""

    energy: Float[Tensor, " b"]
    """s q_i · k_j as the model computed q and k, before masks, biases and caps."""
    error: Float[Tensor, " b"]
    """|total − energy| over the sum of the sizes of all parts."""


def energy_attribution(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    *,
    layer: int,
    head: int,
    query: int,
    key: int,
    through: Side = "query",
    output: nn.Module | None = None,
) -> EnergyAttribution:
    """What each part of the stream adds to the energy of a query and a key of one head, from three runs of the model.

        energy_attribution(model, {"input_ids": ids}, layer=17, head=3, query=-1, key=4, through="key").strongest(5)

    `output` names the output layer of a model that has no `get_output_embeddings()`. Works for attention by
    scaled_dot_product_attention and Hugging Face's interface (sdpa, eager), in models whose stream `residual_stream`
    takes. Queries or keys that are normalized after their projection (Qwen 3, Gemma 3) are refused: no sum gives them.
    The parts are as precise as the model computes: `error` is what they miss the energy by. It is at most 1e-4 in
    float32 and float64 (norms often compute in float32), 1e-2 in float16 and 5e-2 in bfloat16, else a ValueError.
    """
    if through not in ("query", "key"):
        raise ValueError(f'through is {through!r}; expected "query" or "key"')
    stream = record_stream(model, inputs, head=output)
    if not 0 <= layer < len(stream.layers):
        raise ValueError(f"there is no layer {layer}; there are {len(stream.layers)}, counted from 0")
    call = stream.layers[layer].call
    places = []
    for name, place, length in (("query", query, call.shape[-2]), ("key", key, call.shape[-1])):
        if not -length <= place < length:
            raise ValueError(f"{name} is one of {length} tokens, got {place}")
        places.append(place % length)
    if not 0 <= head < call.heads:
        raise ValueError(f"{call.name} has {call.heads} heads, counted from 0; got {head}")
    own = places[0] if through == "query" else places[1]
    energy_of = _energy(stream, layer, head, places, through)
    norms = _NormOutputs(model, stream, layer)
    energy = energy_of(None)
    with torch.enable_grad():
        outputs, vectors = norms.run(inputs, zero=False)
        gradients = torch.autograd.grad(energy_of(vectors).sum(), [leaf for _, leaf in outputs], allow_unused=True)
    with torch.no_grad():
        _, at_zero = norms.run(inputs, zero=True)
    constant = energy_of(at_zero).double()
    count = len(energy)
    at = torch.arange(count, device=stream.last.device), torch.full((count,), own, device=stream.last.device)
    before = stream.layers[layer].before
    u, linear = torch.zeros(count, before.shape[-1], dtype=torch.float64, device=before.device), constant.clone()
    for (norm, leaf), gradient in zip(outputs, gradients, strict=True):
        if gradient is None:
            continue
        direction = gradient[at].double()
        linear += (direction * leaf.detach()[at].double()).sum(-1)
        part, offset = through_norm(norm, before[at], leaf.detach()[at], direction)
        u, constant = u + part, constant + offset
    energies = call.energies
    dtype = _coarsest(before.dtype, energies.a.dtype, energies.b.dtype, *(leaf.dtype for _, leaf in outputs))
    rounding = "" if dtype == torch.float32 else f". In {dtype} it may be rounding alone: try again with model.float()"
    if not bool(((linear - energy).abs() <= BUDGET[dtype] * (linear.abs() + energy.abs() + constant.abs())).all()):
        raise ValueError(
            f"{call.name}: the {through} is not linear in the normed stream (energy {energy.tolist()}, by its gradient "
            f"{linear.tolist()}), so the energy is no sum of parts; a norm of queries or keys is of this kind{rounding}"
        )
    parts = stream_parts(stream, layer, at, u, constant)
    difference = (parts.total - energy).abs()
    error = torch.where(difference == 0, 0, difference / parts.size)
    if not bool((error <= BUDGET[dtype]).all()):
        raise ValueError(
            f"{call.name}: the parts add up to {parts.total.tolist()}, the energy is {energy.tolist()}; relative to "
            f"the sum of sizes the error is {float(error.max()):.1e}, more than {BUDGET[dtype]:.0e}{rounding}"
        )
    own_fields = {field.name: getattr(parts, field.name) for field in fields(parts)}
    return EnergyAttribution(**own_fields, energy=energy, error=error)


def _coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The type of the largest rounding error, float32 at least: many norms compute in it whatever the model's type."""
    return max((x for x in (torch.float32, *dtypes) if x in BUDGET), key=BUDGET.__getitem__)


def _energy(
    stream: ResidualStream, layer: int, head: int, places: list[int], through: Side
) -> Callable[[tuple[Tensor, Tensor] | None], Tensor]:
    """The energy, [B], from other queries and keys on one side; None: as the model computed them."""
    energies = stream.layers[layer].call.energies
    i, j = places
    scale = getattr(energies.form, "scale", None)
    if scale is None:
        raise ValueError(f"{stream.layers[layer].call.name}: its energy is no dot product of queries and keys")

    def select(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        shared = q.shape[1] // k.shape[1]  # query heads that share one head of keys
        return q[:, head, i], k[:, head // shared, j]

    real = select(energies.a, energies.b)

    def energy(vectors: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k = real if vectors is None else select(*vectors)
        q, k = (q, real[1]) if through == "query" else (real[0], k)
        return float(scale) * (q.double() * k.double()).sum(-1)

    return energy


class _NormOutputs:
    """Runs of the model in which the norms that read a layer's input give a leaf of the graph, or zeros."""

    def __init__(self, model: nn.Module, stream: ResidualStream, layer: int) -> None:
        self.model, self.layer = model, stream.layers[layer]
        self._norms = [
            part
            for name, part in named_parts(model)
            if name.startswith(f"{self.layer.name}.") and not part._modules and "norm" in type(part).__name__.lower()
        ]

    def run(self, inputs: Any, *, zero: bool) -> tuple[list[tuple[nn.Module, Tensor]], tuple[Tensor, Tensor]]:
        """The norms and their outputs, as leaves, and the queries and keys of the layer's attention."""
        recorder = _QueryKeyRecorder(self.model, self.layer.call.name)
        outputs: list[tuple[nn.Module, Tensor]] = []

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            x = first_tensor(args)
            if x is None or x.shape != self.layer.before.shape or not torch.equal(x, self.layer.before):
                return None
            leaf = torch.zeros_like(output) if zero else output.detach().clone()
            outputs.append((module, leaf.requires_grad_(not zero)))
            return leaf

        with ExitStack() as hooks, applied(recorder):
            for norm in self._norms:
                hooks.enter_context(norm.register_forward_hook(hook))
            run_model(self.model, inputs)
        if recorder.vectors is None or not outputs:
            missing = "no norm reads its input" if not outputs else "its queries and keys were not seen"
            raise ValueError(f"{self.layer.name}: {missing}, so what adds to its energies is not known")
        return outputs, recorder.vectors


class _QueryKeyRecorder(ModelIntervention):
    """Records the queries and keys of one attention module, with their graph; changes nothing."""

    tokens: Sequence[int] = (0,)
    """The taps ask for a mask, with queries and keys, only of interventions that name tokens."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__(model)
        self.name = name
        self.vectors: tuple[Tensor, Tensor] | None = None

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        if name == self.name:
            self.vectors = q, k
        return mask, is_causal


def contribution_table(
    contributions: Contributions,
    count: int = 5,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> ResultTable:
    """The `count` contributions of largest size of every query: one row each, with its place in the batch.

    `queries` and `keys` are tokens. The columns of leading dimensions are called entry and head.
    """
    keys_there = contributions.shape[-1]
    values, indices = contributions.top(min(count, keys_there))
    lead, rows = contributions.weights.leading_shape, contributions.weights.queries
    names = ["entry", "head"][-len(lead) :] if 0 < len(lead) <= 2 else [f"dimension {n}" for n in range(len(lead))]
    flat = values.reshape(-1, len(rows), values.shape[-1])
    where = torch.unravel_index(torch.arange(len(flat)), lead) if lead else ()
    every = len(rows) * flat.shape[-1]
    columns: dict[str, Sequence[Any]] = {
        name: at.repeat_interleave(every).tolist() for name, at in zip(names, where, strict=True)
    }
    columns["query"] = [row for row in rows for _ in range(flat.shape[-1])] * len(flat)
    columns["key"] = indices.flatten().tolist()
    columns["contribution"] = values.flatten().tolist()
    for name, at, tokens in (("query token", columns["query"], queries), ("key token", columns["key"], keys)):
        if tokens is not None:
            columns[name] = [tokens[x] for x in at]
    return ResultTable(columns)


@torch.no_grad()
def value_weighted_attention(call: Call, projection: nn.Module) -> Contributions:
    """|w_ij| · ‖v_j W_O‖ of every head, [*batch, heads, T_q, T_k], as lazy as the weights.

        value_weighted_attention(seen[3], model.encoder.layer[3].attention.output.dense)

    `projection` is the linear module after the attention, W_O, which reads all heads side by side. Weights of a softmax
    are not negative; where they can be (`Unnormalized`), the result has their sign.
    """
    heads, groups = call.heads, call.energies.groups
    v = call.v
    if groups > 1 and v.shape[-3] * groups == heads:
        v = v.repeat_interleave(groups, dim=-3)
    width = v.shape[-1]
    weight = next(projection.parameters())
    read = v.new_zeros(1, heads * width, dtype=weight.dtype)
    bias = projection(read)
    norms = []
    for head in range(heads):  # one head's values beside zeros: what this head alone adds
        own = v[..., head, :, :].to(weight.dtype)
        alone = torch.nn.functional.pad(own, (head * width, (heads - 1 - head) * width))
        norms.append((projection(alone) - bias).norm(dim=-1))
    sizes = torch.stack(norms, dim=-2)[..., None]  # [*batch, heads, T_k, 1]
    return Contributions(call.weights, sizes, torch.ones_like(sizes[..., :1, :]))
