"""attend(): z = normalize(energy(q, k)) · v, for every energy, normalizer and mask, on the fastest exact kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from .backends import reference
from .energies.energies import ScaledDot
from .jagged_sequences import JaggedBatch
from .listeners import listeners, notify
from .normalizers.softmax import Softmax
from .request import make_request
from .select_backend import Plan, make_plan, select
from .torch_transforms import differentiated_once
from .weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float
    from torch import Tensor

    from .energies.energies import Energy
    from .energies.learned_energies import LearnedEnergy
    from .energies.modifiers import Modified
    from .masks.mask import Mask, MaskFunction
    from .normalizers.normalizer import Normalizer
    from .select_backend import Backend

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
