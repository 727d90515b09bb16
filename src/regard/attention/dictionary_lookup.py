"""Look-up: attention as a dictionary. The energy decides how well a query matches each key of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .attend import attend
from .energies.energies import Exact
from .normalizers.proportional import Proportional

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .attend import AnyEnergy, AnyNormalizer

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
