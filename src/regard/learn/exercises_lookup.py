"""Exercises of chapters 1 to 3: look-up, weighted averages, energies."""

from __future__ import annotations

import math

import torch

from .exercise import Choice, Function, Quantity

_draw = torch.Generator().manual_seed(3)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_draw)


EXERCISES = [
    Choice(
        name="lookup-missing-key",
        chapter=1,
        question="A dictionary is asked for a key that it does not hold. All indicators 1(q = k_j) are then 0. "
        "What is "
        "the sum z = Σ_j 1(q = k_j) v_j?",
        options=[
            "the value of the most similar key",
            "a vector of zeros, since no value enters the sum",
            "the mean of all values, since all indicators are equal",
            "undefined, since it divides by zero",
        ],
        right="b",
        reason="Every term is 0 · v_j. The sum has no denominator, so it is zero and not NaN.",
        mistakes=[
            ("a", "An indicator knows equal and unequal only. Similarity enters in chapter 2."),
            ("c", "Equal weights of 1/n would give the mean. Here all weights are 0, and they do not sum to one."),
            (
                "d",
                "Proportional weights e_j / Σ e would divide by zero. This sum is not normalized: nothing is divided.",
            ),
        ],
        hint="Write the sum for two keys, both unequal to q.",
    ),
    Quantity(
        name="lookup-repeated-key",
        chapter=1,
        question="Keys 3, 5, 3 hold the values 10, 20, 40. What is Σ_j 1(q = k_j) v_j for q = 3?",
        right=50.0,
        reason="Two keys equal the query, and the sum adds both values: 10 + 40.",
        mistakes=[
            (25.0, "That is the average of both values. The formula has no denominator: it adds them."),
            (10.0, "That is the first match only, as in a loop that stops. The sum goes over all j."),
            (
                40.0,
                "That is the last match only, which a Python dict keeps of a repeated key. The sum adds all matches.",
            ),
            (70.0, "That is the sum of all values. The indicator is 0 for the key 5, so 20 does not enter."),
        ],
        hint="Multiply each value by 1 if its key is 3, else by 0, and add.",
    ),
    Choice(
        name="lookup-one-hot",
        chapter=1,
        question="The keys are the n one-hot vectors in some order, and the query is one of them. Which product gives "
        "the value of the matching key? K [n, n] has the keys as rows, V [n, d] the values.",
        options=["V K q", "(K q)ᵀ V", "Vᵀ (q Kᵀ K)", "K V q"],
        right="b",
        reason="K q holds q·k_j, which is the indicator for one-hot vectors. Its product with V picks one row of V.",
        mistakes=[
            (
                "a",
                "V is [n, d] and K q has n entries: they fit only if n = d. The weights multiply from the left.",
            ),
            (
                "c",
                "Kᵀ K is the identity here, so the keys drop out: this takes the row of V where q has its 1, "
                "whatever key stands there.",
            ),
            ("d", "K V reorders the values before the query is known, and [n, d] times q [n] does not fit."),
        ],
        hint="First the n energies q·k_j, then the sum of values with these weights.",
    ),
    Quantity(
        name="boxes-325",
        chapter=2,
        question="Boxes of 300 and 400 weigh 30 and 40 pounds. What does a box of 325 weigh, with energies one "
        "over the "
        "distance and proportional weights?",
        right=32.5,
        reason="Distances 25 and 75, energies 1/25 and 1/75, weights 3/4 and 1/4: 22.5 + 10.",
        mistakes=[
            (37.5, "The weights are swapped. The distances themselves were taken as energies: nearer must weigh more."),
            (35.0, "That is the plain mean. Both boxes got 1/2, although 325 is nearer to 300."),
            (30.0, "That is the value of the nearest box alone, a hard look-up. The far box keeps a weight of 1/4."),
        ],
        hint="Distances first, then one over each, then divide both by their sum, then average 30 and 40.",
    ),
    Choice(
        name="average-range",
        chapter=2,
        question="The weights are positive or zero and sum to one. The values are 30 and 40. Which output is "
        "impossible?",
        options=["30.0", "35.0", "39.9", "41.0"],
        right="d",
        reason="A weighted average lies between the smallest and the largest value. It interpolates only.",
        mistakes=[
            ("a", "It is possible: the query equals the first key, whose weight is then 1."),
            ("b", "It is possible: both weights are 1/2, as for a query halfway between the keys."),
            ("c", "It is possible: the weights are 0.01 and 0.99."),
        ],
        hint="For each number, look for weights w and 1 − w that give it.",
    ),
    Quantity(
        name="softmax-by-hand",
        chapter=2,
        question="What is the softmax of the three energies 0, log 2 and log 5? Give three numbers.",
        right=[1 / 8, 2 / 8, 5 / 8],
        reason="exp gives 1, 2 and 5, and their sum is 8.",
        mistakes=[
            ([1.0, 2.0, 5.0], "These are the exponentials. Divide them by their sum, so that the weights sum to one."),
            (
                [0.0, math.log(2) / math.log(10), math.log(5) / math.log(10)],
                "The energies were divided by their sum without exp. That is the proportional normalizer.",
            ),
            ([0.0, 0.0, 1.0], "That is the hard maximum, the softmax at temperature 0."),
        ],
        hint="Take exp of each energy, then divide by the sum.",
    ),
    Choice(
        name="temperature",
        chapter=2,
        question="Energies are divided by a temperature T before the softmax. What happens as T grows without end?",
        options=[
            "one key takes all the weight",
            "all weights become 1/n",
            "all weights become 0",
            "nothing, since softmax ignores a common factor",
        ],
        right="b",
        reason="All energies tend to 0, exp(0) = 1 for each, so each of the n keys gets 1/n.",
        mistakes=[
            ("a", "That is T towards 0: small temperatures enlarge the differences."),
            ("c", "Weights always sum to one, so they cannot all vanish."),
            ("d", "Softmax ignores a common summand, exp(e + c) = exp(e) exp(c). A common factor changes the ratios."),
        ],
        hint="What is e_j / T for a very large T? What is exp of it?",
    ),
    Choice(
        name="energy-widths",
        chapter=3,
        question="Queries have 6 components, keys have 4. Which energies can compare them?",
        options=[
            "the dot product",
            "the cosine",
            "a learned form q W k, or a small network",
            "none: widths must always be equal",
        ],
        right="c",
        reason="W is 6 × 4 in q W k, and the additive energy maps both to one hidden width before it adds them.",
        mistakes=[
            ("a", "Σ_m q_m k_m needs equally many components on both sides."),
            ("b", "A cosine is a dot product divided by lengths: the sum over components is the same problem."),
            ("d", "A learned matrix may be rectangular. Bahdanau's decoder states and annotations differ in width."),
        ],
        hint="Write the shapes of q, W and k beside each other.",
    ),
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
]
