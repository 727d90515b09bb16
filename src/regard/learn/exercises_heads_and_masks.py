"""Exercises of chapters 7 to 9: the scale, many heads, masks."""

from __future__ import annotations

from .exercise import Choice, Quantity

EXERCISES = [
    Quantity(
        name="deviation-of-dot",
        chapter=7,
        question="All entries of q and k are independent with mean 0 and variance 1, and both have 256 "
        "components. What is "
        "the standard deviation of q·k?",
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
        question="The weights of a softmax are 0.5, 0.3 and 0.2. What is the derivative of the first weight "
        "with respect to "
        "the second energy?",
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
        question="How many learned numbers has a multi-head layer of width 512 with 8 heads of 64 and no "
        "biases? Count W_Q, "
        "W_K, W_V and W_O.",
        right=4 * 512 * 512,
        reason="Eight matrices of 512 × 64 side by side are 512 × 512. Four such: 1,048,576, whatever the "
        "number of heads.",
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
        reason="Each head has its own softmax. One head has one distribution per query, so two places are mixed "
        "into one sum.",
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
                "The future would still be in the denominator: rows sum to less than one, and the amount tells "
                "about it.",
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
        question="A language model without a mask reaches a training loss near 0 on a text where two letters "
        "may follow each "
        "letter. What happened?",
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
