"""Energies that learn: General, Concat, Additive. Each is an `nn.Module`, usable alone and by `attend`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from .energy_forms import DotForm, EnergyForm, TanhForm
from .float_linear import FloatLinear

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class LearnedEnergy(nn.Module):
    """An energy with parameters. Subclasses give `split`; calling the module is then the formula."""

    dim_q: int
    dim_k: int

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        raise NotImplementedError

    @property
    def query_matrix(self) -> Float[Tensor, "d dim_q"]:
        """The matrix that projects queries, for a loop that multiplies with several matrices at once."""
        raise NotImplementedError

    def check(self, width_q: int, width_k: int) -> None:
        if (width_q, width_k) != (self.dim_q, self.dim_k):
            raise ValueError(
                f"{type(self).__name__} was made for queries {self.dim_q} wide and keys {self.dim_k} wide; "
                f"given queries {width_q} wide and keys {width_k} wide"
            )

    def forward(
        self, q: Float[Tensor, "*batch q d_q"], k: Float[Tensor, "*batch k d_k"]
    ) -> Float[Tensor, "*batch q k"]:
        a, b, form = self.split(q, k)
        return form(a, b)


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Uniform in ±1/√fan_in, as `nn.Linear` starts out."""
    bound = 1 / math.sqrt(max(1, fan_in))
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class General(LearnedEnergy):
    """e_ij = q_iᵀ W k_j (Luong, Pham & Manning 2015, "general")."""

    def __init__(self, dim_q: int, dim_k: int) -> None:
        super().__init__()
        self.dim_q, self.dim_k = dim_q, dim_k
        self.weight = _uniform(dim_q, dim_k, fan_in=dim_q)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q @ self.weight.to(q.dtype), k, DotForm()

    @property
    def query_matrix(self) -> Float[Tensor, "d dim_q"]:
        return self.weight.mT

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}"


class Additive(LearnedEnergy):
    """e_ij = w · tanh(W q_i + U k_j) (Bahdanau, Cho & Bengio 2015, appendix A.1.2).

    With `bias` the sum inside the tanh also has a learned constant.
    """

    def __init__(self, dim_q: int, dim_k: int, hidden: int, *, bias: bool = False) -> None:
        super().__init__()
        self.dim_q, self.dim_k, self.hidden = dim_q, dim_k, hidden
        self.query = FloatLinear(dim_q, hidden, bias=bias)
        self.key = FloatLinear(dim_k, hidden, bias=False)
        self.weight = _uniform(hidden, fan_in=hidden)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        bias = None if self.query.bias is None else self.query.bias.to(q.dtype)
        a = nn.functional.linear(q, self.query.weight.to(q.dtype), bias)
        b = nn.functional.linear(k, self.key.weight.to(k.dtype))
        return a, b, TanhForm(self.weight)

    @property
    def query_matrix(self) -> Float[Tensor, "d dim_q"]:
        return self.query.weight

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}, hidden={self.hidden}"


class Concat(LearnedEnergy):
    """e_ij = w · tanh(W [q_i; k_j]) (Luong, Pham & Manning 2015, "concat").

    W [q; k] = W_q q + W_k k, so nothing is ever concatenated: the two halves of W are applied once per row.
    """

    def __init__(self, dim_q: int, dim_k: int, hidden: int) -> None:
        super().__init__()
        self.dim_q, self.dim_k, self.hidden = dim_q, dim_k, hidden
        self.joint = FloatLinear(dim_q + dim_k, hidden, bias=False)
        self.weight = _uniform(hidden, fan_in=hidden)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        for_q, for_k = self.joint.weight.split([self.dim_q, self.dim_k], dim=1)
        a = nn.functional.linear(q, for_q.to(q.dtype))
        b = nn.functional.linear(k, for_k.to(k.dtype))
        return a, b, TanhForm(self.weight)

    @property
    def query_matrix(self) -> Float[Tensor, "d dim_q"]:
        return self.joint.weight[:, : self.dim_q]

    def extra_repr(self) -> str:
        return f"{self.dim_q}, {self.dim_k}, hidden={self.hidden}"
