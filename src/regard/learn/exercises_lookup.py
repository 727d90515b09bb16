"""Exercises of chapters 1 to 3: look-up, weighted averages, energies."""

from __future__ import annotations

from .exercise import Choice, Quantity

EXERCISES = [
    Choice(
        name="lookup-missing-key",
        chapter=1,
        question="A dictionary is asked for a key that it does not hold. All indicators 1(q = k_j) are then 0. What is "
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
]
