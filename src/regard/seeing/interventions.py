"""Interventions: changes of what flows through a model at chosen sites, and of its masks, while it runs.

A site is a head, an MLP, the residual stream, or the embedding, perhaps at one position; or one weight of a head. The
taps give the outputs of heads and the masks, hooks those of modules. Recording, sweeps (`effects`), `ablate` and
`intervene` are four uses of this.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .call import CROSS
from .generation_passes import CLOSED
from .text_models import first_tensor, with_first
from .trace import ModuleDepths
from .watch import install, named_parts, numbers, opened, plan, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxtyping import Bool, Float

Part = Literal["attention", "mlp", "stream", "embedding"]


_lock = threading.RLock()
_fastpath_before = True
"""Whether the fast path of nn.MultiheadAttention was enabled before the first of the open blocks of all threads."""


class ModelIntervention:
    """An intervention that changes nothing; the base of those that do.

    It concerns the modules whose id is in `names`, in the thread that opened it.
    """

    masks = False
    """Whether it changes masks, or looks at them with the queries and keys."""

    def __init__(self, model: nn.Module) -> None:
        self.parts = named_parts(model)
        self.names = {id(part): name or type(model).__name__ for name, part in self.parts}
        self.thread, self.number = threading.get_ident(), next(numbers)
        self._declared_cross = {name: getattr(part, "is_cross_attention", None) for name, part in self.parts}

    def describe(self, name: str) -> str:
        """What is changed in this module, in words for a trace; empty if nothing is."""
        return ""

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        """The output that the module goes on with.

        Heads are dimension `dim`. If there are `count` of them and the dimension is longer, it is [B · heads].
        """
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask and the causal flag that the module goes on with."""
        return mask, is_causal

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        """Refuse what cannot be changed in attention that a module writes out."""
        if not self.is_cross(name, queries != keys):
            self.check_maskless(name, "attention written out in a module")

    def check_maskless(self, name: str, kind: str, lengths_differ: bool = False) -> None:
        """Refuse tokens where no mask can be changed, unless it is cross-attention, whose tokens stay."""
        if self.masks and not self.is_cross(name, lengths_differ):
            raise ValueError(f"{name} is {kind}, where tokens cannot be masked; ablate its heads instead")

    def check_head_axis(self, name: str, out: Tensor) -> None:
        """Refuse heads of an output that is not [B, heads, T, D]."""
        if out.dim() < 4:
            raise ValueError(
                f"{name} calls attention with an output of shape {list(out.shape)}, whose first dimension is either "
                "the batch or the heads; its heads can be changed in a call of shape [batch, heads, tokens, size] (one "
                "head: x.unsqueeze(1))"
            )

    def is_cross(self, name: str, lengths_differ: bool) -> bool:
        """Whether this layer is cross-attention, by its attribute `is_cross_attention` or else by its name."""
        declared = self._declared_cross.get(name)
        return bool(declared) if declared is not None else lengths_differ or CROSS.search(name.lower()) is not None


@contextmanager
def applied(intervention: ModelIntervention) -> Iterator[None]:
    """Inside the block, in the thread that opened it, the taps apply the intervention."""
    global _fastpath_before
    try:
        install(intervention.number, plan(intervention.parts))
        with _lock:
            if not opened.ablations:
                _fastpath_before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            opened.ablations = (*opened.ablations, intervention)
        yield
    finally:
        with _lock:
            was_open = intervention in opened.ablations
            opened.ablations = tuple(x for x in opened.ablations if x is not intervention)
            if was_open and not opened.ablations:  # the last open block of all threads
                torch.backends.mha.set_fastpath_enabled(_fastpath_before)
        remove(intervention.number)


def without_keys(
    closed: Bool[Tensor, "*#batch #q k"], mask: Tensor | None, is_causal: bool, q: Tensor
) -> Bool[Tensor, "..."] | Float[Tensor, "..."]:
    """The mask without these keys, for queries that have others left; a mask of numbers stays one."""
    queries, keys = q.shape[-2], closed.shape[-1]
    before = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if is_causal:
        before = before.tril()
    open_ = before & ~closed
    if mask is None:
        return torch.where(open_.any(-1, keepdim=True), open_, before)
    if mask.dtype == torch.bool:
        both = mask & open_
        return torch.where(both.any(-1, keepdim=True), both, mask)
    left = ((mask > CLOSED) & open_).any(-1, keepdim=True)
    return mask.masked_fill(~open_ & left, torch.finfo(mask.dtype).min)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a forward pass: what an intervention changes, and what an effect is of.

    Site(3, 5)                   head 5 of the fourth layer        Site(3, part="mlp")      its MLP
    Site(3)                      all heads of a layer              Site(3, part="stream")   the stream before the layer
    Site(3, 5, token=-1)         a head at one position            Site(token=2)            a token, in every layer
    Site(3, 5, token=7, key=2)   one weight of a head

    Layers are counted from 0; the stream after the last of L layers is `Site(L, part="stream")`.
    """

    layer: int | None = None
    """In a sweep the number of the attention call in the forward pass, of streams and MLPs that of the layer."""
    head: int | None = None
    token: int | None = None
    """The position; of a weight, that of the query."""
    module: str = ""
    part: Part = "attention"
    key: int | None = None

    @property
    def place(self) -> Place:
        return Place("embedding" if self.layer is None else self.part, self.layer or 0)

    @property
    def heads(self) -> slice:
        return slice(None) if self.head is None else slice(self.head, self.head + 1)

    @property
    def tokens(self) -> slice:
        return slice(None) if self.token is None else slice(self.token, self.token + 1 or None)

    @property
    def name(self) -> str:
        """In words: "3.5", "3.5 at 7", "3.5, 7 to 2", "mlp 3"."""
        if self.layer is None:
            return f"token {self.token}"
        of = "layer" if self.part == "attention" else self.part
        name = f"{of} {self.layer}" if self.head is None else f"{self.layer}.{self.head}"
        if self.key is not None:
            return f"{name}, {self.token} to {self.key}"
        return name if self.token is None else f"{name} at {self.token}"


class Place(NamedTuple):
    """What is replaced as one tensor: the attention output of a layer, its MLP's output, the stream before it."""

    part: Part
    layer: int


@dataclass(slots=True, eq=False)
class RecordedOutput:
    """The output of one attention call, and where its heads are; or of a module, which counts as one head."""

    module: str
    tensor: Tensor
    dim: int | None
    count: int | None

    def arranged(self, x: Tensor) -> Float[Tensor, "b heads t d"]:
        """A tensor of the output's shape with batch and heads first."""
        return by_heads(x, self.dim, self.count)

    @property
    def by_heads(self) -> Float[Tensor, "b heads t d"]:
        return self.arranged(self.tensor.detach())

    def forget_graph(self) -> None:
        self.tensor = self.tensor.detach()


def by_heads(out: Tensor, dim: int | None, count: int | None = None) -> Float[Tensor, "b heads ..."]:
    """A view of an output with batch and heads first."""
    if dim is None:
        return out.unsqueeze(1)
    dim %= out.dim()
    if count is not None and out.shape[dim] != count:
        out, dim = out.unflatten(dim, (-1, count)), dim + 1
    return out.movedim(dim, 1)


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers: the outermost modules whose name ends in a number, in their order."""
    numbered = [(name, part) for name, part in named_parts(model) if name.rpartition(".")[2].isdecimal()]
    return [(name, part) for name, part in numbered if not any(name.startswith(f"{x}.") for x, _ in numbered)]


class SiteIntervention(ModelIntervention):
    """Sees, and may change, what flows at places of a model; `opened()` puts it in place."""

    def __init__(
        self, model: nn.Module, parts: frozenset[Part] = frozenset(), numbers: CallNumbers | None = None
    ) -> None:
        """`numbers`: those of the attention calls, as an earlier run counted them."""
        super().__init__(model)
        self.model, self.hooked = model, parts
        self.numbers: CallNumbers = {} if numbers is None else numbers
        self.count: Counter[str] = Counter()

    def edit(self, place: Place, module: str, out: Tensor, dim: int | None, count: int | None = None) -> Tensor:
        """What the model goes on with."""
        return out

    def call_number(self, name: str) -> int:
        """Of the attention call of this module that is running."""
        return self.numbers.setdefault((name, self.count[name]), len(self.numbers))

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        place = Place("attention", self.call_number(name))
        self.count[name] += 1
        return self.edit(place, name, out, dim, count)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside the block, in the thread that opened it, `edit` and `mask` are asked."""
        with ExitStack() as hooks:
            if "embedding" in self.hooked:
                module = embedding_of(self.model)
                hooks.enter_context(module.register_forward_hook(self._after(Place("embedding", 0), "")))
            for at, (name, layer) in enumerate(layers_of(self.model) if self.hooked & {"mlp", "stream"} else ()):
                if "stream" in self.hooked:
                    if at == 0:
                        before = self._before(Place("stream", 0), name)
                        hooks.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
                    hooks.enter_context(layer.register_forward_hook(self._after(Place("stream", at + 1), name)))
                for child_name, child in layer.named_children() if "mlp" in self.hooked else ():
                    if any(x.dim() > 1 for x in child.parameters()):
                        self._hook_mlp(hooks, Place("mlp", at), f"{name}.{child_name}", child)
            hooks.enter_context(applied(self))
            yield

    def _before(self, place: Place, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = first_tensor((*args, kwargs.get("hidden_states")))
            if x is None or threading.get_ident() != self.thread:
                return None
            new = self.edit(place, name, x, None)
            return with_first(args, x, new), {key: new if value is x else value for key, value in kwargs.items()}

        return hook

    def _after(self, place: Place, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            x = first_tensor(output)
            if x is None or threading.get_ident() != self.thread:
                return output
            return with_first(output, x, self.edit(place, name, x, None))

        return hook

    def _hook_mlp(self, hooks: ExitStack, place: Place, name: str, child: nn.Module) -> None:
        """The MLP is the module of a layer that has matrices and calls no attention."""
        calls: list[int] = []
        edit = self._after(place, name)

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            return edit(module, args, output) if calls.pop() == self.count.total() else output

        hooks.enter_context(child.register_forward_pre_hook(lambda *_: calls.append(self.count.total())))
        hooks.enter_context(child.register_forward_hook(after))


CallNumbers = dict[tuple[str, int], int]
"""The number of each attention call in a forward pass, by its module and how often that was called before."""


def embedding_of(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_input_embeddings", None)
    if find is None:
        raise ValueError(
            f"{type(model).__name__} has no get_input_embeddings(), so its tokens are not known; take "
            'of="heads" or of="layers"'
        )
    return find()  # type: ignore[no-any-return]


class SiteRecorder(SiteIntervention):
    """Records what flows at all places of these parts, and always the outputs of heads; with its graph, if asked."""

    def __init__(self, model: nn.Module, parts: frozenset[Part] = frozenset(), gradients: bool = False) -> None:
        super().__init__(model, parts)
        self.gradients = gradients
        self.places: dict[Place, RecordedOutput] = {}

    def edit(self, place: Place, module: str, out: Tensor, dim: int | None, count: int | None = None) -> Tensor:
        if place in self.places:
            raise ValueError(
                f"{place.part} {place.layer} is {self.places[place].module} and {module}: a layer with one MLP, which "
                "runs once in a forward pass, is expected"
            )
        if self.gradients and not out.requires_grad:
            out = out.detach().requires_grad_()  # no parameter needs a gradient: the graph begins here
        self.places[place] = RecordedOutput(module, out, dim, count)
        return out.clone()  # the model may change what it gets in place


class Edit(NamedTuple):
    """New numbers for some rows of the batch, [rows, heads, t, d] or None for zeros, and what of them is taken."""

    rows: slice
    site: Site
    new: Float[Tensor, "b heads t d"] | None


class SiteReplacement(SiteIntervention):
    """Changes parts of a batch: one list of edits for each place, and weights that are closed."""

    def __init__(self, model: nn.Module, edits: Sequence[Edit], closed: Sequence[Edit], numbers: CallNumbers) -> None:
        super().__init__(model, frozenset(edit.site.place.part for edit in edits), numbers)
        self.edits: dict[Place, list[Edit]] = {}
        for each in edits:
            self.edits.setdefault(each.site.place, []).append(each)
        self.closed, self.masks = closed, bool(closed)

    def edit(self, place: Place, module: str, out: Tensor, dim: int | None, count: int | None = None) -> Tensor:
        own = self.edits.get(place)
        if not own:
            return out
        out = out.clone()
        parts = by_heads(out, dim, count)
        for rows, site, new in own:
            parts[rows, site.heads, site.tokens] = 0 if new is None else new[:, site.heads, site.tokens].to(out.dtype)
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        number, (queries, keys) = self.call_number(name), (q.shape[-2], k.shape[-2])
        is_cross = self.is_cross(name, mask is None and not is_causal and 1 < queries != keys)
        own = [edit for edit in self.closed if edit.site.layer == number or (edit.site.layer is None and not is_cross)]
        if not own:
            return mask, is_causal
        whole = any(edit.site.key is not None for edit in own)
        total = max(edit.rows.stop for edit in self.closed)
        closed = torch.zeros(total, q.shape[1] if whole else 1, queries if whole else 1, keys, dtype=torch.bool)
        for rows, site, _ in own:
            if site.key is None:
                closed[rows, :, :, site.token] = True
            else:
                closed[rows, site.heads, site.tokens, site.key] = True
        return without_keys(closed.to(q.device), mask, is_causal, q), False


@contextmanager
def ablate(
    model: nn.Module,
    *,
    heads: Mapping[int | str, Sequence[int]] | None = None,
    tokens: Sequence[int] = (),
    edges: Sequence[tuple[int | str, int, int, int]] = (),
) -> Iterator[None]:
    """Inside the block, chosen heads output zeros, and chosen tokens or single weights are masked.

        with ablate(model, heads={3: [5], "decoder": [0, 1]}, tokens=[0], edges=[(layer, head, query, key)]):
            model(**inputs)

    Layers are named by their depth among the attention modules of a stack (`call.layer`), or by whole components of
    their name. `tokens` are keys of self-attention; a query all of whose keys would be masked keeps them. Of `edges`,
    query and key are positions of the text, also while it is generated; the other weights of the row grow in proportion
    (Geva et al. 2023). Works for calls of scaled_dot_product_attention (nn.MultiheadAttention included, without its
    fast path) and of Hugging Face's interface, in the thread that opened the block. Attention that a module writes out
    (a softmax and a product), linear attention, flex_attention and `regard.attend` can lose heads, not tokens or edges.
    A layer or a token that the model never reached is an error.
    """
    heads = {} if heads is None else heads
    if not hasattr(heads, "items") or any(isinstance(x, int | str) for x in heads.values()):
        raise ValueError(f"heads is {heads!r}; expected for each layer a list of heads: heads={{3: [5], 7: [0, 1]}}")
    if any(len(edge) != 4 for edge in edges):
        raise ValueError(f"an edge is (layer, head, query, key); got {next(x for x in edges if len(x) != 4)}")
    if not heads and not tokens and not edges:
        raise ValueError("nothing to ablate: give heads={layer: [head, …]}, tokens=[position, …], or edges=[…]")
    negative = [x for numbers in (*heads.values(), tokens, *(edge[1:] for edge in edges)) for x in numbers if x < 0]
    if negative:
        raise ValueError(f"heads and tokens are counted from 0; got {', '.join(map(str, negative))}")
    ablation = Ablation(model, dict(heads), list(tokens), list(edges))
    with applied(ablation):
        yield
    unused = ablation.unused()
    if unused:
        raise ValueError(
            f"nothing was ablated in {', '.join(unused)}: {type(model).__name__} called no attention there that could "
            "be changed"
        )


class Ablation(ModelIntervention):
    """What an `ablate` block changes; the taps apply it."""

    def __init__(
        self,
        model: nn.Module,
        heads: dict[int | str, Sequence[int]],
        tokens: list[int],
        edges: list[tuple[int | str, int, int, int]] | None = None,
    ) -> None:
        super().__init__(model)
        self.heads, self.tokens, self.edges = heads, tokens, edges or []
        self.masks = bool(self.tokens or self.edges)
        self._depths = ModuleDepths(self.parts)
        self._ablated: set[object] = set()

    def unused(self) -> list[str]:
        """The layers, tokens and edges that the model never reached."""
        layers = [f"layer {x}" if isinstance(x, int) else x for x in self.heads if ("heads", x) not in self._ablated]
        tokens = [f"token {x}" for x in self.tokens if ("token", x) not in self._ablated]
        return layers + tokens + [f"edge {x}" for x in self.edges if x not in self._ablated]

    def _layers(self, name: str) -> list[int | str]:
        """The keys of `heads` that mean this module."""
        return [layer for layer in self.heads if self._depths.selects(name, layer)]

    def _edges(self, name: str) -> list[tuple[int | str, int, int, int]]:
        return [edge for edge in self.edges if self._depths.selects(name, edge[0])]

    def describe(self, name: str) -> str:
        heads = sorted({head for layer in self._layers(name) for head in self.heads[layer]})
        parts = [f"heads {', '.join(map(str, heads))}"] if heads else []
        if self.tokens and not self.is_cross(name, False):
            parts.append(f"tokens {', '.join(map(str, self.tokens))}")
        parts += [f"weight {query} to {key} of head {head}" for _, head, query, key in self._edges(name)]
        return "; ".join(parts)

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        layers = self._layers(name)
        heads = {head for layer in layers for head in self.heads[layer]}
        if not heads:
            return out
        count = out.shape[dim] if count is None else count
        if max(heads) >= count:
            raise ValueError(f"{name} has {count} heads; head {max(heads)} cannot be ablated")
        self._ablated.update(("heads", layer) for layer in layers)
        at = [n for n in range(out.shape[dim]) if n % count in heads]
        return out.index_fill(dim, torch.tensor(at, device=out.device), 0)

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        if self._layers(name) and not has_heads:
            raise ValueError(
                f"{name} writes its attention out, and its product with values has no axis of heads; its heads cannot "
                "be ablated"
            )
        super().check_written_out(name, queries, keys, has_heads)

    def check_head_axis(self, name: str, out: Tensor) -> None:
        if self._layers(name):
            super().check_head_axis(name, out)

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        queries, keys = q.shape[-2], k.shape[-2]
        is_cross = self.is_cross(name, mask is None and not is_causal and 1 < queries != keys)
        tokens = [] if is_cross else [token for token in self.tokens if token < keys]
        # With a cache, the last query stands at the last key.
        first = 0 if is_cross or is_causal else max(0, keys - queries)
        edges = [edge for edge in self._edges(name) if 0 <= edge[2] - first < queries and edge[3] < keys]
        if not tokens and not edges:
            return mask, is_causal
        closed = torch.zeros(keys, dtype=torch.bool, device=q.device)
        closed[tokens] = True
        self._ablated.update(("token", token) for token in tokens)
        if edges:
            closed = closed.expand(q.shape[-3], queries, keys).clone()
        for edge in edges:
            if edge[1] >= q.shape[-3]:
                raise ValueError(f"{name} has {q.shape[-3]} heads; edge {edge} cannot be ablated")
            closed[edge[1], edge[2] - first, edge[3]] = True
            self._ablated.add(edge)
        return without_keys(closed, mask, is_causal, q), False


@contextmanager
def intervene(model: nn.Module, changes: Mapping[Site | str, Change]) -> Iterator[None]:
    """Inside the block, what flows at each site is changed, by a function of it or to a tensor.

        with regard.intervene(model, {Site(10, part="stream"): lambda x: x + 4 * direction}):
            model.generate(**inputs)                       # steering
        with regard.intervene(model, {Site(23, 3): 0.0, "model.layers.10.mlp": saved}):
            model(**inputs)

    A function gets [B, T, D] of a head, an MLP, the stream or a module (a site with a token: [B, D]; all heads of a
    layer: [B, heads, T, D]), and returns as much. Layers are those of `ablate`; of the stream and MLPs, those of the
    model's one stack of layers. A string is the name of any module, whose output is changed. While a model generates,
    positions count in each forward pass: −1 is the newest token. Blocks nest, with `watch` and `ablate` too. A site
    that was never reached is an error.
    """
    intervention = Intervention(model, dict(changes))
    with intervention.opened():
        yield
    unused = [x if isinstance(x, str) else x.name for x in changes if x not in intervention.reached]
    if unused:
        raise ValueError(f"nothing was changed at {', '.join(unused)}: {type(model).__name__} never came there")


Change = Any
"""A number, a tensor, or a function from a tensor to a tensor."""


class Intervention(SiteIntervention):
    """What an `intervene` block changes."""

    def __init__(self, model: nn.Module, changes: dict[Site | str, Change]) -> None:
        sites = [x for x in changes if isinstance(x, Site)]
        super().__init__(model, frozenset(site.place.part for site in sites))
        wrong = [
            x for x in changes if isinstance(x, Site) and (x.key is not None or (x.layer is None and x.token is None))
        ]
        if wrong or not changes:
            raise ValueError(f"{wrong[0] if wrong else 'nothing'} cannot be changed by intervene; see ablate(edges=…)")
        stacks = {name.rpartition(".")[0] for name, _ in layers_of(model)}
        if len(stacks) > 1 and self.hooked & {"mlp", "stream"}:
            raise ValueError(
                f"there are several stacks of layers ({', '.join(sorted(stacks))}): give the module's name"
            )
        modules = dict(self.parts)
        missing = [x for x in changes if isinstance(x, str) and x not in modules]
        if missing:
            known = ", ".join(dict(model.named_children()))
            raise ValueError(f"there is no module {missing[0]!r}; those of the first level are {known}")
        self.changes, self.reached = changes, set[Site | str]()
        self._named = [(name, modules[name]) for name in changes if isinstance(name, str)]
        self._depths = ModuleDepths(self.parts)

    def describe(self, name: str) -> str:
        own = [x.name for x in self.changes if isinstance(x, Site) and self._is_of(x, name)]
        return f"change of {', '.join(own)}" if own else ""

    def _is_of(self, site: Site, name: str) -> bool:
        return site.place.part == "attention" and site.layer is not None and self._depths.selects(name, site.layer)

    @contextmanager
    def opened(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, module in self._named:
                hooks.enter_context(module.register_forward_hook(self._after(Place("stream", -1), name)))
            hooks.enter_context(super().opened())
            yield

    def edit(self, place: Place, module: str, out: Tensor, dim: int | None, count: int | None = None) -> Tensor:
        for site, change in self.changes.items():
            if isinstance(site, str):
                if place.layer < 0 and site == module:
                    self.reached.add(site)
                    out = self._changed(out, change, site)
            elif self._is_of(site, module) if place.part == "attention" else site.place == place:
                out = self._at(site, out.clone(), dim, count, change)
        return out

    def _at(self, site: Site, out: Tensor, dim: int | None, count: int | None, change: Change) -> Tensor:
        parts = by_heads(out, dim, count)
        heads, length = parts.shape[1:3]
        if site.head is not None and not -heads <= site.head < heads:
            raise ValueError(f"layer {site.layer} has {heads} heads; there is no head {site.head}")
        if site.token is not None and not -length <= site.token < length:
            return out  # of a later or shorter forward pass
        index = 0 if dim is None else slice(None) if site.head is None else site.head
        view = parts[:, index]
        view = view if site.token is None else view.select(-2, site.token)
        view.copy_(self._changed(view, change, site.name))
        self.reached.add(site)
        return out

    @staticmethod
    def _changed(x: Tensor, change: Change, name: str) -> Tensor:
        new = change(x.clone()) if callable(change) else torch.as_tensor(change, device=x.device)
        try:
            return new.to(x.dtype).expand(x.shape)
        except (AttributeError, RuntimeError):
            got = list(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(f"the change at {name} gives {got}; expected {list(x.shape)}, as flows there") from None
