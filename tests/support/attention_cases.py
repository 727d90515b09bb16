"""What the tests go through: one of each energy, normalizer and mask, and the error budget they are held to."""

from __future__ import annotations

import torch
from torch import Tensor

import regard as r


def inputs(
    batch: tuple[int, ...] = (2, 3),
    queries: int = 5,
    keys: int = 7,
    width: int = 4,
    values: int = 6,
    *,
    dtype: torch.dtype = torch.float64,
    grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fresh random q, k and v."""
    sizes = ((queries, width), (keys, width), (keys, values))
    q, k, v = (torch.randn(*batch, *size, dtype=dtype, requires_grad=grad) for size in sizes)
    return q, k, v


def city_block(q: Tensor, k: Tensor) -> Tensor:
    """A user's own energy, in the three lines the documentation promises."""
    apart = q[..., :, None, :] - k[..., None, :, :]
    return -apart.abs().sum(-1)


def energies(width: int = 4, heads: int = 3, queries: int = 5, keys: int = 7) -> dict[str, object]:
    return {
        "dot": r.Dot(),
        "scaled": r.ScaledDot(),
        "own scale": r.ScaledDot(scale=0.3),
        "cosine": r.Cosine(),
        "gaussian": r.Gaussian(0.7),
        "general": r.General(width, width).double(),
        "concat": r.Concat(width, width, 6).double(),
        "additive": r.Additive(width, width, 6).double(),
        "additive with bias": r.Additive(width, width, 6, bias=True).double(),
        "modified": r.Modified(
            r.ScaledDot(),
            r.SoftCap(2.0),
            r.Alibi(heads),
            r.Bias(torch.randn(heads, queries, keys, dtype=torch.float64)),
        ),
        "biased": r.Modified(r.Dot(), r.Bias(torch.randn(1, keys, dtype=torch.float64)), r.Alibi(heads)),
        "modified additive": r.Modified(r.Additive(width, width, 6).double(), r.SoftCap(1.0)),
        "rotary": r.Rotary(layout="interleaved"),
        "own function": city_block,
    }


POSITIVE: dict[str, object] = {
    "exact": r.Exact(),
    "inverse distance": r.InverseDistance(),
    "own positive": lambda q, k: torch.exp(city_block(q, k)),
}
"""Energies that are ≥ 0, which is what `Proportional` divides by their sum."""

NORMALIZERS: dict[str, r.Normalizer] = {
    "softmax": r.Softmax(),
    "cool softmax": r.Softmax(0.5),
    "sparsemax": r.Sparsemax(),
    "entmax 1.5": r.Entmax(1.5),
    "entmax 1.2": r.Entmax(1.2),
    "entmax 3": r.Entmax(3.0),
    "hard": r.Hard(),
}


def masks(queries: int = 5, keys: int = 7) -> dict[str, r.Mask | None]:
    """Masks for a leading shape [2, 3]; several leave some query with no key at all."""
    return {
        "none": None,
        "causal": r.causal(),
        "causal with offset": r.causal(keys - queries),
        "causal by corner": r.causal("bottom-right"),
        "causal with an offset per entry": r.causal([-1, 4]),
        "padding": r.padding([keys, 3]),
        "padded queries": r.padding([keys, 3], queries=[2, queries]),
        "empty entry": r.padding([0, keys - 1]),
        "causal and padding": r.causal() & r.padding([2, 4]),
        "window": r.window(2),
        "causal window": r.causal(1) & r.window(3, offset=1),
        "centered window": r.window(2, center=torch.rand(2, 1, queries) * keys),
        "prefix": r.causal() | r.prefix([2, 0]),
        "documents": r.documents(torch.arange(queries) // 2, torch.arange(keys) // 3),
        "documents per entry": r.documents(
            torch.arange(queries).repeat(2, 1) // 2, torch.stack([torch.arange(keys) // 3, torch.arange(keys) // 2])
        ),
        "unordered documents": r.documents(torch.arange(queries) % 2, torch.arange(keys) % 3),
        "not": ~r.window(2),
        "mask_mod": r.mask_mod(lambda b, h, i, j: (i + j + b) % (h + 2) != 0),
        "dense": r.dense(torch.rand(2, 1, queries, keys) > 0.4),
        "dense column": r.dense(torch.rand(queries, 1) > 0.4),
    }


def within_budget(ours: Tensor, theirs: Tensor, truth: Tensor, dtype: torch.dtype, kernel: float = 1.0) -> None:
    """Ours may err twice as much as PyTorch's own computation in the same precision, plus rounding.

    `kernel` multiplies the error of `theirs` where it is the formula's and PyTorch's own kernel errs more.
    """
    assert torch.isfinite(ours).all()
    truth = truth.double()
    rounding = 4 * torch.finfo(dtype).eps * truth.abs().max()
    allowed = 2 * kernel * (theirs.double() - truth).abs().max() + rounding
    error = (ours.double() - truth).abs().max()
    assert error <= allowed, f"the error {error:.2e} exceeds {allowed:.2e}"


def pooled_cells(dense: Tensor, rows: int, cols: int, pool: str, *, by_size: bool = False) -> Tensor:
    """A matrix pooled to at most rows × cols cells; "max" is the largest entry, or `by_size` that of largest |x|."""
    queries, keys = dense.shape[-2:]
    rows, cols = min(rows, queries), min(cols, keys)
    if (rows, cols) == (queries, keys):
        return dense
    out = dense.new_empty(*dense.shape[:-2], rows, cols)
    for a in range(rows):
        for b in range(cols):
            height = slice(a * queries // rows, (a + 1) * queries // rows)
            cell = dense[..., height, b * keys // cols : (b + 1) * keys // cols].flatten(-2)
            order = cell.abs() if by_size else cell
            largest = cell.gather(-1, order.argmax(-1, keepdim=True)).squeeze(-1)
            out[..., a, b] = largest if pool == "max" else cell.mean(-1)
    return out
