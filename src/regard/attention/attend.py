"""attend: z = normalize(energy(q, k)) · v on the fastest exact backend, and look-up in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

import torch

from .backends import fused, reference, sdpa
from .blocks import differentiated_once, no_kernel, readable
from .energies import Exact, ScaledDot
from .normalizers import Proportional, Softmax
from .request import JaggedBatch, Sequences, listeners, make_request, notify
from .weights import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from jaxtyping import Float, Int
    from torch import Tensor

    from .request import Request

Backend = Literal["auto", "reference", "sdpa", "flex", "fused"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The backend that would run, the reason, and the reason against each of the others. `print` it."""

    backend: str
    why: str
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(map(len, (self.backend, *self.others)))
        lines = [f"→ {self.backend:{width}}  {self.why}"]
        return "\n".join(lines + [f"  {name:{width}}  {why}" for name, why in self.others.items()])


def _module(name: str) -> ModuleType:
    """The backend of this name. FlexAttention is imported when first needed, because its import is slow."""
    if name == "flex":
        from .backends import flex

        return flex
    return {"reference": reference, "sdpa": sdpa, "fused": fused}[name]


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def select(request: Request, backend: str) -> ModuleType:
    """The module that computes the request. A named one is returned or refused with the reason."""
    if backend == "auto":
        return _fastest(request)
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    module = _module(backend)
    reason: str | None = module.refusal(request)
    if reason is not None:
        auto = _name(_fastest(request))
        raise ValueError(f'backend="{backend}" cannot do this: {reason}. backend="auto" would use "{auto}"')
    return module


def _fastest(request: Request) -> ModuleType:
    if sdpa.refusal(request) is None and not _prefers_flex(request):
        return sdpa
    if request.energies.a.device.type == "cuda" and _module("flex").refusal(request) is None:
        return _module("flex")
    return reference if _is_small(request) or no_kernel() is not None else fused


def _is_small(request: Request) -> bool:
    """Whether an additive energy's [T_q, T_k, D] tensor is small enough that building it is fastest.

    The limits are measured. Below them the set-up of our kernel takes longer than it saves, and with one or two
    queries the exponentials that it computes once per key are shared by too few queries.
    """
    energies = request.energies
    if energies.form.kernel != "tanh":
        return False
    size = energies.count * energies.queries * energies.keys * energies.a.shape[-1]
    if energies.a.device.type == "cuda":
        return size <= 1 << 26
    return size <= 1 << 19 or (energies.queries <= 2 and size <= 1 << 24)


def _prefers_flex(request: Request) -> bool:
    """On a GPU, FlexAttention skips the blocks that a structured mask closes; SDPA would read a dense mask.

    Finding these blocks takes many kernel launches per call, too many for a short sequence.
    """
    energies = request.energies
    if energies.queries * energies.keys < 1 << 20:
        return False
    if energies.a.device.type != "cuda" or (energies.mask is None and not energies.modifiers):
        return False
    if energies.mask is not None and energies.mask.is_causal and not energies.modifiers:
        return False
    return _module("flex").refusal(request) is None


def make_plan(request: Request, backend: str) -> Plan:
    name = _name(select(request, backend))
    fastest = _name(_fastest(request))
    others = {}
    for other in ("sdpa", "flex", "fused", "reference"):
        if other != name:
            reason = _module(other).refusal(request)
            if reason is not None:
                others[other] = f"cannot: {reason}"
            else:
                others[other] = 'can, and is what "auto" selects' if other == fastest else _slower(other, request)
    return Plan(name, _why(name, request), others)


def _why(name: str, request: Request) -> str:
    where = request.energies.a.device.type
    if name == "sdpa":
        mask = request.energies.mask
        dense = f"the mask as a dense tensor of {request.energies.queries} × {request.energies.keys}"
        kind = "no mask" if mask is None else "its causal flag" if mask.is_causal else dense
        return f"softmax over dot products: PyTorch's own kernel on {where}, with {kind}"
    if name == "flex":
        return f"softmax over modified dot products: FlexAttention on {where}, skipping masked blocks"
    if name == "fused":
        return fused.how(request)
    small = "it is small: " if _is_small(request) else ""
    return f"{small}the formula as written, with the whole [T_q, T_k] matrix in memory"


def _slower(name: str, request: Request) -> str:
    if name == "reference":
        return "can, with the whole [T_q, T_k] matrix in memory"
    if name == "fused" and request.energies.mask is not None:
        return "can, without a dense mask or matrix"
    if name == "flex" and request.energies.a.device.type == "cpu":
        return "can, but uncompiled on CPU it holds the whole matrix"
    return "can, but no faster here"


if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .energies import Energy, LearnedEnergy
    from .masks import Mask, MaskFunction
    from .modifiers import Modified
    from .normalizers import Normalizer

    AnyEnergy = Energy | LearnedEnergy | Modified | Callable[[Tensor, Tensor], Tensor]

    AnyNormalizer = Normalizer | Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]

    class Options(TypedDict, total=False):
        energy: AnyEnergy
        normalize: AnyNormalizer
        mask: Mask | Bool[Tensor, "..."] | MaskFunction | None
        dropout: float
        backend: Backend


_SCALED_DOT = ScaledDot()
_SOFTMAX = Softmax()


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, weights: Literal[False] = ..., **options: Unpack[Options]
) -> Float[Tensor, "*batch q d_v"]: ...


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, weights: Literal[True], **options: Unpack[Options]
) -> tuple[Float[Tensor, "*batch q d_v"], Weights]: ...


def attend(
    q: Float[Tensor, "*batch q d_q"],
    k: Float[Tensor, "*batch k d_k"],
    v: Float[Tensor, "*batch k d_v"],
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: Mask | Bool[Tensor, "..."] | MaskFunction | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    weights: bool = False,
) -> Tensor | tuple[Tensor, Weights]:
    """z_i = Σ_j w_ij v_j with w_i = normalize(energy(q_i, k_·)) over the keys the mask lets query i see.

    q [..., T_q, D_q], k [..., T_k, D_k], v [..., T_k, D_v] → [..., T_q, D_v]. Leading dimensions broadcast; with
    [B, heads, T, D], fewer key/value heads than query heads are shared among them (grouped-query attention). One query
    may be a vector q [D]: then the output is [..., D_v], and the weights are [..., T_k].

    Sequences of different lengths are nested tensors of layout torch.jagged, [B, T, D] or [B, heads, T, D]; the output
    is one, too. Masks and positions count from the start of each sequence. The weights are those of the longest
    sequences, zero after the end of the others. `attend_packed` takes cumulative lengths.

    - `energy`: `ScaledDot()`, `Additive(…)`, …, or any function of (q, k) whose entry (i, j) depends on q_i and k_j.
    - `normalize`: `Softmax()`, `Proportional()`, `Sparsemax()`, `Entmax()`, `Hard()`, `Unnormalized()`, or any function
      of (energies) or (energies, mask) that gives weights along the last dimension. Without `mask` it sees −10³⁰ for
      masked keys, so a function that adds energies up needs the mask.
    - `mask`: `causal() & padding(lengths)`, …, a boolean tensor, True where a query may see a key, or FlexAttention's
      `mask_mod`, a function of (b, h, q_idx, kv_idx). A query that may see none gets zeros. Keys and values that no
      query sees count as zeros, so padding may hold NaN and ∞; in a key that some queries see they may reach others.
      (A `mask_mod` is not asked which these keys are, nor two masks that hide one only together.)
    - `dropout`: the share of weights dropped, whenever it is not zero (pass 0 in evaluation).
    - `backend`: "auto" selects the fastest that is exact for the request (`explain` says which and why); a name
      selects that backend, or raises. "reference", the formula, has second derivatives and runs inside torch.func
      (vmap, jvp, …); the others are differentiated once, and backward.
    - `weights=True` also returns `Weights`, which computes any part or statistic of w (before dropout) from q and k.
    """
    if _any_nested(q, k, v):
        batch = JaggedBatch.of(q, k, v)
        values, w = attend_sequences(
            batch,
            energy=energy,
            normalize=normalize,
            mask=mask,
            dropout=dropout,
            backend=backend,
            weights=weights,
        )
        return batch.q.nested(values) if w is None else (batch.q.nested(values), w)
    request = make_request(q, k, v, energy, normalize, mask, dropout, weights)
    module = select(request, backend)
    output, state = module.run(request)
    if module is not reference:
        output = differentiated_once(output)
    if listeners:
        output = notify(request, output, state)
    if request.vector:
        output = output.squeeze(-2)
    if weights:
        return output, Weights(request.energies, request.normalize, state, vector=request.vector)
    return output  # type: ignore[no-any-return]


def attend_sequences(
    batch: JaggedBatch,
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: Mask | Tensor | MaskFunction | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    weights: bool = False,
) -> tuple[Float[Tensor, "total *heads d_v"], Weights | None]:
    """`attend` for sequences of different lengths: the outputs of all sequences in a row."""
    q, k, v, mask, values = batch.padded(mask, weights or bool(listeners))
    options: Options = {"energy": energy, "normalize": normalize, "mask": mask, "dropout": dropout, "backend": backend}
    if weights:
        output, w = attend(q, k, v, weights=True, **options)
        return values(output), w
    return values(attend(q, k, v, **options)), None


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: Mask | Tensor | MaskFunction | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    weights: bool = False,
) -> Plan:
    """The backend that `attend` would run for the same arguments, the reason, and the reasons against the others."""
    if _any_nested(q, k, v):
        q, k, v, mask, _ = JaggedBatch.of(q, k, v).padded(mask, weights or bool(listeners))
    return make_plan(make_request(q, k, v, energy, normalize, mask, dropout, weights), backend)


def _any_nested(*tensors: Tensor) -> bool:
    return any(getattr(x, "is_nested", False) for x in tensors)


@overload
def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    weights: Literal[False] = ...,
    **options: Unpack[Options],
) -> Float[Tensor, "total_q *heads d_v"]: ...


@overload
def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    weights: Literal[True],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "total_q *heads d_v"], Weights]: ...


def attend_packed(
    q: Float[Tensor, "total_q *heads d_q"],
    k: Float[Tensor, "total_k *key_heads d_k"],
    v: Float[Tensor, "total_k *key_heads d_v"],
    cu_seqlens_q: Int[Tensor, " b_and_one"],
    cu_seqlens_k: Int[Tensor, " b_and_one"] | None = None,
    *,
    weights: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Weights]:
    """`attend` for each sequence of a packed batch: q [total, D] or [total, heads, D], as FlashAttention packs them.

    Sequence b has the rows cu_seqlens_q[b] up to cu_seqlens_q[b + 1] of q, and by cu_seqlens_k those of k and v (the
    same without it). The options are those of `attend`. Masks and positions count from the start of each sequence:
    `mask=causal("bottom-right")` is FlashAttention's `causal=True`.

    The weights are [B, heads, longest T_q, longest T_k], zero after the end of a sequence; `w[b]` are those of one.

    The cumulative lengths are read, from a GPU too, which waits for it. A function as `normalize` that takes no mask
    sees −10³⁰ from the end of a sequence up to the longest one: what it adds up over a row depends on the others.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() not in (2, 3):
            raise ValueError(f"{name} has shape {list(x.shape)}; expected [total, D] or [total, heads, D]")
    offsets_q = _offsets("cu_seqlens_q", cu_seqlens_q, q)
    offsets_k = _offsets("cu_seqlens_k", cu_seqlens_k, k) if cu_seqlens_k is not None else offsets_q
    if not len(k) == len(v) or (cu_seqlens_k is None and len(q) != len(k)):
        raise ValueError(
            f"q has {len(q)} rows, k {len(k)} and v {len(v)}; every key needs a value, and keys of other lengths than "
            "the queries' need cu_seqlens_k"
        )
    pairs = (q, offsets_q), (k, offsets_k), (v, offsets_k)
    batch = JaggedBatch(*(Sequences(x, offsets, offsets.diff()) for x, offsets in pairs))
    z, w = attend_sequences(batch, weights=weights, **options)
    return z if w is None else (z, w)


def _offsets(name: str, cu_seqlens: Tensor, x: Tensor) -> Int[Tensor, " b_and_one"]:
    if cu_seqlens.dim() != 1 or not len(cu_seqlens) or cu_seqlens.is_floating_point() or cu_seqlens.is_complex():
        kind = f"{cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
        raise ValueError(f"{name} has the whole numbers 0, n_1, n_1 + n_2, …, one more than sequences; got {kind}")
    offsets = cu_seqlens.to(device=x.device, dtype=torch.int64)
    if readable(cu_seqlens):  # of a GPU too: the longest of them is read anyway, and a kernel would read past the end
        numbers = cu_seqlens.tolist()
        if numbers[0] or numbers[-1] != x.shape[0] or numbers != sorted(numbers):
            raise ValueError(
                f"{name} goes from 0 to the number of rows, {x.shape[0]}, and never down; got {numbers[:8]}"
            )
    return offsets


_MISSING = object()
_EXACT, _PROPORTIONAL = Exact(), Proportional()


def lookup(
    query: Any,
    table: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    *,
    energy: AnyEnergy = _EXACT,
    normalize: AnyNormalizer = _PROPORTIONAL,
    default: Any = _MISSING,
) -> Any:
    """z = Σ_j w_j v_j over the entries (k_j, v_j) of a table, w = normalize(energy(query, k_j)).

    With `Exact` energies, the default, this is a dictionary: keys and values may be anything, and a key that is not
    there raises KeyError or gives `default`. With any other energy keys and values are numbers or vectors, and the
    answer is the weighted average: `lookup(360, {300: 30, 400: 40}, energy=InverseDistance())` is 36.0.

    A table may be pairs (key, value), in which a key may occur more than once: its values are averaged, and with
    `normalize=Unnormalized()` added up.
    """
    entries = _entries(table)
    if not entries:
        raise ValueError("lookup needs a table with at least one entry, got an empty one")
    labelled = getattr(energy, "matches_labels", False)
    keys, values = [key for key, _ in entries], [value for _, value in entries]
    try:
        labels = list(dict.fromkeys((*keys, query))) if labelled else None
    except TypeError:
        labels = None  # tensors and lists are not hashable; they are compared as vectors
    if labels is not None:
        # Labels are only equal or different, so each becomes a number of its own.
        number = {label: float(at) for at, label in enumerate(labels)}
        q, k = _vectors([number[query]]), _vectors([number[key] for key in keys])
    elif any(isinstance(x, str) for x in (query, *keys)):
        raise TypeError(f"{type(energy).__name__} compares numbers; words can only be looked up with Exact()")
    else:
        q, k = _vectors([query]), _vectors(keys)
    # With one-hot values the output is the weights: the same formula, for values of any kind.
    one_hot = torch.eye(len(keys), dtype=torch.float64)
    weights = attend(q, k, one_hot, energy=energy, normalize=normalize)[0]  # [T_k]
    if not weights.any():
        if default is _MISSING:
            raise KeyError(f"{query!r} matches no key of the table; pass default=… to get that instead")
        return default
    if labelled and int((weights == weights.max()).sum()) == 1:
        return values[int(weights.argmax())]  # one key: its value, which may be anything
    # Entries that weigh nothing have no part in it: they may be no numbers, or infinite, and 0 · ∞ is NaN.
    counted = [at for at, weight in enumerate(weights.tolist()) if weight != 0]
    values, weights = [values[at] for at in counted], weights[counted]
    try:
        answer = weights @ _vectors(values)
    except (TypeError, ValueError):
        cause, hint = f"{type(energy).__name__} averages values", "; use Exact()"
        if labelled:
            cause, hint = f"{query!r} matches several keys, whose values are added up", ""
        raise TypeError(f"{cause}, and these are not numbers: {values[0]!r}{hint}") from None
    return float(answer) if answer.numel() == 1 else answer


def _entries(table: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    pairs = getattr(table, "items", None)
    if pairs is not None:
        return list(pairs())
    entries = list(table)
    for entry in entries:
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise TypeError(f"lookup takes a dictionary or pairs (key, value); got an entry {entry!r}")
    return [(key, value) for key, value in entries]


def _vectors(items: list[Any]) -> torch.Tensor:
    """[T, D] in float64, from numbers or equally long vectors."""
    rows = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in items])
    return rows[:, None] if rows.dim() == 1 else rows
