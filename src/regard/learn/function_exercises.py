"""The exercises of the course whose answer is a function; exercises.toml has the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .check import Function

if TYPE_CHECKING:
    from collections.abc import Callable

_draw = torch.Generator().manual_seed(3)
_SQUARE = torch.tensor([[0.5, -1.0], [2.0, 0.25]]), torch.tensor([[1.0, 0.5], [-0.5, 0.75]])


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_draw)


def _self_attention(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.T, dim=-1) @ x


def _by_columns(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v @ torch.softmax(k.T @ q / q.shape[0] ** 0.5, dim=0)


def _normalized(
    dim: int | None = -1, *, centred: bool = True, correction: int = 0, power: float = 0.5
) -> Callable[[torch.Tensor], torch.Tensor]:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        over = tuple(range(x.dim())) if dim is None else dim
        mean = x.mean(over, keepdim=True) if centred else torch.zeros(())
        variance = x.var(over, keepdim=True, correction=correction) if centred else x.square().mean(over, keepdim=True)
        return (x - mean) / (variance + 1e-5) ** power

    return normalize


FUNCTIONS = [
    Function(
        name="energy-dissimilar",
        chapter=3,
        question="Write f(q, K) that returns softmax weights [T] which prefer the keys with the smallest dot product. "
        "q is [D], K is [T, D].",
        right=lambda q, K: torch.softmax(-(K @ q), dim=0),
        reason="The sign of the energy is turned before the softmax, so the weights are positive and sum to one.",
        mistakes=[
            (
                lambda q, K: torch.softmax(K @ q, dim=0),
                "This prefers the similar keys: the energy needs the other sign.",
            ),
            (
                lambda q, K: 1 - torch.softmax(K @ q, dim=0),
                "1 − w prefers the dissimilar, but these numbers sum to T − 1. Change the energy, not the weights.",
            ),
            (lambda q, K: -(K @ q), "These are the energies. The weights are their softmax."),
        ],
        hint="One sign decides. Energies K @ q, then torch.softmax(…, dim=0).",
        inputs=[(_random(4), _random(5, 4)), (_random(2), _random(3, 2))],
    ),
    Function(
        name="energy-additive",
        chapter=3,
        question="Write f(q, K, W, U, w) for Bahdanau's energies e_j = w · tanh(W q + U k_j). q is [D_q], K [T, D_k], "
        "W [H, D_q], U [H, D_k], w [H]; the result is [T].",
        right=lambda q, K, W, U, w: torch.tanh(W @ q + K @ U.T) @ w,
        reason="Query and key are mapped to H hidden units, added, bent by tanh, and w makes one number of them.",
        mistakes=[
            (
                lambda q, K, W, U, w: (W @ q + K @ U.T) @ w,
                "The tanh is missing. The energy is then a sum of a part of q and a part of k: the query shifts all "
                "energies equally, and softmax ignores that.",
            ),
            (
                lambda q, K, W, U, w: torch.tanh((W @ q + K @ U.T) @ w),
                "The tanh is outside: it bends the finished number. It belongs to each hidden unit, before w.",
            ),
            (
                lambda q, K, W, U, w: torch.softmax(torch.tanh(W @ q + K @ U.T) @ w, dim=0),
                "These are the weights already. Only the energies were asked for.",
            ),
        ],
        hint="W @ q is [H], K @ U.T is [T, H]. Add, tanh, then the product with w.",
        inputs=[(_random(6), _random(5, 4), _random(8, 6), _random(8, 4), _random(8))],
    ),
    Function(
        name="self-attention-function",
        chapter=4,
        question="Write f(X) for self-attention with dot products and nothing learned: A_i = Σ_j a_ij x_j, a = "
        "softmax of x_i·x_j over j. X is [T, D], and so is the result. Use torch only.",
        right=_self_attention,
        reason="Row i of softmax(X Xᵀ) holds the weights of word i, and its product with X is the average.",
        mistakes=[
            (
                lambda x: torch.softmax(x @ x.T, dim=0) @ x,
                "The softmax runs over the queries (dim 0), so the rows do not sum to one. It must run over the keys.",
            ),
            (lambda x: x @ x.T @ x, "The softmax is missing: this is the sum of similarity times value."),
            (
                lambda x: torch.softmax(x @ x.T, dim=-1),
                "This is the attention matrix. The outputs are its product with X.",
            ),
            (
                lambda x: torch.softmax(x @ x.T / x.shape[-1] ** 0.5, dim=-1) @ x,
                "The energies were divided by √D. That comes in chapter 7; here the energy is the plain dot product.",
            ),
        ],
        hint="X @ X.T has all energies. Which dimension are the keys?",
        inputs=[(_random(5, 4),), (_random(3, 3),)],
    ),
    Function(
        name="kernel-matrix",
        chapter=5,
        question="With q = W_Qᵀ x and k = W_Kᵀ y, the energy q·k is xᵀ M y. Write f(W_Q, W_K) that returns M. Both "
        "matrices are [d, p].",
        right=lambda W_Q, W_K: W_Q @ W_K.T,
        reason="q·k = (W_Qᵀ x)ᵀ (W_Kᵀ y) = xᵀ W_Q W_Kᵀ y, a [d, d] matrix of rank at most p.",
        mistakes=[
            (
                lambda W_Q, W_K: W_K @ W_Q.T,
                "That is Mᵀ: the roles of query and key are swapped, which matters as M is not symmetric.",
            ),
            (
                lambda W_Q, W_K: W_Q.T @ W_K,
                "That is [p, p]. M stands between embeddings, so it is [d, d].",
            ),
            (lambda W_Q, W_K: W_Q @ W_Q.T, "That uses the query's matrix twice, and would be symmetric."),
        ],
        hint="Write q·k as qᵀ k and put both definitions in.",
        inputs=[(_random(5, 3), _random(5, 3)), (_random(4, 4), _random(4, 4))],
    ),
    Function(
        name="attention-by-columns",
        chapter=6,
        question="Vectors are columns: Q and K are [p, n], V is [r, n]. Write f(Q, K, V) for scaled dot-product "
        "attention; the result is [r, n], one column per query.",
        right=_by_columns,
        reason="Kᵀ Q has the keys down and the queries across. Its columns are normalized, and V sums over the keys.",
        mistakes=[
            (
                lambda q, k, v: v @ torch.softmax(q.T @ k / q.shape[0] ** 0.5, dim=1),
                "Qᵀ K has the queries down, but V must be multiplied by a matrix with the keys down: transpose it.",
            ),
            (
                lambda q, k, v: v @ torch.softmax(k.T @ q / q.shape[0] ** 0.5, dim=1),
                "The softmax runs over the queries. With Kᵀ Q the keys are dimension 0.",
            ),
            (
                lambda q, k, v: v @ torch.softmax(k.T @ q / q.shape[1] ** 0.5, dim=0),
                "The scale is √n, the root of the number of vectors. It must be √p, the root of their width.",
            ),
            (lambda q, k, v: v @ torch.softmax(k.T @ q, dim=0), "The scale 1/√p is missing."),
        ],
        hint="Transpose all three, use the formula by rows, and transpose the result.",
        inputs=[(_random(4, 6), _random(4, 6), _random(2, 6))],
    ),
    Function(
        name="layer-norm-function",
        chapter=11,
        question="Write f(x) for a layer norm with γ = 1, β = 0 and ε = 1e-5. x is [words, width]. Do not call "
        "PyTorch's.",
        right=_normalized(),
        reason="Mean and variance are those of one vector's components, and the variance divides by the width.",
        mistakes=[
            (
                _normalized(0),
                "Mean and variance were taken over the words. That mixes words; a layer norm takes each vector alone.",
            ),
            (_normalized(power=1.0), "Divide by the root of the variance. This divides by the variance itself."),
            (_normalized(centred=False), "The mean was not subtracted. This is RMSNorm, which some later models use."),
            (
                _normalized(correction=1),
                "The variance was divided by width − 1. LayerNorm divides by the width: var(…, correction=0).",
            ),
        ],
        hint="For each row: subtract its mean, divide by √(variance + 1e-5).",
        inputs=[(torch.tensor([[1.0, 2.0, 4.0, 9.0], [0.5, -3.0, 2.0, 1.0], [7.0, 5.0, 6.0, -2.0]]),)],
    ),
    Function(
        name="transformer-layer-norm",
        chapter=12,
        question="Write layer_norm(x) for x [tokens, width] without the learned g and b: every row gets mean 0 and "
        "variance 1. Divide by the root of (variance + 1e-5), where the variance divides by the width.",
        right=_normalized(),
        reason="Each token is normalized by itself, over its components.",
        mistakes=[
            (
                _normalized(0),
                "That normalizes each component over the tokens, as batch norm does. A token would depend on the "
                "others.",
            ),
            (_normalized(None), "That takes one mean and one variance over the whole matrix. Each row has its own."),
            (
                _normalized(correction=1),
                "That variance divides by width − 1 (PyTorch's default). Layer norm divides by the width.",
            ),
            (_normalized(centred=False), "The mean is not subtracted. That is RMSNorm, which newer models use."),
        ],
        hint="Mean and variance along the last dimension, with keepdim=True.",
        inputs=[(torch.tensor([[1.0, 2.0, 4.0, 9.0], [-1.0, 0.5, 0.0, 3.0]]),), (torch.tensor([[5.0, 1.0, 1.0]]),)],
    ),
    Function(
        name="recurrent-step",
        chapter=13,
        question="Write step(W, U, b, x, h): the next state of a plain recurrent cell.",
        right=lambda W, U, b, x, h: torch.tanh(W @ x + U @ h + b),
        reason="h_t = tanh(W x_t + U h_{t−1} + b): the input, the old state and a bias, squashed together.",
        mistakes=[
            (
                lambda W, U, b, x, h: W @ x + U @ h + b,
                "The tanh is missing. Without it the state may grow without bound, and all steps together are one "
                "linear map.",
            ),
            (
                lambda W, U, b, x, h: torch.tanh(U @ x + W @ h + b),
                "The matrices are exchanged: W is for the input x, U for the old state h.",
            ),
            (
                lambda W, U, b, x, h: torch.tanh(W @ x + b) + U @ h,
                "The old state must be inside the tanh, or it is never squashed.",
            ),
            (lambda W, U, b, x, h: torch.tanh(W @ x + b), "The old state does not enter: this network has no memory."),
        ],
        hint="One sum of three terms, then the tanh.",
        inputs=[(*_SQUARE, torch.tensor([0.1, -0.2]), torch.tensor([1.0, 2.0]), torch.tensor([0.3, -0.6]))],
    ),
    Function(
        name="alignment-links",
        chapter=16,
        question="Write links(w): for weights w [target words, source words], the source word of largest weight for "
        "every target word, as numbers.",
        right=lambda w: w.argmax(-1),
        reason="A row is one target word, and its largest entry is its source word.",
        mistakes=[
            (
                lambda w: w.argmax(0),
                "That is the best target word for each source word. Rows sum to one, columns do not.",
            ),
            (lambda w: w.amax(-1), "Those are the weights themselves. The position of the largest is asked for."),
            (lambda w: w.argmin(-1), "That is the source word of smallest weight."),
        ],
        hint="Along which dimension does a row of weights sum to one?",
        inputs=[
            (torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]]),),
            (torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.4, 0.1], [0.5, 0.1, 0.4]]),),
        ],
    ),
    Function(
        name="idf-weights",
        chapter=19,
        question="Write weights(idf): from the IDF of each word of a text (repeated words repeat), the weights of "
        "static attention.",
        right=lambda idf: idf / idf.sum(),
        reason="TF-IDF weights are proportional to the IDF; a word that occurs twice has two entries, which is the TF.",
        mistakes=[
            (
                lambda idf: torch.softmax(idf, -1),
                "A softmax takes exponentials. TF-IDF is proportional to the IDF itself.",
            ),
            (lambda idf: idf, "They do not sum to one yet."),
            (lambda idf: torch.ones_like(idf) / len(idf), "That is the mean: rare and common words weigh the same."),
        ],
        hint="Proportional, and in sum one.",
        inputs=[(torch.tensor([1.0, 3.0, 4.0]),), (torch.tensor([0.2, 0.2]),), (torch.tensor([2.0, 0.5, 0.5, 1.0]),)],
    ),
]
