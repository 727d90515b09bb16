"""Direct logit attribution: how much each head, MLP and the embedding adds to a logit, and each token through a head.

The residual stream of a forward pass holds what the embedding, each layer's attention and the rest of the layer added:

    x_{l+1} = x_l + a_l + m_l          logits = W_U · norm(x_L)

x_l is the input of layer l, a_l what its attention adds (the heads side by side, times W_O, plus a bias) and m_l what
its MLP adds. The parts are found in the data, not by the names of an architecture: the output projection is the module
whose input is the output of the attention that was recorded, the MLP is the module of the layer whose output is
x_{l+1} − x_l − a_l, and the final norm is the module whose output the output layer reads. A model that adds something
else to the stream (a norm or a factor after the projection) is refused.

The logit of a token is W_U[t] · norm(x_L) + b. At the scale that the final norm really had, norm is linear, so that the
logit is a sum over everything that was added to the residual stream:

    logit = u · x_0 + Σ_l Σ_h g_lh · o_lh + Σ_l u · bias_l + Σ_l u · m_l + constant        g_lh = W_O,lhᵀ u

u is W_U[t] through the norm's gain, divided by its scale (and centred for a LayerNorm). Each head's part is in turn a
sum over source tokens, Σ_j w_ij (g · v_j): `Contributions`. The sum is exact up to the rounding of the model's own
arithmetic (Elhage et al. 2021; Wang et al. 2023).

Composition: how much each earlier head, MLP and the embedding adds to an energy, through the query or the key.

The energy of query i and key j is e_ij = s q_i · k_j, with q_i = R_i (W_Q norm(x_i) + b) and k_j likewise (R: rotary
positions, if there are any). With the key held fixed and the norm at its real scale, e_ij is linear in the stream x_i:

    e_ij = u · x_0 + Σ_l Σ_h g_lh · o_lh + Σ_l u · bias_l + Σ_l u · m_l + constant        g_lh = W_O,lhᵀ u

u is s W_Qᵀ R_iᵀ k_j through the norm. Through the key it is the same with the two exchanged. This is Q- and
K-composition (Elhage et al. 2021) for one pair of tokens, exact instead of a product of norms of matrices; the sources
of each head (`sources`) tell the tokens whose values it moved: V- and OV-composition.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.contributions import Contributions
from .fidelity import BUDGET, coarsest
from .habit import visible_keys
from .interventions import ModelIntervention, applied
from .rollout_and_distances import entry_weights
from .terminal import ResultTable, Tabular
from .text_models import check_evaluation_mode, first_tensor, read_inputs, run_model, token_ids
from .watch import named_parts, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jaxtyping import Float, Int

    from .call import Call
    from .text_models import TextModel
    from .trace import Seen

    Inputs = Tensor | Mapping[str, Any]
    Words = int | str | Sequence[int | str] | Tensor

ROUNDING = 64
"""How many units in the last place of the largest number the parts of a layer may differ from their sum."""


@dataclass(slots=True, eq=False)
class StreamLayer:
    """One layer: its attention call, the projection of the heads, and the stream before and after it."""

    name: str
    call: Call
    projection: nn.Module
    heads: Float[Tensor, "b t heads_d"]
    """The outputs of all heads side by side: the input of the projection."""
    before: Float[Tensor, "b t d"]
    attention: Float[Tensor, "b t d"]
    after: Float[Tensor, "b t d"]
    mlp: str
    """The name of the module that adds the rest."""

    @property
    def head_outputs(self) -> Float[Tensor, "b heads t d"]:
        """The outputs of all heads before the projection."""
        outputs: Tensor = self.heads.unflatten(-1, (self.call.heads, -1)).transpose(1, 2)
        return outputs

    @property
    def rest(self) -> Float[Tensor, "b t d"]:
        """What the MLP adds."""
        return self.after - self.before - self.attention


@dataclass(slots=True, eq=False)
class ResidualStream:
    """A recorded forward pass of a model whose layers add to a residual stream."""

    seen: Seen
    layers: list[StreamLayer]
    norm: nn.Module
    head: nn.Module
    """The output layer, W_U."""
    last: Float[Tensor, "b t d"]
    """x_L, the input of the final norm."""
    normed: Float[Tensor, "b t d"]
    """norm(x_L), the input of the output layer."""
    logits: Float[Tensor, "b t v"]
    """As the output layer gives them."""
    model_logits: Any
    """The attribute `logits` of what the model returned, if it has one: the model may have scaled or capped them."""

    @property
    def streams(self) -> list[Float[Tensor, "b t d"]]:
        """x_0 … x_L: what each layer reads, and what the final norm reads."""
        return [*(layer.before for layer in self.layers), self.last]

    def __repr__(self) -> str:
        count, heads = len(self.layers), self.layers[0].call.heads
        return f"ResidualStream of {self.seen.model}: {count} layers of {heads} heads, {list(self.last.shape)}"


@torch.no_grad()
def record_stream(
    model: nn.Module | TextModel, inputs: Inputs | str, *, head: nn.Module | None = None
) -> ResidualStream:
    """Run the model once and record its residual stream. `head`: its output layer, if it has no accessor for it."""
    model, inputs = read_inputs(model, inputs)
    check_evaluation_mode(model)
    find = getattr(model, "get_output_embeddings", None)
    head = head if head is not None or find is None else find()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} has no get_output_embeddings(), the layer that gives logits; name it with head=…"
        )
    with watch(model) as seen, _Recorder(model, head, seen).installed() as recorder:
        output = run_model(model, inputs)
    dropped = next((call for call in seen if call.dropout), None)
    if dropped is not None:
        raise ValueError(f"{dropped.name} drops out weights at random ({dropped.dropout}); call model.eval() first")
    return recorder.stream(getattr(output, "logits", None))


class _Recorder:
    """Hooks that record the inputs and outputs of layers, projections, norms and the output layer."""

    def __init__(self, model: nn.Module, head: nn.Module, seen: Seen) -> None:
        self.model, self.head, self.seen = model, head, seen
        self.layers: list[StreamLayer] = []
        self._inputs: dict[str, Tensor] = {}  # of the layers that are running
        self._children: dict[str, Tensor] = {}  # outputs of the modules of the layer that is running
        self._projected: list[tuple[Call, str, nn.Module, Tensor, Tensor]] = []
        self._norm: tuple[nn.Module, Tensor, Tensor] | None = None
        self._final: tuple[nn.Module, Tensor, Tensor, Tensor] | None = None

    @contextmanager
    def installed(self) -> Iterator[_Recorder]:
        with ExitStack() as hooks:
            for name, part in named_parts(self.model):
                parent, _, last = name.rpartition(".")
                after: list[Callable[..., None]] = []
                if last.isdecimal():
                    hooks.enter_context(
                        part.register_forward_pre_hook(partial(self._before_layer, name), with_kwargs=True)
                    )
                    after.append(partial(self._after_layer, name))
                elif parent.rpartition(".")[2].isdecimal():
                    after.append(partial(self._after_child, name))
                if part is self.head:
                    after.append(self._after_head)
                elif not part._modules and "norm" in type(part).__name__.lower():
                    after.append(self._after_norm)
                elif not part._modules and getattr(getattr(part, "weight", None), "ndim", 0) == 2:
                    after.append(partial(self._after_linear, name))
                for hook in after:
                    hooks.enter_context(part.register_forward_hook(hook))
            yield self

    def _before_layer(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor((*args, *(kwargs[key] for key in ("hidden_states", "x", "input") if key in kwargs)))
        if x is not None:
            self._inputs[name] = x
            self._children.clear()

    def _after_child(self, name: str, _: nn.Module, args: Any, output: Any) -> None:
        x = first_tensor(output)
        if x is not None:
            self._children[name] = x

    def _after_linear(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """The projection of the heads is what reads the output of the attention that was recorded last."""
        x, call = first_tensor(args), self.seen.calls[-1] if self.seen.calls else None
        if x is None or call is None or any(call is done[0] for done in self._projected):
            return
        rows, out = call.outputs()
        side_by_side = out.transpose(-3, -2).flatten(-2)
        fits = x.dim() == 3 and x.shape[-1] == side_by_side.shape[-1] and x.shape[1] == call.shape[-2]
        if fits and torch.equal(x[:, rows.to(x.device)], side_by_side):
            self._projected.append((call, name, module, x, output))

    def _after_layer(self, name: str, _: nn.Module, args: Any, output: Any) -> None:
        after, before = first_tensor(output), self._inputs.pop(name, None)
        calls = [done for done in self._projected if done[1].startswith(f"{name}.")]
        if after is None or before is None or not calls:
            return
        if len(calls) > 1:
            raise ValueError(f"{name} has {len(calls)} attentions; a layer with one is expected")
        call, _name, projection, heads, attention = calls[0]
        layer = StreamLayer(name, call, projection, heads, before, attention, after, "")
        layer.mlp = self._find_rest(layer)
        self.layers.append(layer)

    def _find_rest(self, layer: StreamLayer) -> str:
        """The module of the layer whose output is what attention did not add."""
        rest, size = layer.rest, max(float(x.abs().max()) for x in (layer.before, layer.after, layer.attention))
        for name, output in self._children.items():
            same = output.numel() == rest.numel() and name.startswith(f"{layer.name}.")
            budget = ROUNDING * size * torch.finfo(rest.dtype).eps
            if same and float((output.reshape(rest.shape) - rest).abs().max()) <= budget:
                return name
        raise ValueError(
            f"{layer.name}: its output is not its input plus what attention and one other module add, so the "
            "contributions of heads to the residual stream are not W_O times their output. Models with norms or "
            "factors after the projection (Gemma 2, Granite) or norms after the sum (BERT) are of this kind"
        )

    def _after_norm(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = first_tensor(args)
        if x is not None:
            self._norm = module, x, output

    def _after_head(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = first_tensor(args)
        if x is None or self._norm is None or self._norm[2].shape[-1] != x.shape[-1]:
            return
        norm, before, after = self._norm
        if x.shape == after.shape and torch.equal(x, after):
            self._final = norm, before, after, output

    def stream(self, model_logits: Any) -> ResidualStream:
        model = type(self.model).__name__
        if not self.layers:
            raise ValueError(
                f"{model}: no layer was found whose attention is followed by a linear output projection; {self.seen!r}"
            )
        if self._final is None:
            raise ValueError(
                f"{model}: its output layer does not read the output of a final norm at every position; give inputs "
                "without logits_to_keep"
            )
        norm, last, normed, logits = self._final
        for layer, following in zip(self.layers, [*(x.before for x in self.layers[1:]), last], strict=True):
            if layer.after.shape != following.shape or not torch.equal(layer.after, following):
                raise ValueError(f"{layer.name}: its output is not the input of what follows it in the stream")
        return ResidualStream(self.seen, self.layers, norm, self.head, last, normed, logits, model_logits)


@dataclass(slots=True, eq=False, repr=False)
class StreamAttribution(Tabular):
    """A number that is linear in the residual stream at one position, as a sum over what was added to the stream."""

    constant: Float[Tensor, " b"]
    """What does not depend on the stream: biases after it."""
    embedding: Float[Tensor, " b"]
    heads: Float[Tensor, "b layers heads"]
    biases: Float[Tensor, "b layers"]
    """Biases of the output projections of attention."""
    mlps: Float[Tensor, "b layers"]
    directions: list[Float[Tensor, "b heads d"]]
    """g of each layer."""
    stream: ResidualStream
    rows: list[int]
    """The position in each entry."""

    @property
    def total(self) -> Float[Tensor, " b"]:
        """The sum of all parts."""
        return self.constant + self.embedding + sum(x.flatten(1).sum(1) for x in (self.heads, self.biases, self.mlps))

    @property
    def size(self) -> Float[Tensor, " b"]:
        """The sum of the sizes of all parts, which rounding errors of the sum are relative to."""
        parts = (self.heads, self.biases, self.mlps)
        return self.constant.abs() + self.embedding.abs() + sum(x.abs().flatten(1).sum(1) for x in parts)

    def sources(self, layer: int, entry: int = 0) -> Contributions:
        """What each source token adds through each head of a layer, [heads, 1, T_k]. Its rows sum to `heads`."""
        call, row = self.stream.layers[layer].call, self.rows[entry]
        g = self.directions[layer].to(call.v.dtype)[:, :, None]  # one direction for the one row that is read
        lead = g if len(call.shape) > 3 else g[0]
        part = call.contributions(lead)
        return (part[entry] if len(call.shape) > 3 else part).rows(row)

    def strongest(self, count: int = 10) -> list[tuple[int, int, float]]:
        """(layer, head, mean over the batch) of the heads of largest size."""
        mean = self.heads.mean(0)
        order = mean.abs().flatten().argsort(descending=True)[:count].tolist()
        return [(n // mean.shape[1], n % mean.shape[1], float(mean.flatten()[n])) for n in order]

    def __repr__(self) -> str:
        total, parts = self.total.mean(), {"embedding": self.embedding, "heads": self.heads, "biases": self.biases}
        sums = {name: x.flatten(1).sum(1) if x.dim() > 1 else x for name, x in (parts | {"MLPs": self.mlps}).items()}
        each = ", ".join(f"{name} {float(x.mean()):+.3f}" for name, x in sums.items())
        lines = [f"{type(self).__name__}: {float(total):.4f}, mean of {len(self.embedding)} = {each}"]
        spread = self.heads.std(0) / len(self.heads) ** 0.5 if len(self.heads) > 1 else None
        for layer, head, value in self.strongest(10):
            error = "" if spread is None else f" ± {float(spread[layer, head]):.4f}"
            lines.append(f"  {f'{layer}.{head}':7} {value:+.4f}{error}")
        return "\n".join(lines)

    def table(self) -> ResultTable:
        """One row per part of each entry: what it is, its layer and head where it has one, and what it adds."""
        rows: list[tuple[int, str, int | None, int | None, float]] = []
        for entry in range(len(self.heads)):
            rows.append((entry, "constant", None, None, float(self.constant[entry])))
            rows.append((entry, "embedding", None, None, float(self.embedding[entry])))
            for layer, heads in enumerate(self.heads[entry].tolist()):
                rows += [(entry, "head", layer, head, value) for head, value in enumerate(heads)]
                rows.append((entry, "bias", layer, None, float(self.biases[entry, layer])))
                rows.append((entry, "mlp", layer, None, float(self.mlps[entry, layer])))
        names = ("entry", "part", "layer", "head", "value")
        return ResultTable({name: [row[at] for row in rows] for at, name in enumerate(names)})


def stream_parts(
    stream: ResidualStream,
    depth: int,
    at: tuple[Int[Tensor, " b"], Int[Tensor, " b"]],
    u: Float[Tensor, "b d"],
    constant: Float[Tensor, " b"],
) -> StreamAttribution:
    """The parts along u of the stream after `depth` layers, at the positions `at` (entries, rows)."""
    count = len(u)
    heads, biases, mlps, directions = [], [], [], []
    for layer in stream.layers[:depth]:
        g, bias = through_projection(layer.projection, layer.heads.shape[-1], u)
        g, outputs = (x.unflatten(-1, (layer.call.heads, -1)).double() for x in (g, layer.heads[at]))
        directions.append(g)
        heads.append((g * outputs).sum(-1))
        biases.append(bias)
        mlps.append((u * layer.rest[at].double()).sum(-1))
    embedding = (u * stream.layers[0].before[at].double()).sum(-1)
    none = u.new_zeros(count, 0)
    return StreamAttribution(
        constant,
        embedding,
        torch.stack(heads, dim=1) if heads else u.new_zeros(count, 0, stream.layers[0].call.heads),
        torch.stack(biases, dim=1) if biases else none,
        torch.stack(mlps, dim=1) if mlps else none,
        directions,
        stream,
        at[1].tolist(),
    )


@torch.no_grad()
def through_norm(norm: nn.Module, x: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The direction before the norm, at the scale it had, and what its bias adds.

    A LayerNorm is y = γ (x − mean) s + β, a norm by root mean squares y = γ x s. The scale s is that of the real
    output, by least squares; if no scale gives that output, the norm is of another kind.
    """
    x, y = x.double(), y.double()
    gain, beta = gain_of(norm, x[0])
    before = gain * (x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x)
    scale = (before * (y - beta)).sum(-1, keepdim=True) / before.square().sum(-1, keepdim=True)
    error = float(((before * scale + beta - y).norm(dim=-1) / y.norm(dim=-1)).max())
    if not error < 0.02:
        raise ValueError(
            f"the norm {type(norm).__name__} is neither a LayerNorm nor a norm by root mean squares: no scale gives "
            f"its output (relative error {error:.2g}), so what follows it is no sum of parts of the stream"
        )
    direction = gain * u
    if isinstance(norm, nn.LayerNorm):
        direction = direction - direction.mean(-1, keepdim=True)
    return direction * scale, u @ beta


@torch.no_grad()
def gain_of(norm: nn.Module, like: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """γ and β of a LayerNorm or a norm by root mean squares, as numbers like these."""
    beta = torch.zeros_like(like)
    if isinstance(norm, nn.LayerNorm):
        gain = torch.ones_like(beta) if norm.weight is None else norm.weight.to(beta.dtype)
        return gain, beta if norm.bias is None else norm.bias.to(beta.dtype)
    parameter = next(norm.parameters(), like)
    return norm(torch.full_like(beta, 100, dtype=parameter.dtype)[None])[0].to(beta.dtype), beta  # of equal numbers: γ


def through_projection(projection: nn.Module, width: int, u: Tensor) -> tuple[Tensor, Tensor]:
    """W_Oᵀ u, from the module itself, whatever holds its weights, and u · bias."""
    dtype = next(projection.parameters()).dtype
    with torch.enable_grad():
        z = torch.zeros(len(u), width, dtype=dtype, device=u.device, requires_grad=True)
        y = projection(z)
        (g,) = torch.autograd.grad((y * u.to(dtype)).sum(), z)
    return g, (y.detach().double() * u).sum(-1)


@dataclass(slots=True, eq=False, repr=False)
class LogitAttribution(StreamAttribution):
    """The parts of a logit, or of the difference of two, for each entry of the batch."""

    logit: Float[Tensor, " b"]
    """What the output layer of the model computed."""


def logit_attribution(
    model: nn.Module | TextModel,
    inputs: Inputs | str,
    tokens: Words,
    minus: Words | None = None,
    *,
    position: int | Sequence[int] = -1,
    head: nn.Module | None = None,
) -> LogitAttribution:
    """Direct logit attribution from one run of the model.

        logit_attribution(model, {"input_ids": ids}, tokens=mary, minus=john).strongest(5)
        logit_attribution(load_text_model("smollm2", with_head=True), "Mary gave it to", " John", " Mary")

    `tokens` are vocabulary indices, one for each entry of the batch or one for all; of a model with its tokenizer,
    words (" Mary") and a text may be given. With `minus` the difference of two logits is attributed. `position` is
    where in the text the logit stands. `head` names the output layer of a model that has no `get_output_embeddings()`.
    Models whose layers add to a residual stream are taken: see the head of this module.
    """
    tokens, minus = token_ids(model, tokens), None if minus is None else token_ids(model, minus)
    stream = record_stream(model, inputs, head=head)
    count, length = stream.last.shape[:2]
    positions = [position] * count if isinstance(position, int) else list(position)
    if len(positions) != count or not all(-length <= x < length for x in positions):
        raise ValueError(f"position is one of {length} tokens, for all or for each of {count} texts; got {position}")
    rows = [x % length for x in positions]
    at = torch.arange(count, device=stream.last.device), torch.tensor(rows, device=stream.last.device)
    chosen = _indices(tokens, count, stream)
    others = None if minus is None else _indices(minus, count, stream)
    u, constant = _unembedding(stream, chosen, others)
    u, offset = through_norm(stream.norm, stream.last[at], stream.normed[at], u)
    logit = _difference(stream.logits[at].double(), chosen, others)
    parts = stream_parts(stream, len(stream.layers), at, u, constant + offset)
    return LogitAttribution(**{field.name: getattr(parts, field.name) for field in fields(parts)}, logit=logit)


def _indices(tokens: Words, count: int, stream: ResidualStream) -> Tensor:
    indices = torch.as_tensor(tokens, device=stream.logits.device).flatten()
    size = stream.logits.shape[-1]
    if len(indices) not in (1, count) or not bool(((indices >= 0) & (indices < size)).all()):
        raise ValueError(
            f"tokens are indices below {size}, the size of the vocabulary: one, or one for each of {count} texts; got "
            f"{indices.tolist()}"
        )
    return indices.expand(count)


def _difference(logits: Float[Tensor, "b v"], chosen: Tensor, others: Tensor | None) -> Float[Tensor, " b"]:
    logit = logits.gather(1, chosen[:, None]).squeeze(1)
    return logit if others is None else logit - logits.gather(1, others[:, None]).squeeze(1)


def _unembedding(stream: ResidualStream, chosen: Tensor, others: Tensor | None) -> tuple[Tensor, Tensor]:
    """W_U[t] of each entry, less that of the other token, and the bias of the output layer."""
    with torch.enable_grad():
        z = torch.zeros_like(stream.normed[:, 0], requires_grad=True)
        logit = _difference(stream.head(z), chosen, others)
        (u,) = torch.autograd.grad(logit.sum(), z)
    return u.double(), logit.detach().double()


class NextTokens(NamedTuple):
    """The likeliest next tokens, likeliest first."""

    probabilities: Float[Tensor, "... count"]
    tokens: Int[Tensor, "... count"]


@torch.no_grad()
def logit_lens(
    model: nn.Module | TextModel,
    inputs: Inputs | str,
    *,
    position: int | slice = -1,
    head: nn.Module | None = None,
) -> Float[Tensor, "layers_1 b ... v"]:
    """The output layer and the final norm applied to the stream before the first layer and after each.

    The last of the `layers + 1` are the logits of the model. With a slice of positions the result has a dimension for
    them. A model that changes what its output layer gives (by a factor or a cap) is refused.
    """
    stream = record_stream(model, inputs, head=head)
    own, logits = stream.model_logits, stream.logits
    if isinstance(own, torch.Tensor) and own.shape == logits.shape:
        error = float((own.double() - logits.double()).norm() / logits.double().norm())
        if not error < 0.02:
            raise ValueError(
                f"{type(model).__name__} changes the logits after its output layer, by a factor or a cap (relative "
                f"difference {error:.2g}), so the output layer alone does not give its next tokens"
            )
    return torch.stack([stream.head(stream.norm(x[:, position])) for x in stream.streams])


def next_tokens(logits: Float[Tensor, "... v"], count: int = 5) -> NextTokens:
    """The probabilities of the likeliest next tokens."""
    top = logits.detach().float().softmax(-1).topk(min(count, logits.shape[-1]))
    return NextTokens(top.values, top.indices)


Side = Literal["query", "key"]


@dataclass(slots=True, eq=False, repr=False)
class EnergyAttribution(StreamAttribution):
    """The parts of one energy of one head, for each entry of the batch, from the layers below it."""

    energy: Float[Tensor, " b"]
    """s q_i · k_j as the model computed q and k, before masks, biases and caps."""
    error: Float[Tensor, " b"]
    """|total − energy| over the sum of the sizes of all parts."""


def energy_attribution(
    model: nn.Module | TextModel,
    inputs: Inputs | str,
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
    model, inputs = read_inputs(model, inputs)
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
    for entry in range(len(stream.last)):
        if not bool(visible_keys(entry_weights(call, entry), torch.tensor(places[:1]))[0, places[1]]):
            raise ValueError(
                f"{call.name}: query {places[0]} does not see key {places[1]}, so there is no energy between them"
            )
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
    # Many norms compute in float32 whatever the model's type.
    dtype = coarsest(
        torch.float32, before.dtype, energies.a.dtype, energies.b.dtype, *(leaf.dtype for _, leaf in outputs)
    )
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

    masks = True

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
