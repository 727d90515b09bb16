"""What a recurrent loop computes at every step, with the gradients of its matrices and keys computed once, at its end.

Step t of a recurrence computes y_t = x_t Mᵀ. Autograd would compute one small product g_tᵀ x_t per step and add it to
the gradient: T small products and T additions of a matrix as large as M. The sum over t is one product,

    dM = Σ_t g_tᵀ x_t = [g_1; …; g_T]ᵀ [x_1; …; x_T],

so the backward pass of a step only stores x_t and g_t, and the product is computed once, after all steps. The same
holds for keys and values that every step attends to, with one matrix per sentence.

On a GPU the energies of a step and the gates of a cell are one kernel each (`loop_triton.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...attention.blocks import exact, forward_mode, plain, transformed
from ...attention.kernels import has_triton
from .packed import pack, pays, product

if TYPE_CHECKING:
    from jaxtyping import Float


class BackwardPass:
    """Base of what is collected in one backward pass; what an interrupted pass left is dropped by the next."""

    _task = -1

    def is_new_pass(self) -> bool:
        """Whether this is another pass than at the last call."""
        last, self._task = self._task, torch._C._current_graph_task_id()
        return last != self._task


def will_collect(ctx: Any) -> bool:
    """Whether this backward pass will reach the collecting node, that of the second input.

    It does not where only the gradient of an activation is computed, as for saliency; pairs stored then would be
    counted twice by the next pass. Only the engine knows (`needs_input_grad` does not); PyTorch's own
    `register_multi_grad_hook` asks it the same way.
    """
    return torch._C._will_engine_execute_node(ctx.next_functions[1][0])


# Products


class GradientPairs(BackwardPass):
    """The pairs (x_t, g_t) of the steps so far."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Tensor, g: Tensor) -> None:
        if self.is_new_pass():
            self._pairs = []
        self._pairs.append((x, g))

    def take(self) -> list[tuple[Tensor, Tensor]]:
        pairs = [] if self.is_new_pass() else self._pairs
        self._pairs = []
        return pairs


class _CollectPairs(torch.autograd.Function):
    """The node between the matrix and its uses: autograd visits it after the backward of every step."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, pairs: GradientPairs) -> Tensor:
        ctx.pairs, ctx.like, ctx.biased = pairs, matrix.new_empty(0), bias is not None
        ctx.shape = matrix.shape
        return matrix.new_empty(0)  # an edge of the graph without data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        pairs = ctx.pairs.take()
        if not pairs:  # no step contributed to the loss
            return ctx.like.new_zeros(ctx.shape), None, None
        x = torch.cat([x for x, _ in pairs], dim=-2)  # [..., steps · rows, in]
        g = torch.cat([g for _, g in pairs], dim=-2)  # [..., steps · rows, out]
        with exact(g.device):
            return g.mT @ x, g.sum(-2) if ctx.biased else None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, matrix: Tensor, bias: Tensor | None, pairs: GradientPairs) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.pairs = pairs
        return _product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, matrix = ctx.saved_tensors
        if will_collect(ctx):
            ctx.pairs.add(x, g)
        with exact(g.device):
            return (g @ matrix if ctx.needs_input_grad[0] else None), g.new_empty(0), None, None, None


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """In the dtype of the matrix: it is chosen once before the loop, not by autocast at each step."""
    with exact(x.device):
        if matrix.dim() == 2:
            return torch.nn.functional.linear(x, matrix, bias)
        return x @ matrix.mT if bias is None else torch.baddbmm(bias[..., None, :], x, matrix.mT)


class DeferredLinear:
    """x ↦ x Mᵀ (+ b) for one loop: make it before the loop, call it at every step."""

    def __init__(self, matrix: Float[Tensor, "*batch out in"], bias: Float[Tensor, "*batch out"] | None = None) -> None:
        self.matrix, self.bias = matrix.detach(), None if bias is None else bias.detach()
        self._pairs = GradientPairs()
        learns = torch.is_grad_enabled() and (matrix.requires_grad or (bias is not None and bias.requires_grad))
        self._edge = _CollectPairs.apply(matrix, bias, self._pairs) if learns else None
        self._packed: Tensor | None = None  # for a loop without gradients, from its second step on
        self._has_run = False

    def __call__(self, x: Float[Tensor, "*batch rows in"]) -> Float[Tensor, "*batch rows out"]:
        x = x.to(self.matrix.dtype)
        if not torch.is_grad_enabled() and plain(x):
            faster = self._has_run and x.dim() == 2 and pays(len(x), self.matrix)
            self._has_run = True
            if faster and self._packed is None:
                self._packed = pack(self.matrix)
            if faster and self._packed is not None:
                return product(x, self._packed, self.bias)
        if self._edge is None:
            return _product(x, self.matrix, self.bias)
        y: Tensor = _Product.apply(x, self._edge, self.matrix, self.bias, self._pairs)
        return y


# Additive energies


class AdditiveGradients(BackwardPass):
    """Gradients of keys and weight, summed over the steps of one backward pass. `keys` lacks the factor w."""

    def __init__(self, keys: Float[Tensor, "rows room d"]) -> None:
        self.keys = keys
        self._sums: tuple[Tensor, ...] = ()

    def sums(self) -> tuple[Tensor, ...]:
        """Of the keys [rows, room, d], and of the weight [rows, d], a part for each row of the batch."""
        if self.is_new_pass() or not self._sums:
            self._sums = self.zeros()
        return self._sums

    def zeros(self) -> tuple[Tensor, ...]:
        wide = torch.promote_types(self.keys.dtype, torch.float32)
        return torch.zeros_like(self.keys, dtype=wide), torch.zeros_like(self.keys[:, 0], dtype=wide)

    def take(self) -> tuple[Tensor, ...]:
        """The sums; their memory is released."""
        sums, self._sums = self.sums(), ()
        return sums


class _CollectSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, weight: Tensor, gradients: AdditiveGradients) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.gradients, ctx.dtype = gradients, keys.dtype
        return keys.new_empty(0)  # an edge of the graph without data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        into_keys, into_weight = ctx.gradients.take()
        return (into_keys * weight).to(ctx.dtype), into_weight.sum(0).to(weight.dtype), None


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, edge: Tensor, keys: Tensor, weight: Tensor, gradients: AdditiveGradients
    ) -> Tensor:
        e, hidden = step_energies(q, keys, weight)
        ctx.gradients = gradients
        ctx.save_for_backward(q, keys, weight, hidden)
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        q, keys, weight, hidden = ctx.saved_tensors
        # A pass that computes the gradient of q alone must not add to the keys' sums.
        gradients = ctx.gradients if will_collect(ctx) else AdditiveGradients(keys)
        return add_step_gradients(g, q, keys, weight, hidden, *gradients.sums()), g.new_empty(0), None, None, None


class LoopAdditive:
    """q ↦ w · tanh(q + k_j) for one loop: make it before the loop, call it at every step.

    `attend` returns the gradient of the keys at every call, and a loop of T steps would write and add T of them. Here
    each step adds to sums that the loop keeps.
    """

    def __init__(self, keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]) -> None:
        if keys.device.type == "cpu":  # sums over steps and places lose digits in half precision
            wide = torch.promote_types(keys.dtype, torch.float32)
            keys, weight = keys.to(wide), weight.to(wide)
        self.keys, self.weight = keys.detach(), weight.detach()
        self._gradients = AdditiveGradients(self.keys)
        learns = torch.is_grad_enabled() and (keys.requires_grad or weight.requires_grad)
        self._edge = _CollectSums.apply(keys, weight, self._gradients) if learns else None

    def __call__(self, q: Float[Tensor, "batch queries d"]) -> Float[Tensor, "batch queries places"]:
        q = q.to(self.keys.dtype)
        if self._edge is None:
            return step_energies(q, self.keys, self.weight)[0]
        e: Tensor = _Energies.apply(q, self._edge, self.keys, self.weight, self._gradients)
        return e


def _tanh_(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh(x) = 2 σ(2x) − 1, in place: on a CPU PyTorch's sigmoid takes a sixth of the time of its tanh.

    The error is about that of one rounding of a number between 1 and 2. Where autograd records, it is PyTorch's own.
    """
    if x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def step_energies(
    q: Float[Tensor, "batch queries d"], keys: Float[Tensor, "batch places d"], weight: Float[Tensor, "d"]
) -> tuple[Float[Tensor, "batch queries places"], Float[Tensor, "batch queries places d"] | None]:
    """The energies, and tanh(q_i + k_j) where the backward pass can use it; None where a kernel computes it again."""
    if q.shape[1] == 1 and has_triton(q):
        from .loop_triton import energies

        return energies(q[:, 0], keys, weight)[:, None], None
    hidden = _tanh_(q[:, :, None] + keys[:, None])
    with exact(q.device):
        return hidden @ weight, hidden


def add_step_gradients(
    g: Float[Tensor, "batch queries places"],
    q: Float[Tensor, "batch queries d"],
    keys: Float[Tensor, "batch places d"],
    weight: Float[Tensor, "d"],
    hidden: Float[Tensor, "batch queries places d"] | None,
    sum_keys: Float[Tensor, "batch places d"],
    sum_weight: Float[Tensor, "batch d"],
) -> Float[Tensor, "batch queries d"]:
    """The gradient of q. Adds Σ_i g_ij (1 − tanh²) to `sum_keys`, which lacks the factor w, and Σ_ij g_ij tanh to
    `sum_weight`, whose sum over the batch is the gradient of w."""
    if q.shape[1] == 1 and has_triton(q):
        from .loop_triton import add_gradients

        return add_gradients(g[:, 0], q[:, 0], keys, weight, sum_keys, sum_weight)[:, None]
    if hidden is None:
        hidden = _tanh_(q[:, :, None] + keys[:, None])
    with exact(g.device):
        sum_weight[:1].add_(g.reshape(1, -1) @ hidden.flatten(0, 2))
    into: Tensor = torch.ops.aten.tanh_backward(g[..., None], hidden)  # [batch, queries, places, d]
    sum_keys.add_(into[:, 0] if q.shape[1] == 1 else into.sum(1))
    return into.sum(2) * weight


# Gates, in the order of PyTorch's `nn.GRU` and `nn.LSTM`


def gru(
    inputs: Float[Tensor, "*batch 3*width"],
    recurrent: Float[Tensor, "*batch 3*width"],
    h: Float[Tensor, "*batch width"],
) -> Float[Tensor, "*batch width"]:
    """r, z = σ(inputs + recurrent);  n = tanh(inputs_n + r ⊙ recurrent_n);  h' = (1 − z) ⊙ n + z ⊙ h  (Cho 2014).

    `inputs` is W x + b and `recurrent` is U h + b'. Both hold r, z and n, in this order.
    """
    if has_triton(h) and not (transformed() or forward_mode()):
        new: Tensor = _TritonGRU.apply(inputs, recurrent, h)
        return new
    width = h.shape[-1]
    inputs, recurrent = inputs.to(h.dtype), recurrent.to(h.dtype)
    r, z = torch.sigmoid(inputs[..., : 2 * width] + recurrent[..., : 2 * width]).chunk(2, dim=-1)
    n = torch.tanh(torch.addcmul(inputs[..., 2 * width :], r, recurrent[..., 2 * width :]))
    return torch.lerp(n, h, z)  # n + z (h − n)


def lstm(
    total: Float[Tensor, "*batch 4*width"], c: Float[Tensor, "*batch width"]
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """i, f, o = σ(·);  g = tanh(·);  c' = f ⊙ c + i ⊙ g;  h' = o ⊙ tanh(c')  (Hochreiter & Schmidhuber 1997).

    `total` = W x + U h + b holds i, f, g and o, in this order. Returns (h', c').
    """
    if has_triton(c) and not (transformed() or forward_mode()):
        h, new = _TritonLSTM.apply(total, c)
        return h, new
    i, f, g, o = total.to(c.dtype).chunk(4, dim=-1)
    new = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(new), new


class _TritonGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
        from .loop_triton import gru_forward

        new, saved = gru_forward(inputs, recurrent, h)
        ctx.save_for_backward(*saved)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from .loop_triton import gru_backward

        return gru_backward(g, *ctx.saved_tensors)


class _TritonLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        from .loop_triton import lstm_forward

        h, new, saved = lstm_forward(total, c)
        ctx.save_for_backward(*saved)
        return h, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gh: Tensor, gc: Tensor) -> tuple[Tensor, Tensor]:
        from .loop_triton import lstm_backward

        return lstm_backward(gh, gc, *ctx.saved_tensors)
