"""attend: z = normalize(energy(q, k)) · v on the fastest exact backend, and look-up in a dictionary.

attend ── check ──▶ EnergyMatrix, Normalizer, v ──▶ select ──▶ backend.run ──▶ z, Weights
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from .backends import fused, reference, sdpa
from .energies import Exact, ScaledDot
from .energy_matrix import EnergyMatrix, clear_hidden_keys, split
from .masks import Blocks, Dense, Mask, MaskMod
from .modifiers import Modifier
from .normalizers import FunctionNormalizer, Normalizer, Proportional, Softmax
from .parts import AUTOCAST, check_device, differentiated_once, no_kernel, plain, takes, traced
from .weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from jaxtyping import Bool, Float

    from .energies import Energy, LearnedEnergy
    from .masks import MaskFunction
    from .modifiers import Modified

    AnyEnergy = Energy | LearnedEnergy | Modified | Callable[[Tensor, Tensor], Tensor]

    AnyNormalizer = Normalizer | Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]

    AnyMask = Mask | Bool[Tensor, "..."] | MaskFunction | None

    class Options(TypedDict, total=False):
        energy: AnyEnergy
        normalize: AnyNormalizer
        mask: AnyMask
        dropout: float
        backend: Backend

    Listener = Callable[[EnergyMatrix, Normalizer, Tensor, Tensor, Tensor | None, float, bool], Tensor]
    """Gets energies, normalizer, values, output, row state and dropout of a call, and whether the caller goes on with
    the output that it returns."""

Backend = Literal["auto", "reference", "sdpa", "flex", "fused"]

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
    mask: AnyMask = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    weights: bool = False,
) -> Tensor | tuple[Tensor, Weights]:
    """z_i = Σ_j w_ij v_j with w_i = normalize(energy(q_i, k_·)) over the keys the mask lets query i see.

    q [..., T_q, D_q], k [..., T_k, D_k], v [..., T_k, D_v] → [..., T_q, D_v]. Leading dimensions broadcast; with
    [B, heads, T, D], fewer key/value heads than query heads are shared among them (grouped-query attention). One query
    may be a vector q [D]: then the output is [..., D_v], and the weights are [..., T_k].

    Sequences of different lengths lie in one row with `mask=causal() & documents(ids)`, or are padded with `padding`.

    - `energy`: `ScaledDot()`, `Additive(…)`, …, or any function of (q, k) whose entry (i, j) depends on q_i and k_j.
    - `normalize`: `Softmax()`, `Proportional()`, `Sparsemax()`, `Entmax()`, `Hard()`, `Sigmoid()`, `Softpick()`,
      `StickBreaking()`, `Unnormalized()`, or any function of (energies) or (energies, mask) that gives weights along
      the last dimension. Without `mask` it sees −10³⁰ for masked keys, so a function that adds energies up needs the
      mask.
    - `mask`: `causal() & padding(lengths)`, …, a boolean tensor, True where a query may see a key, or FlexAttention's
      `mask_mod`, a function of (b, h, q_idx, kv_idx), or BlockMask. A query that may see none gets zeros. Keys and
      values that no query sees count as zeros, so padding may hold NaN and ∞; in a key that some queries see they may
      reach others. (A `mask_mod` is not asked which these keys are, nor two masks that hide one only together.)
    - `dropout`: the share of weights dropped, whenever it is not zero (pass 0 in evaluation).
    - `backend`: "auto" selects the fastest that is exact for the request (`explain` says which and why); a name
      selects that backend, or raises. "reference", the formula, has second derivatives and runs inside torch.func
      (vmap, jvp, …); the others are differentiated once, and backward.
    - `weights=True` also returns `Weights`, which computes any part or statistic of w (before dropout) from q and k.
    """
    if energy is _SCALED_DOT and normalize is _SOFTMAX and backend == "auto" and not (dropout or weights or listeners):
        done = _directly(q, k, v, mask)
        if done is not None:
            return done
    energies, normalize, v, vector = check(q, k, v, energy, normalize, mask, dropout)
    name = select(backend, energies, normalize, v, dropout)
    z, state = _module(name).run(energies, normalize, v, dropout, weights)
    if name != "reference":
        z = differentiated_once(z)
    if listeners:
        z = notify(energies, normalize, v, z, state, dropout)
    if vector:
        z = z.squeeze(-2)
    return (z, Weights(energies, normalize, state, vector=vector)) if weights else z


FEW = 1 << 14
"""Energies of one matrix up to which the dense form of a mask is kept for the next call."""


def _directly(q: Tensor, k: Tensor, v: Tensor, mask: AnyMask) -> Tensor | None:
    """PyTorch's kernel for tensors on a CPU that need no more than these checks; None for all others.

    A result that is not finite is computed again: keys that no query sees may hold NaN, and count as zeros.
    """
    if not (type(q) is type(k) is type(v) is Tensor and q.is_cpu and k.is_cpu and v.is_cpu and plain(q)):
        return None
    shape, keys = q.shape, k.shape
    if len(shape) != 4 or keys != v.shape or shape[:2] != keys[:2] or shape[3] != keys[3] or q.is_nested:
        return None
    if not (q.dtype == k.dtype == v.dtype and q.dtype in _FLOATS) or torch.is_autocast_enabled("cpu"):
        return None
    if (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)) or no_kernel() is not None:
        return None
    if mask is None:
        return scaled_dot_product_attention(q, k, v)
    if not isinstance(mask, Mask) or shape[2] * keys[2] > FEW:
        return None
    if mask.is_causal:
        z = scaled_dot_product_attention(q, k, v, None, 0.0, True)
    else:
        seen = mask.kept_dense((shape[0], shape[1]), shape[2], keys[2])
        if seen is None:
            return None
        z = scaled_dot_product_attention(q, k, v, seen)
    total = float(z.sum())
    return z if total - total == 0 else None


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    energy: AnyEnergy,
    normalize: AnyNormalizer,
    mask: AnyMask,
    dropout: float = 0.0,
) -> tuple[EnergyMatrix, Normalizer, Tensor, bool]:
    """The energies, the normalizer and the values of a call, and whether its query was one vector.

    Raises for all that shapes, types and devices can tell.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        types = ", ".join(f"{n} is {type(x).__name__}" for n, x in (("q", q), ("k", k), ("v", v)))
        raise TypeError(f"attend takes tensors: {types}")
    if q.is_nested or k.is_nested or v.is_nested:
        raise TypeError(
            "attend takes no nested tensors; pad them and use mask=padding(lengths), or put all sequences in one row "
            "with mask=documents(ids)"
        )
    if q.device.type in AUTOCAST and torch.is_autocast_enabled(q.device.type):
        kind = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(kind) if x.dtype in _LOWERED else x for x in (q, k, v))
    if not (q.dtype == k.dtype == v.dtype and q.dtype in _FLOATS):
        types = f"q is {q.dtype}, k is {k.dtype}, v is {v.dtype}"
        if not all(x.dtype in _FLOATS for x in (q, k, v)):
            raise TypeError(f"attend needs float16, bfloat16, float32 or float64: {types}. Convert with .float()")
        raise TypeError(f"attend needs q, k and v of one dtype: {types}")
    if not q.device == k.device == v.device:
        raise ValueError(f"attend needs q, k and v on one device: q is on {q.device}, k on {k.device}, v on {v.device}")
    vector = q.dim() == 1 and k.dim() > 1 and v.dim() > 1
    if vector:
        q = q[None]
    if q.dim() < 2 or k.dim() < 2 or v.dim() < 2:
        raise ValueError(f"attend needs at least [T, D]: {_shapes(q, k, v)}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"every key needs a value: k has length {k.shape[-2]}, v has length {v.shape[-2]}; {_shapes(q, k, v)}"
        )
    batch, groups = _batch(q, k, v)
    if isinstance(energy, type) or not callable(energy):
        raise TypeError(
            f"energy is {_described(energy)}; expected an energy such as ScaledDot() or a function of (q, k)"
        )
    if isinstance(energy, Modifier):
        raise TypeError(f"{energy!r} modifies an energy; wrap one: Modified(ScaledDot(), {type(energy).__name__}(…))")
    check_widths = getattr(energy, "check", None)
    if check_widths is not None:
        check_widths(q.shape[-1], k.shape[-1])
    if isinstance(energy, nn.Module):
        for parameter in energy.parameters():
            if parameter.device != q.device:
                check_device(f"{type(energy).__name__}'s parameters", parameter, q.device)
    if not isinstance(normalize, Normalizer):
        normalize = _function_normalizer(normalize)
    normalize.check(batch, q.device)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is a probability, 0 ≤ dropout < 1; got {dropout}")
    if isinstance(mask, Tensor):
        mask = Dense(mask)
    elif (blocks := Blocks.of(mask)) is not None:
        mask = blocks
    elif callable(mask) and not isinstance(mask, Mask | type) and takes(mask, 4):
        mask = MaskMod(mask)
    if isinstance(mask, Mask):
        mask = mask.resolve(q.shape[-2], k.shape[-2])
        mask.check(batch, q.shape[-2], k.shape[-2])
    elif mask is not None:
        raise TypeError(
            f"mask is {_described(mask)}; expected a mask such as causal(), a boolean tensor, True where seen, or a "
            "function of (b, h, q_idx, kv_idx)"
        )
    modifiers = getattr(energy, "modifiers", ())
    for modifier in modifiers:
        modifier.check(batch, q.shape[-2], k.shape[-2])
    if mask is not None:
        # Before keys are projected: parameters get gradients from all of them.
        k, v = clear_hidden_keys(mask, batch, groups, q.shape[-2], k, v)
    a, b, form = split(energy, q, k)
    return EnergyMatrix(a, b, form, batch, modifiers, mask, groups), normalize, v, vector


_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})


def _batch(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[int, ...], int]:
    """The leading shape, and how many query heads share one key head."""
    lead_q, lead_k, lead_v = q.shape[:-2], k.shape[:-2], v.shape[:-2]
    if lead_q == lead_k == lead_v:
        return tuple(lead_q), 1
    groups = 1
    # Heads are dimension -3 of at least four: with three it is a batch, and a batch that differs is a mistake.
    if min(q.dim(), k.dim(), v.dim()) >= 4 and lead_k[-1] == lead_v[-1] and 1 < lead_k[-1] < lead_q[-1]:
        if lead_q[-1] % lead_k[-1]:
            raise ValueError(
                f"{lead_q[-1]} query heads cannot share {lead_k[-1]} key/value heads evenly; {_shapes(q, k, v)}"
            )
        groups = lead_q[-1] // lead_k[-1]
        lead_k = torch.Size((*lead_k[:-1], lead_q[-1]))
        lead_v = torch.Size((*lead_v[:-1], lead_q[-1]))
    try:
        return tuple(torch.broadcast_shapes(lead_q, lead_k, lead_v)), groups
    except RuntimeError:
        raise ValueError(
            f"the leading dimensions of q, k and v do not broadcast: {_shapes(q, k, v)}. To share key/value heads "
            "among more query heads, give [B, heads, T, D]"
        ) from None


def _function_normalizer(normalize: object) -> Normalizer:
    if isinstance(normalize, type) or not callable(normalize) or not (takes(normalize, 1) or takes(normalize, 2)):
        raise TypeError(
            f"normalize is {_described(normalize)}; expected a normalizer such as Softmax() or Sparsemax(), or a "
            "function of (energies) or (energies, mask)"
        )
    return FunctionNormalizer(normalize)


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return (
        f"given q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
        "expected q [..., T_q, D_q] or [D_q], k [..., T_k, D_k], v [..., T_k, D_v]"
    )


def _described(x: object) -> str:
    if isinstance(x, type):
        return f"the class {x.__name__}, not an instance of it"
    if isinstance(x, FunctionType):
        return f"the function {x.__name__} itself (call it: {x.__name__}(…))"
    return type(x).__name__


listeners: list[Listener] = []


def notify(
    energies: EnergyMatrix,
    normalize: Normalizer,
    v: Float[Tensor, "*batch k d_v"],
    output: Float[Tensor, "*batch q d_v"],
    state: Float[Tensor, "*batch q"] | None = None,
    dropout: float = 0.0,
    *,
    replaceable: bool = True,
) -> Float[Tensor, "*batch q d_v"]:
    """Tell every listener of a call and its result; not inside torch.compile and torch.func, which only trace.

    Returns the output, which a listener may have replaced. A caller that goes on with its own output says
    `replaceable=False`.
    """
    if listeners and not traced():
        for listener in tuple(listeners):
            output = listener(energies, normalize, v, output, state, dropout, replaceable)
    return output


def _module(name: str) -> ModuleType:
    """The backend of this name. FlexAttention is imported when first needed, because its import is slow."""
    if name == "flex":
        from .backends import flex

        return flex
    return {"reference": reference, "sdpa": sdpa, "fused": fused}[name]


def select(backend: str, energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str:
    """The name of the backend that computes this. One asked for by name is refused with the reason where it cannot."""
    if backend == "auto":
        return _fastest(energies, normalize, v, dropout)
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    reason: str | None = _module(backend).refusal(energies, normalize, v, dropout)
    if reason is not None:
        auto = _fastest(energies, normalize, v, dropout)
        raise ValueError(f'backend="{backend}" cannot do this: {reason}. backend="auto" would use "{auto}"')
    return backend


def _fastest(energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str:
    if energies.form.kernel == "dot":
        problem, on_gpu = (energies, normalize, v, dropout), energies.a.device.type == "cuda"
        if on_gpu and _closes_blocks(energies) and _module("flex").refusal(*problem) is None:
            return "flex"
        if sdpa.refusal(*problem) is None:
            return "sdpa"
        if on_gpu and _module("flex").refusal(*problem) is None:
            return "flex"
    elif sdpa.refusal(energies, normalize, v, dropout) is None:
        return "sdpa"
    return "reference" if _is_small(energies) or no_kernel() is not None else "fused"


def _is_small(energies: EnergyMatrix) -> bool:
    """Whether an additive energy's [T_q, T_k, D] tensor is small enough that building it is fastest.

    The limits are measured. Below them the set-up of our kernel takes longer than it saves, and with one or two
    queries the exponentials that it computes once per key are shared by too few queries.
    """
    if energies.form.kernel != "tanh":
        return False
    size = energies.count * energies.queries * energies.keys * energies.a.shape[-1]
    if energies.a.device.type == "cuda":
        return size <= 1 << 26
    return size <= 1 << 19 or (energies.queries <= 2 and size <= 1 << 24)


def _closes_blocks(energies: EnergyMatrix) -> bool:
    """Whether a structured mask closes blocks that FlexAttention skips, where SDPA would read a dense mask.

    Finding these blocks takes many kernel launches per call, too many for a short sequence.
    """
    if energies.queries * energies.keys < 1 << 20 or (energies.mask is None and not energies.modifiers):
        return False
    return not (energies.mask is not None and energies.mask.is_causal and not energies.modifiers)


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


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: AnyMask = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    weights: bool = False,
) -> Plan:
    """The backend that `attend` would run for the same arguments, the reason, and the reasons against the others."""
    energies, normalize, v, _ = check(q, k, v, energy, normalize, mask, dropout)
    problem = energies, normalize, v, dropout
    name, fastest = select(backend, *problem), _fastest(*problem)
    others = {}
    for other in ("sdpa", "flex", "fused", "reference"):
        if other == name:
            continue
        reason = _module(other).refusal(*problem)
        if reason is not None:
            others[other] = f"cannot: {reason}"
        else:
            others[other] = 'can, and is what "auto" selects' if other == fastest else _slower(other, energies)
    return Plan(name, _why(name, energies, normalize, v), others)


def _why(name: str, energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> str:
    where = energies.a.device.type
    if name == "sdpa":
        mask = energies.mask
        dense = f"the mask as a dense tensor of {energies.queries} × {energies.keys}"
        kind = "no mask" if mask is None else "its causal flag" if mask.is_causal else dense
        of = "dot products" if energies.form.kernel == "dot" else "distances, as products with one more column"
        return f"softmax over {of}: PyTorch's own kernel on {where}, with {kind}"
    if name == "flex":
        return f"softmax over modified dot products: FlexAttention on {where}, skipping masked blocks"
    if name == "fused":
        return fused.how(energies, normalize, v)
    small = "it is small: " if _is_small(energies) else ""
    return f"{small}the formula as written, with the whole [T_q, T_k] matrix in memory"


def _slower(name: str, energies: EnergyMatrix) -> str:
    if name == "reference":
        return "can, with the whole [T_q, T_k] matrix in memory"
    if name == "fused" and energies.mask is not None:
        return "can, without a dense mask or matrix"
    if name == "flex" and energies.a.device.type == "cpu":
        return "can, but uncompiled on CPU it holds the whole matrix"
    return "can, but no faster here"


def received(
    q: Float[Tensor, "*batch q d_q"],
    k: Float[Tensor, "*batch k d_k"],
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: AnyMask = None,
) -> Float[Tensor, "*batch k"]:
    """Σ_i w_ij, how much attention each key receives: what compression of a key/value cache asks for.

    Of queries and keys alone, in O(T) memory. `Weights` has this and the other statistics of a call of `attend`.
    """
    energies, normalize, _, _ = check(q, k, k, energy, normalize, mask)
    return Weights(energies, normalize).received()


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


def _vectors(items: list[Any]) -> Tensor:
    """[T, D] in float64, from numbers or equally long vectors."""
    rows = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in items])
    return rows[:, None] if rows.dim() == 1 else rows
