"""Exercises of chapters 4 to 6: self-attention, queries, keys and values, matrices."""

from __future__ import annotations

import torch

from .check import Choice, Function, Quantity

_draw = torch.Generator().manual_seed(4)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_draw)


def _self_attention(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.T, dim=-1) @ x


def _by_columns(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v @ torch.softmax(k.T @ q / q.shape[0] ** 0.5, dim=0)


SELF_ATTENTION = [
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
    Quantity(
        name="bird-without-itself",
        chapter=4,
        question='The energies of "bird" towards The, early, bird, catches are 0, log 3, log 9, 0. "bird" itself is '
        "masked. What are the four weights?",
        right=[0.2, 0.6, 0.0, 0.2],
        reason="Without the word itself, exp gives 1, 3 and 1, and their sum is 5.",
        mistakes=[
            (
                [1 / 14, 3 / 14, 9 / 14, 1 / 14],
                "The word itself is still in: exp(log 9) = 9 belongs to the masked key.",
            ),
            (
                [1 / 6, 3 / 6, 1 / 6, 1 / 6],
                "The masked energy was set to 0, and exp(0) = 1 is a weight. It must be −∞, with exp(−∞) = 0.",
            ),
            (
                [1 / 14, 3 / 14, 0.0, 1 / 14],
                "The weight was set to 0 after the softmax. The others must then be divided by their sum again.",
            ),
        ],
        hint="Leave the third key out of the sum in the denominator too.",
    ),
    Choice(
        name="one-word-changes",
        chapter=4,
        question="In self-attention without a mask, the second of six words changes. Which outputs change?",
        options=[
            "the second only",
            "the second and those after it",
            "all six",
            "the second and its two neighbours",
        ],
        right="c",
        reason="The word is a key and a value for every query, so it enters all six averages.",
        mistakes=[
            ("a", "So it is in a feed-forward layer, which treats each position alone."),
            ("b", "So it would be with a causal mask, or in a recurrent network that reads from left to right."),
            ("d", "So it would be in a convolution of width three. Attention has no neighbourhood."),
        ],
        hint="In which of the sums A_i = Σ_j a_ij x_j does x_2 occur?",
    ),
    Choice(
        name="three-roles",
        chapter=5,
        question="Each token has a name, a pointer to another token's name, and a colour. Its output shall be the "
        "colour of the token it points to. Which matrix must read the colour?",
        options=["W_Q", "W_K", "W_V", "all three"],
        right="c",
        reason="The value is what is handed over. W_Q reads the pointer, W_K reads the name.",
        mistakes=[
            ("a", "The query says what a token asks for, and it asks by its pointer."),
            ("b", "The key says how a token is found, and it is found by its name."),
            ("d", "Colours in queries or keys would only disturb the match of pointer and name."),
        ],
        hint="Ask, be found, hand over: which of the three is the colour for?",
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
    Choice(
        name="kernel-symmetric",
        chapter=5,
        question="Suppose that W_Q = W_K. What follows?",
        options=[
            "e_ij = e_ji: the energies are symmetric",
            "w_ij = w_ji: the weights are symmetric",
            "every word attends mostly to itself",
            "nothing changes, since both are learned",
        ],
        right="a",
        reason="M = W Wᵀ is symmetric, so x_iᵀ M x_j = x_jᵀ M x_i. Who asks and who is asked cannot be told apart.",
        mistakes=[
            ("b", "The energies are symmetric, but each row is divided by its own sum, so the weights need not be."),
            (
                "c",
                "Often, but not always: e_ii = |q_i|², and a longer vector in a similar direction has a larger energy.",
            ),
            ("d", "The layer loses freedom: it can no longer let i attend to j without j scoring i equally."),
        ],
        hint="Is W Wᵀ symmetric? What does the softmax do to a row?",
    ),
    Choice(
        name="keys-equal-values",
        chapter=6,
        question="T_q may differ from T_v. Why must there be as many values as keys?",
        options=[
            "because keys and values are made from the same vectors",
            "because the energy of key j becomes the weight of value j",
            "because the attention matrix must be square",
            "because keys and values need the same width",
        ],
        right="b",
        reason="A V sums over j: column j of A comes from key j and multiplies row j of V. Each key needs its value.",
        mistakes=[
            ("a", "Often they are, but nothing requires it. A phone book has names as keys and numbers as values."),
            ("c", "It is T_q × T_v, and square only in self-attention."),
            ("d", "The widths D_k and D_v are free. The question is about their number."),
        ],
        hint="Which index do A and V share in the product A V?",
    ),
    Quantity(
        name="output-shape",
        chapter=6,
        question="Q is 7 × 64, K is 9 × 64, V is 9 × 32. What is the shape of the output? Give two numbers.",
        right=[7, 32],
        reason="One output per query, as wide as a value: (7 × 9)(9 × 32).",
        mistakes=[
            ([9, 32], "There is one output per query, and there are 7 queries. 9 is the number of keys."),
            ([7, 64], "The output is an average of values, so it is as wide as they are."),
            ([7, 9], "That is the attention matrix. It is multiplied by V."),
        ],
        hint="Write the shapes of softmax(QKᵀ) and of V beside each other.",
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
]


HEADS_AND_MASKS = [
    Quantity(
        name="deviation-of-dot",
        chapter=7,
        question="All entries of q and k are independent with mean 0 and variance 1, and both have 256 components. "
        "What is the standard deviation of q·k?",
        right=16.0,
        reason="256 products of variance 1 add up to the variance 256, whose root is 16.",
        mistakes=[
            (256.0, "That is the variance. The standard deviation is its root."),
            (1.0, "That is the deviation after the division by √d_k."),
            (22.627, "That is √512: the variances of q and k were added. Products are summed here, one per component."),
        ],
        hint="Variances of independent terms add up. What is the variance of one product?",
    ),
    Choice(
        name="why-scale",
        chapter=7,
        question="Why are dot products divided by √d_k before the softmax?",
        options=[
            "so that the weights sum to one",
            "so that their spread does not grow with the width, which would saturate the softmax and stop the gradient",
            "so that the output is as wide as a value",
            "so that fewer multiplications are needed",
        ],
        right="b",
        reason="Their deviation grows like √d_k. A saturated softmax has derivatives w_i (1(i = j) − w_j) close to 0.",
        mistakes=[
            ("a", "The softmax itself does that, with any energies."),
            ("c", "The width of the output is that of V. The energies are one number per pair."),
            ("d", "A division per energy is added, none is saved."),
        ],
        hint="What does softmax do with the energies 0, 30 and −20? And its derivative?",
    ),
    Quantity(
        name="softmax-gradient",
        chapter=7,
        question="The weights of a softmax are 0.5, 0.3 and 0.2. What is the derivative of the first weight with "
        "respect to the second energy?",
        right=-0.15,
        reason="∂w_1/∂e_2 = w_1 (0 − w_2) = −0.5 · 0.3: a larger rival takes weight away.",
        mistakes=[
            (0.15, "The sign is wrong: if the second energy rises, the first weight falls."),
            (0.25, "That is ∂w_1/∂e_1 = w_1 (1 − w_1), with respect to its own energy."),
            (0.21, "That is ∂w_2/∂e_2. The first weight was asked for."),
        ],
        hint="∂w_i/∂e_j = w_i (1(i = j) − w_j) with i = 1 and j = 2.",
    ),
    Quantity(
        name="head-sizes",
        chapter=8,
        question="A layer of width 768 has 12 heads whose outputs, side by side, are 768 wide. How wide is one head?",
        right=64.0,
        reason="768 / 12. The width is divided among the heads.",
        mistakes=[
            (768.0, "If every head were 768 wide, 12 of them side by side would be 9,216 wide."),
            (9216.0, "That is 12 · 768. The heads share the width, they do not multiply it."),
            (12.0, "That is the number of heads."),
        ],
        hint="The outputs are concatenated: heads × width of a head = width of the layer.",
    ),
    Quantity(
        name="multi-head-parameters",
        chapter=8,
        question="How many learned numbers has a multi-head layer of width 512 with 8 heads of 64 and no biases? "
        "Count W_Q, W_K, W_V and W_O.",
        right=4 * 512 * 512,
        reason="Eight matrices of 512 × 64 side by side are 512 × 512. Four such: 1,048,576, whatever the number of "
        "heads.",
        mistakes=[
            (3 * 512 * 512, "W_O is missing: the projection after the concatenation is learned too."),
            (3 * 512 * 64, "These are W_Q, W_K and W_V of one head."),
            (25 * 512 * 512, "Every head got matrices of 512 × 512. A head's are 512 × 64."),
            (512 * 512, "That is one of the four matrices."),
        ],
        hint="W_Q of one head is 512 × 64. How many columns have eight of them?",
    ),
    Choice(
        name="one-wide-head",
        chapter=8,
        question="What can two heads of width 32 do that one head of width 64 cannot?",
        options=[
            "take values from two places and keep them apart",
            "learn more numbers",
            "read longer sequences",
            "compute all queries in parallel",
        ],
        right="a",
        reason="Each head has its own softmax. One head has one distribution per query, so two places are mixed into "
        "one sum.",
        mistakes=[
            ("b", "Both have equally many: 4 · 64² without biases."),
            ("c", "Neither limits the length: weights are computed from the vectors that are there."),
            ("d", "One head does that too. Heads are parallel to each other in addition."),
        ],
        hint="How many weight rows has a word in each case?",
    ),
    Choice(
        name="mask-the-future",
        chapter=9,
        question="How is a decoder kept from attending to future words?",
        options=[
            "e_ij = 0 for j > i, before the softmax",
            "e_ij = −∞ for j > i, before the softmax",
            "w_ij = 0 for j > i, after the softmax",
            "e_ij = −∞ for j < i, before the softmax",
        ],
        right="b",
        reason="exp(−∞) = 0: future keys get no weight and do not enter the denominator either.",
        mistakes=[
            ("a", "exp(0) = 1 is a weight like others. With negative energies elsewhere it is even the largest."),
            (
                "c",
                "The future would still be in the denominator: rows sum to less than one, and the amount tells about "
                "it.",
            ),
            ("d", "That hides the past and leaves the future: key j comes after query i where j > i."),
        ],
        hint="Which number becomes 0 under exp? On which side of the diagonal is the future?",
    ),
    Quantity(
        name="causal-row",
        chapter=9,
        question="Five words, all energies equal, causal mask. What are the five weights of the fourth word?",
        right=[0.25, 0.25, 0.25, 0.25, 0.0],
        reason="It sees itself and the three before it, with equal weights. The fifth is in the future.",
        mistakes=[
            ([0.2] * 5, "The mask was left out: the fifth word comes after the fourth."),
            ([1 / 3, 1 / 3, 1 / 3, 0.0, 0.0], "The word itself was masked too. Causal means j ≤ i: it sees itself."),
            ([0.0, 0.0, 0.0, 0.5, 0.5], "That is the mask of the past: the word sees itself and what comes after it."),
            ([0.2, 0.2, 0.2, 0.2, 0.0], "The weights of the visible keys must sum to one again."),
        ],
        hint="How many words may it see? They share the weight equally.",
    ),
    Choice(
        name="loss-too-good",
        chapter=9,
        question="A language model without a mask reaches a training loss near 0 on a text where two letters may "
        "follow each letter. What happened?",
        options=[
            "it learned the text very well",
            "it has too many heads",
            "each position attends to the next letter, which is the answer",
            "its learning rate was too high",
        ],
        right="c",
        reason="The answer stands at the next position of the input. When the model writes, that position is empty.",
        mistakes=[
            ("a", "With two equally likely letters no honest prediction has a loss below log 2 ≈ 0.69."),
            ("b", "The number of heads does not change what can be known. One head is enough to copy the answer."),
            ("d", "That makes a loss unsteady or large, not too small."),
        ],
        hint="What is the least loss if one of two letters follows, by chance?",
    ),
]

EXERCISES = [*SELF_ATTENTION, *HEADS_AND_MASKS]
