"""Exercises of chapters 13 to 15: recurrent networks, Bahdanau, Luong."""

from __future__ import annotations

import torch

from .exercise import Choice, Function, Quantity

_SQUARE = torch.tensor([[0.5, -1.0], [2.0, 0.25]]), torch.tensor([[1.0, 0.5], [-0.5, 0.75]])

EXERCISES = [
    Function(
        name="recurrent-step",
        chapter=13,
        question="Write step(W, U, b, x, h): the next state of a plain recurrent cell.",
        right=lambda W, U, b, x, h: torch.tanh(W @ x + U @ h + b),
        reason="h_t = tanh(W x_t + U h_{t−1} + b): the input, the old state and a bias, squashed together.",
        mistakes=[
            (
                lambda W, U, b, x, h: W @ x + U @ h + b,
                "The tanh is missing. Without it the state may grow without bound, and "
                "all steps together are one linear map.",
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
    Quantity(
        name="recurrent-gradient",
        chapter=13,
        question="A cell with one unit and no tanh: h_t = 0.5 h_{t−1} + x_t. After how many steps is the gradient "
        "∂h_t/∂h_0 smaller than one thousandth for the first time?",
        right=10.0,
        reason="It is 0.5^t, and 0.5^10 = 1/1024. Ten words back, and nothing is learned from an error.",
        mistakes=[
            (9.0, "0.5^9 = 1/512 is still larger than one thousandth."),
            (500.0, "The gradient is multiplied by 0.5 at every step; it does not fall by equal amounts."),
            (2000.0, "That would be a fall by 0.0005 in each step. It halves in each step."),
            (1000.0, "That is the number by which it must fall, and not the number of steps: it halves in each."),
        ],
        hint="The gradient after t steps is a product of t factors.",
    ),
    Choice(
        name="recurrent-parallel",
        chapter=13,
        question="A GRU and a self-attention layer read 1000 words on hardware that computes any number of "
        "products at once. What is the "
        "longest chain of steps that must wait for each other?",
        options=[
            "1000 for both: every word must be read",
            "1000 for the GRU, a few for attention, whatever the length is",
            "a few for both: the words are known beforehand",
            "1000 for attention, since it computes 1000 × 1000 energies",
        ],
        right="b",
        reason="h_t needs h_{t−1}. The energies need queries and keys, which need the words only.",
        mistakes=[
            ("a", "Attention reads all words in one product of matrices; no row waits for another."),
            ("c", "The words are known, but the states are not: h_2 cannot begin before h_1 is there."),
            ("d", "A million energies are much work, and none of them waits for another. Work is not waiting."),
        ],
        hint="Which number needs the result of the word before?",
    ),
    Quantity(
        name="bahdanau-context",
        chapter=14,
        question="The energies of three annotations are s = (0, 0, ln 2), the annotations themselves are the "
        "numbers h = (4, 8, 10). "
        "What is the context c?",
        right=8.0,
        reason="The exponentials are 1, 1, 2, so a = (1/4, 1/4, 1/2), and c = 1 + 2 + 5.",
        mistakes=[
            (10.0, "That is the annotation with the largest weight. Soft attention averages all of them."),
            (22 / 3, "That is the plain mean. The third annotation has the weight of the two others together."),
            (32.0, "The exponentials are not divided by their sum 4."),
            (6.931, "Those are energies times annotations. First the exponentials, then divide by their sum."),
        ],
        hint="exp(0) = 1 and exp(ln 2) = 2.",
    ),
    Choice(
        name="bahdanau-query",
        chapter=14,
        question="Why is the query of step i the old state l_{i−1} and not the new state l_i?",
        options=[
            "l_i is computed from c_i, which the query is needed for",
            "l_{i−1} has been trained for longer",
            "l_i is wider than the annotations",
            "so that the first word needs no attention",
        ],
        right="a",
        reason="l_i = cell([y_{i−1}; c_i], l_{i−1}): the context must be there first. Luong turns the order "
        "round (chapter 15).",
        mistakes=[
            ("b", "The same weights compute all states; none is trained for longer than another."),
            ("c", "All states of the decoder are equally wide, and the additive energy takes any two widths."),
            (
                "d",
                "The first word has a context, too: its query is l_0, which is computed from the encoder's last "
                "states.",
            ),
        ],
        hint="Write down the inputs of the cell.",
    ),
    Quantity(
        name="bahdanau-maxout",
        chapter=14,
        question="The readout's linear map gave (1, −2, 3, 5, −1, −4). What is left after the maxout over each "
        "two neighbours?",
        right=[1.0, 5.0, -1.0],
        reason="Of (1, −2), (3, 5) and (−1, −4) the larger ones.",
        mistakes=[
            (
                [1.0, 5.0, 0.0],
                "That is a ReLU on top. Maxout keeps the larger of two numbers, also if both are negative.",
            ),
            (
                [5.0, -1.0, 3.0],
                "The pairs are neighbours, and not number k of the first half with number k of the second.",
            ),
            ([-2.0, 3.0, -4.0], "Those are the smaller ones."),
            ([-0.5, 4.0, -2.5], "Those are the means of the pairs."),
        ],
        hint="Three pairs, from left to right.",
    ),
    Quantity(
        name="luong-window",
        chapter=15,
        question="local-m with D = 3, a source of 20 words (places 0 to 19), step t = 1. How many keys does the "
        "softmax see?",
        right=5.0,
        reason="The places with |s − 1| ≤ 3 are 0 to 4: the window is cut off at the beginning.",
        mistakes=[
            (7.0, "2D + 1 is the width in the middle of a sentence. Here the window begins before the first word."),
            (4.0, "The window reaches to both sides: place 0 is in it, too."),
            (3.0, "D is the reach to each side, and not the number of keys."),
            (20.0, "That is global attention: every word of the source."),
        ],
        hint="List the places from 1 − 3 to 1 + 3 that exist.",
    ),
    Choice(
        name="luong-concat",
        chapter=15,
        question="v · tanh(W [h; h̄]) for 30 states h and 50 states h̄, each 512 wide, hidden width 512. How "
        "many products of a matrix with a vector of "
        "512 are needed?",
        options=["3000 (30 · 50 · 2)", "1500 (30 · 50)", "80 (30 + 50)", "2 (one for each side)"],
        right="c",
        reason="W [h; h̄] = W_h h + W_h̄ h̄: project each state once, then only add.",
        mistakes=[
            ("a", "That projects both sides again for every pair. A projected state can be used for all its pairs."),
            ("b", "The pairs share their projections; only sum, tanh and the product with v are needed for each pair."),
            ("d", "Each state has to be projected: 30 on one side, 50 on the other."),
        ],
        hint="Split W into its left and its right half.",
    ),
    Choice(
        name="luong-gaussian",
        chapter=15,
        question="Why does local-p multiply the weights by a Gaussian around p_t?",
        options=[
            "so that the weights sum to one",
            "so that p_t has a gradient: a window alone does not change when p_t moves a little",
            "because words far away have larger energies",
            "to make the window wider than 2D + 1",
        ],
        right="b",
        reason="The set of keys within D of p_t changes in jumps, and a jump has no derivative. The Gaussian "
        "changes smoothly.",
        mistakes=[
            ("a", "The softmax already sums to one; after the Gaussian the weights no longer do."),
            ("c", "Energies do not depend on the distance. Nothing says that far words fit better."),
            ("d", "The Gaussian only makes weights smaller. What is outside of the window stays outside."),
        ],
        hint="What is the derivative of the output with respect to p_t without it?",
    ),
]
