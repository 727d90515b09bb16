"""Circuits from weights: what heads read, write and pass on to each other, whatever the text (Elhage et al. 2021).

With a head's projections W_Q, W_K, W_V [d_head, d] and W_O [d, d_head], which act on the stream x of size d,

    e_ij = x_iᵀ W_QK x_j,  W_QK = W_Qᵀ W_K            the head adds  Σ_j w_ij W_OV x_j,  W_OV = W_O W_V

A positive eigenvalue of W_OV copies its direction, a negative one turns it round: copying = Σ Re λ / Σ |λ|, between −1
and 1, in the stream or in the vocabulary, W_U W_OV W_Eᵀ. The composition of a head with a later one is

    query  ‖W_QKᵀ W_OV‖ / (‖W_QK‖ ‖W_OV‖)     key  ‖W_QK W_OV‖ / …     value  ‖W_OV' W_OV‖ / …

with Frobenius norms. For W_OV turned at random its root mean square is 1 / √d: `chance`.

No matrix d × d of a head is made: eigenvalues are those of [d_head, d_head], and ‖A B‖² = ⟨Aᵀ A, B Bᵀ⟩ is added up over
blocks of rows, for all pairs at once.

What is folded in, and what is not. The projections are measured on the model's own modules, as what they add for each
unit vector, so grouped heads, packed matrices and adapters are as the model has them. The gain of the norm before them
is folded in, and its centring; its scale depends on the text and is left out, as are biases. Rotary positions make W_QK
depend on the distance: queries stand at `distance`, keys at 0. A norm of queries or keys is no matrix: refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from .logit_attribution import NextTokens, gain_of, record_stream
from .terminal import ResultTable, Tabular
from .text_models import first_tensor, read_inputs
from .watch import named_parts, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Complex, Float

    from .logit_attribution import EnergyAttribution, StreamLayer
    from .text_models import TextModel

Through = Literal["query", "key", "value"]
LINEAR = {torch.float64: 1e-6, torch.float32: 1e-4}
"""What a projection of a random vector may miss the sum of its parts by; norms often compute in float32."""
BLOCK = 16
"""Rows of d × d matrices, of all heads together, that are made at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Circuits(Tabular):
    """The projections of all heads of a model, and what follows from them."""

    q: list[Float[Tensor, "heads d_head d"]]
    """W_Q of each layer, through the norm before it."""
    k: list[Float[Tensor, "key_heads d_head d"]]
    v: list[Float[Tensor, "key_heads d_v d"]]
    o: list[Float[Tensor, "heads d d_v"]]
    embedding: Float[Tensor, "vocabulary d"]
    unembedding: Float[Tensor, "vocabulary d"]
    """Through the final norm."""
    centred: bool
    """The norms subtract the mean."""
    rotary: bool
    """Queries and keys depend on positions; these are for `distance`."""
    distance: int

    @property
    def chance(self) -> float:
        """The root mean square of a composition score for matrices that are turned at random."""
        return float(self.embedding.shape[1] ** -0.5)

    def _grouped(self, x: list[Tensor], layer: int) -> Float[Tensor, "heads d_head d"]:
        """Of a layer in float64, with one for each query head."""
        part = x[layer].double()
        return part.repeat_interleave(len(self.q[layer]) // len(part), dim=0)

    def _layers(self, compute: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """A function of W_Q, W_K, W_V, W_O of each layer, stacked."""
        every = (
            (self._grouped(self.q, n), self._grouped(self.k, n), self._grouped(self.v, n), self.o[n].double())
            for n in range(len(self.q))
        )
        return torch.stack([compute(*each) for each in every])

    def ov_eigenvalues(self) -> Complex[Tensor, "layers heads d_v"]:
        """The eigenvalues of W_OV that are not 0."""
        return self._layers(lambda q, k, v, o: torch.linalg.eigvals(v @ o))

    def qk_eigenvalues(self) -> Complex[Tensor, "layers heads d_head"]:
        """The eigenvalues of W_QK that are not 0: positive ones find tokens like the query's own."""
        return self._layers(lambda q, k, v, o: torch.linalg.eigvals(k @ q.mT))

    def copying(self, vocabulary: bool = False) -> Float[Tensor, "layers heads"]:
        """Σ Re λ / Σ |λ| of W_OV, or of the map from the tokens of a text to logits."""
        if vocabulary:
            between = self.embedding.double().T @ self.unembedding.double()  # [d, d]: W_Eᵀ W_U of row vectors
            values = self._layers(lambda q, k, v, o: torch.linalg.eigvals(v @ between @ o))
        else:
            values = self.ov_eigenvalues()
        return _signed_share(values)

    def composition(self, through: Through | None = None) -> Float[Tensor, "... layers heads layers_from heads_from"]:
        """The scores of all pairs, receiver first; NaN where the sender is not below. Without `through` all three."""
        if through is not None and through not in get_args(Through):
            raise ValueError(f"through is {through!r}; expected one of {', '.join(map(repr, get_args(Through)))}")
        sides: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
            "query": lambda q, k, v, o: _root(k @ k.mT) @ q,
            "key": lambda q, k, v, o: _root(q @ q.mT) @ k,
            "value": lambda q, k, v, o: _root(o.mT @ o) @ v,
        }
        names = list(sides) if through is None else [through]
        senders = self._layers(lambda q, k, v, o: o @ _root(v @ v.mT)).flatten(0, 1)  # B Bᵀ = W_OV W_OVᵀ, [n, d, d_v]
        readers = torch.cat([self._layers(sides[name]).flatten(0, 1).mT for name in names])
        squares = _inner(readers, senders)
        sizes = readers.flatten(1).norm(dim=1)[:, None] * senders.flatten(1).norm(dim=1)
        layers, heads = len(self.q), len(self.q[0])
        scores: Tensor = (squares.clamp_min(0).sqrt() / sizes).reshape(len(names), layers, heads, layers, heads)
        below = torch.arange(layers)[:, None] > torch.arange(layers)
        scores = scores.where(below[None, :, None, :, None].to(scores.device), torch.nan).cpu()
        return scores if through is None else scores[0]

    def strongest(self, through: Through, count: int = 10) -> list[tuple[tuple[int, int], tuple[int, int], float]]:
        """(sender, receiver, score) of the pairs of heads that compose most."""
        scores = self.composition(through)
        values, at = scores.nan_to_num(-1).flatten().topk(count)
        places = torch.stack(torch.unravel_index(at, scores.shape)).T.tolist()
        return [((c, d), (a, b), value) for (a, b, c, d), value in zip(places, values.tolist(), strict=True)]

    def beside(self, parts: EnergyAttribution, layer: int, head: int, through: Literal["query", "key"]) -> ResultTable:
        """What the weights say beside what happened: composition with this head, and parts of one of its energies.

        `parts` are those of `energy_attribution` for the same layer, head and side; one row for each earlier head.
        """
        scores = self.composition(through)[layer, head, :layer]
        text = parts.heads.mean(0)
        if text.shape != scores.shape:
            raise ValueError(
                f"parts of {list(text.shape)} heads below are not those of layer {layer}, {list(scores.shape)}"
            )
        layers, heads = torch.cartesian_prod(*map(torch.arange, scores.shape)).T.tolist()
        columns = {"layer": layers, "head": heads, "the weights say": scores.flatten().tolist()}
        return ResultTable(columns | {"on this text": text.flatten().tolist()})

    def _tokens(self) -> Float[Tensor, "vocabulary d"]:
        """Embeddings as a norm leaves them."""
        e = self.embedding.double()
        e = e - e.mean(-1, keepdim=True) if self.centred else e
        return e / e.square().mean(-1, keepdim=True).sqrt()

    def written(self, layer: int, head: int, token: int, count: int = 5) -> NextTokens:
        """The tokens whose logit the head raises most when it attends to this token, and by how much at weight 1."""
        moved = self.o[layer][head].double() @ (self._grouped(self.v, layer)[head] @ self._tokens()[token])
        return NextTokens(*(self.unembedding.double() @ moved).topk(count))

    def sought(self, layer: int, head: int, token: int, count: int = 5) -> NextTokens:
        """The tokens of largest energy as keys, before its factor, for this token as a query."""
        tokens = self._tokens()
        query = self._grouped(self.q, layer)[head] @ tokens[token]
        return NextTokens(*(tokens @ (query @ self._grouped(self.k, layer)[head])).topk(count))

    def table(self) -> ResultTable:
        """One row per head: copying, in the stream and in the vocabulary, and the same sum for W_QK."""
        values = self.qk_eigenvalues()
        columns = {"copying": self.copying(), "copying of tokens": self.copying(vocabulary=True)}
        columns["matching"] = _signed_share(values)
        layers, heads = torch.cartesian_prod(*map(torch.arange, columns["copying"].shape)).T.tolist()
        return ResultTable(
            {"layer": layers, "head": heads} | {name: x.flatten().tolist() for name, x in columns.items()}
        )

    def __repr__(self) -> str:
        copying = self.copying()
        order = copying.flatten().argsort(descending=True).tolist()
        named = [f"{n // copying.shape[1]}.{n % copying.shape[1]} {float(copying.flatten()[n]):+.2f}" for n in order]
        position = f", rotary, queries {self.distance} after keys" if self.rotary else ""
        lines = [f"Circuits of {len(self.q)} layers of {len(self.q[0])} heads{position}; norms folded, scales left out"]
        return "\n".join(
            [*lines, f"  copying most   {'  '.join(named[:5])}", f"  and least      {'  '.join(named[-5:])}"]
        )


def _signed_share(eigenvalues: Tensor) -> Tensor:
    """Σ Re λ / Σ |λ|."""
    share: Tensor = eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)
    return share


def _root(x: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n n"]:
    """The symmetric square root: R with R R = x."""
    values, vectors = torch.linalg.eigh(x)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT
    return root


def _inner(a: Float[Tensor, "n d r"], b: Float[Tensor, "m d r"]) -> Float[Tensor, "n m"]:
    """⟨A Aᵀ, B Bᵀ⟩ of all pairs, over blocks of rows; these matrices are symmetric, so half of each is enough."""
    total = a.new_zeros(len(a), len(b))
    for start in range(0, a.shape[1], BLOCK):
        left, right = (x[:, start : start + BLOCK] @ x[:, start:].mT for x in (a, b))
        left[..., left.shape[1] :] *= 2
        total += left.flatten(1) @ right.flatten(1).T
    return total


@torch.no_grad()
def circuits(model: nn.Module | TextModel, *, distance: int = 0, head: nn.Module | None = None) -> Circuits:
    """The projections of all heads, measured on the model's modules for one token of each unit vector.

        found = circuits(model)
        found.copying()[23, 3], found.strongest("key", 5)

    `head` names the output layer of a model that has no `get_output_embeddings()`. Models are those of
    `logit_attribution` with attention whose queries and keys are linear in the normed stream.
    """
    model, _ = read_inputs(model, {})
    device = next(model.parameters()).device
    ids = torch.zeros(1, 1, dtype=torch.long, device=device)
    first = _Projections(model, {"input_ids": ids}, head)
    shifted = first
    if distance:
        shifted = _Projections(model, {"input_ids": ids, "position_ids": ids + distance}, head)
    q, k, v, o = [], [], [], []
    for number in range(len(first.layers)):
        heads, keys, values = first.measured(number)
        q.append(heads if shifted is first else shifted.measured(number)[0])
        k.append(keys)
        v.append(values)
        o.append(_outputs(first.layers[number]))
    if len({(x.shape, y.shape) for x, y in zip(q, v, strict=True)}) > 1:
        raise ValueError(f"{type(model).__name__}: its layers have different heads, so they are not one table")
    final = first.stream.norm
    weight: Any = first.stream.head.weight
    gain, _ = gain_of(final, first.stream.last[0, 0].double())
    unembedding: Tensor = weight.detach() * gain.to(weight.dtype)
    centred = isinstance(final, nn.LayerNorm)
    if centred:
        unembedding = unembedding - unembedding.mean(-1, keepdim=True)
    embedding: Tensor = model.get_input_embeddings().weight.detach()  # type: ignore[operator]
    return Circuits(q, k, v, o, embedding, unembedding, centred, first.is_rotary(model, ids, head), distance)


class _Projections:
    """The attention modules of a run on one token, to be called again on other inputs."""

    def __init__(self, model: nn.Module, inputs: dict[str, Tensor], head: nn.Module | None) -> None:
        self.model, self._args = model, dict[str, tuple[tuple[Any, ...], dict[str, Any]]]()
        self._outputs = list[tuple[nn.Module, Tensor, Tensor]]()
        parts, handles = named_parts(model), []
        for name, part in parts:
            handles.append(part.register_forward_pre_hook(self._before(name), with_kwargs=True))
            if not part._modules:
                handles.append(part.register_forward_hook(self._after))
        try:
            self.stream = record_stream(model, inputs, head=head)
        finally:
            for handle in handles:
                handle.remove()
        self.layers, self._named = self.stream.layers, dict(parts)

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._args[name] = args, kwargs

        return hook

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = first_tensor(args)
        if x is not None and isinstance(output, Tensor) and x.shape == output.shape:
            self._outputs.append((module, x, output))

    def _input(self, name: str) -> Tensor:
        args, kwargs = self._args[name]
        x = first_tensor((*args, kwargs.get("hidden_states")))
        assert x is not None
        return x

    def call(self, name: str, x: Float[Tensor, "n 1 d"]) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values that the attention module of this name makes, [n, heads, d_head]."""
        args, kwargs = self._args[name]
        old = self._input(name)
        caches = {key for key, value in kwargs.items() if hasattr(value, "update") and not isinstance(value, dict)}
        kwargs = {key: None if key in caches else x if value is old else value for key, value in kwargs.items()}
        with watch(self.model) as seen:
            self._named[name](*(x if value is old else value for value in args), **kwargs)
        energies = seen[0].energies
        if getattr(energies.form, "scale", None) is None:
            raise ValueError(f"{name}: its energy is no dot product of queries and keys")
        return energies.a[:, :, 0], energies.b[:, :, 0], seen[0].v[:, :, 0]

    def measured(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """W_Q, W_K, W_V of a layer, [heads, d_head, d], through the norm before it."""
        layer, name = self.layers[number], self.layers[number].call.name
        old = self._input(name)
        size = old.shape[-1]
        probe = torch.randn(1, size, generator=torch.Generator().manual_seed(0)).to(old)
        x = torch.cat([torch.zeros_like(probe), torch.eye(size, dtype=old.dtype, device=old.device), probe])
        norm = next((m for m, a, b in self._outputs if b.shape == old.shape and torch.equal(a, layer.before)
                     and torch.equal(b, old)), None)  # fmt: skip
        if norm is None and not torch.equal(old, layer.before):
            raise ValueError(f"{layer.name}: no norm makes what its attention reads of the stream")
        gain = torch.ones_like(old[0, 0]) if norm is None else gain_of(norm, old[0, 0].double())[0].to(old.dtype)
        result = []
        for side, y in zip(("queries", "keys", "values"), self.call(name, x[:, None]), strict=True):
            w = (y[1:-1] - y[0]).permute(1, 2, 0)  # [heads, d_head, d]
            sums, real = torch.einsum("hed,d->he", w, probe[0]), y[-1] - y[0]
            if not float((sums - real).norm()) <= LINEAR.get(y.dtype, 0.05) * float(real.norm()):
                raise ValueError(f"{name}: its {side} are not linear in the normed stream (a norm of queries or keys?)")
            w = w * gain
            result.append(w - w.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else w)
        return result[0], result[1], result[2]

    def is_rotary(self, model: nn.Module, ids: Tensor, head: nn.Module | None) -> bool:
        """Whether the first layer's queries of one input differ between two positions."""
        try:
            later = _Projections(model, {"input_ids": ids, "position_ids": ids + 1}, head)
        except TypeError:  # the model takes no positions
            return False
        name = self.layers[0].call.name
        x = torch.ones_like(self._input(name))
        return not torch.equal(self.call(name, x)[0], later.call(name, x)[0])


def _outputs(layer: StreamLayer) -> Float[Tensor, "heads d d_v"]:
    """W_O of each head: what the projection adds for each unit vector."""
    like, heads = layer.heads, layer.call.heads
    width = like.shape[-1]
    x = torch.cat([like.new_zeros(1, width), torch.eye(width, dtype=like.dtype, device=like.device)])
    y: Tensor = layer.projection(x)
    return (y[1:] - y[0]).unflatten(0, (heads, -1)).mT  # type: ignore[no-any-return]
