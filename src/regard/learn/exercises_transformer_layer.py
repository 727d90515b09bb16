"""Exercises of chapters 10 and 11: positions; residual connections, norms and feed-forward networks."""

from __future__ import annotations

import torch

from .exercise import Choice, Function, Quantity


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _over_words(x: torch.Tensor) -> torch.Tensor:
    return _layer_norm(x.T).T


def _by_variance(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5)


def _without_mean(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def _unbiased(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


EXERCISES = [
    Choice(
        name="no-position",
        chapter=10,
        question="Without position embeddings a Transformer cannot tell where a word stands, nor how far apart "
        "two are. Why?",
        options=[
            "each weight depends on two vectors alone, and a sum does not depend on the order of its terms",
            "the softmax sorts the keys by their energy",
            "it reads from left to right and forgets the beginning",
            "the embeddings are too narrow to hold a position",
        ],
        right="a",
        reason="Neither e_ij nor Σ_j contains i or j as numbers. Shuffled inputs give the same outputs, shuffled.",
        mistakes=[
            ("b", "The softmax keeps the order of its inputs. What is missing is that no term depends on a place."),
            ("c", "That describes a recurrent network. Attention sees all words at once."),
            ("d", "At any width the same holds: nothing in the formula tells the vector where it stands."),
        ],
        hint="Where do the numbers i and j enter the formula, other than as names of vectors?",
    ),
    Quantity(
        name="sinusoid-value",
        chapter=10,
        question="What are the first four components of the sinusoidal position vector PE(0)?",
        right=[0.0, 1.0, 0.0, 1.0],
        reason="All angles are 0 at position 0: sin 0 = 0 and cos 0 = 1 take turns.",
        mistakes=[
            ([0.0, 0.0, 0.0, 0.0], "Every second component is a cosine, and cos 0 = 1."),
            ([1.0, 0.0, 1.0, 0.0], "Sine and cosine are swapped: even components are sines."),
            (
                [0.0, 0.0, 1.0, 1.0],
                "These are all sines, then all cosines. In the formula of the paper they take turns.",
            ),
        ],
        hint="PE(t, 2n) = sin(t / 10000^(2n/d)) and PE(t, 2n + 1) is the cosine. Put t = 0.",
    ),
    Quantity(
        name="permutation",
        chapter=10,
        question="Self-attention without positions gives the words A, B, C the outputs 1, 2, 3. What does it "
        "give for the input "
        "C, A, B? Three numbers, in that order.",
        right=[3.0, 1.0, 2.0],
        reason="Each word keeps its output and takes it along: attention(P X) = P attention(X).",
        mistakes=[
            ([1.0, 2.0, 3.0], "The outputs move with their words. Only a sum over all outputs would stay the same."),
            ([2.0, 3.0, 1.0], "That is the inverse permutation: the first output belongs to the first word, C."),
            (
                [2.0, 2.0, 2.0],
                "That is the mean for each. Different words have different queries, so different outputs.",
            ),
        ],
        hint="Whose query is first now, and do its keys and values differ from before?",
    ),
    Function(
        name="layer-norm-function",
        chapter=11,
        question="Write f(x) for a layer norm with γ = 1, β = 0 and ε = 1e-5. x is [words, width]. Do not call "
        "PyTorch's.",
        right=_layer_norm,
        reason="Mean and variance are those of one vector's components, and the variance divides by the width.",
        mistakes=[
            (
                _over_words,
                "Mean and variance were taken over the words. That mixes words; a layer norm takes each vector alone.",
            ),
            (_by_variance, "Divide by the root of the variance. This divides by the variance itself."),
            (_without_mean, "The mean was not subtracted. This is RMSNorm, which some later models use."),
            (_unbiased, "The variance was divided by width − 1. LayerNorm divides by the width: var(…, correction=0)."),
        ],
        hint="For each row: subtract its mean, divide by √(variance + 1e-5).",
        inputs=[(torch.tensor([[1.0, 2.0, 4.0, 9.0], [0.5, -3.0, 2.0, 1.0], [7.0, 5.0, 6.0, -2.0]]),)],
    ),
    Choice(
        name="why-residual",
        chapter=11,
        question="What does the residual connection x + part(x) do for a deep stack?",
        options=[
            "it keeps the numbers in range",
            "it gives the gradient a direct path to early layers and keeps what distinguishes the words",
            "it lets words exchange information",
            "it halves the number of parameters",
        ],
        right="b",
        reason="Its derivative is the identity plus that of the part, and its output still contains the input.",
        mistakes=[
            ("a", "The norm does that. A sum of many parts grows, if anything."),
            ("c", "Attention does that. The residual connection works at each position alone."),
            ("d", "An addition has no parameters and saves none."),
        ],
        hint="What is the derivative of x + f(x)? What is left of x if f averages all words?",
    ),
    Choice(
        name="why-normalize",
        chapter=11,
        question="Without norms, vectors grow by a factor of 1.5 per layer. What about the gradient over 24 layers?",
        options=[
            "it is unaffected, since gradients do not depend on the size of vectors",
            "it grows by a factor per layer too, about 1.5²⁴ ≈ 17,000 in all: it explodes",
            "it grows by 24 · 1.5 = 36",
            "it becomes exactly zero",
        ],
        right="b",
        reason="By the chain rule the factors of the layers multiply. Normalizing after each layer keeps every "
        "factor near one.",
        mistakes=[
            ("a", "What multiplies the vectors on the way forward multiplies gradients on the way back."),
            ("c", "Factors of layers multiply, they do not add up: 1.5 to the power 24."),
            ("d", "It would tend to zero with factors below one. With factors above one it grows."),
        ],
        hint="The chain rule is a product over layers.",
    ),
    Quantity(
        name="feed-forward-parameters",
        chapter=11,
        question="How many numbers do W_1 and W_2 of a feed-forward network have together, with width 512 and "
        "hidden width "
        "2048? Leave the biases out.",
        right=2 * 512 * 2048,
        reason="512 × 2048 up and 2048 × 512 down: 2,097,152, twice as many as the layer's attention.",
        mistakes=[
            (512 * 2048, "That is one of the two matrices. The way back to 512 needs another."),
            (2048 * 2048, "W_1 is 512 × 2048. A square matrix of 2048 would need an input of that width."),
            (2 * 512 * 512, "The hidden layer is 2048 wide, not 512."),
        ],
        hint="The rows of W_1 are the width of its input, the columns that of its output.",
    ),
]
