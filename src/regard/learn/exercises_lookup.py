"""Exercises of chapters 1 to 3: look-up, weighted averages, energies."""

from __future__ import annotations

import math

import torch

from .check import Choice, Function, Quantity

_draw = torch.Generator().manual_seed(3)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_draw)


LOOKUP = [
    Choice(
        name="lookup-missing-key",
        chapter=1,
        question="A dictionary is asked for a key that it does not hold. All indicators 1(q = k_j) are then 0. What "
        "is the sum z = Σ_j 1(q = k_j) v_j?",
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
                "Kᵀ K is the identity here, so the keys drop out: this takes the row of V where q has its 1, whatever "
                "key stands there.",
            ),
            ("d", "K V reorders the values before the query is known, and [n, d] times q [n] does not fit."),
        ],
        hint="First the n energies q·k_j, then the sum of values with these weights.",
    ),
    Quantity(
        name="boxes-325",
        chapter=2,
        question="Boxes of 300 and 400 weigh 30 and 40 pounds. What does a box of 325 weigh, with energies one over "
        "the distance and proportional weights?",
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


ALIGNMENT = [
    Quantity(
        name="alignment-error-rate",
        chapter=16,
        question="Predicted links A = {0-0, 1-1, 2-2, 3-2}; sure links S = {0-0, 1-1}; possible links P = {0-0, 1-1, "
        "2-2}. What is the alignment error rate 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)?",
        right=1 / 6,
        reason="|A ∩ S| = 2 and |A ∩ P| = 3, over 4 + 2 links: 1 − 5/6.",
        mistakes=[
            (
                0.25,
                "That is the share of predicted links that are not even possible. The rate counts missing sure links, "
                "too.",
            ),
            (0.5, "That compares with the sure links only. A possible link is no error."),
            (0.0, "All sure links were found, but 3-2 is neither sure nor possible."),
            (5 / 6, "That is the agreement. The error rate is one minus it."),
        ],
        hint="Count both intersections first.",
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
    Choice(
        name="alignment-forced",
        chapter=16,
        question="To align a given translation, the decoder is fed its words one after the other (forced decoding). "
        "What would go wrong if it were fed its own words instead?",
        options=[
            "nothing: the weights depend on the source only",
            "the rows would no longer sum to one",
            "the weights would be those of another sentence, namely its own translation",
            "it would need a beam search",
        ],
        right="c",
        reason="The query is the decoder's state, which has read the target so far. Another target has other states, "
        "and its rows belong to other words.",
        mistakes=[
            ("a", "The keys depend on the source only. The queries are states of the decoder, which read the target."),
            ("b", "The softmax always sums to one, whatever is fed."),
            ("d", "A search chooses words. Here the words are given, so that there is nothing to search."),
        ],
        hint="What does the query of row i depend on?",
    ),
    Quantity(
        name="lstmn-memory",
        chapter=17,
        question="An LSTMN with one unit. The tape of memories is c = (4, 8), the weights are s = (0.25, 0.75), the "
        "gates f = i = 0.5, and the candidate ĉ = 1. What is the new memory c_t?",
        right=4.0,
        reason="c̃ = 0.25 · 4 + 0.75 · 8 = 7, and c_t = 0.5 · 7 + 0.5 · 1.",
        mistakes=[
            (4.5, "That is an LSTM: it forgets from the last memory, 8. The LSTMN averages the tape first."),
            (7.5, "The forget gate is missing: 0.5 of the averaged memory 7."),
            (3.5, "The new candidate is missing: plus 0.5 · 1."),
            (7.0, "That is c̃, the average of the tape. The gates come after it."),
        ],
        hint="First the weighted average of the tape, then the gates.",
    ),
    Choice(
        name="lstmn-past",
        chapter=17,
        question="Over what does the LSTMN attend at word t?",
        options=[
            "all words of the sentence",
            "the states of the words before t",
            "the last state only",
            "the embeddings of the words up to t, t included",
        ],
        right="b",
        reason="The tape holds h_1 … h_{t−1}; h_t is what is being computed. It reads from left to right, as its "
        "authors wanted.",
        mistakes=[
            ("a", "It reads word by word: the words after t have not been read yet."),
            ("c", "That is an LSTM. The point of the tape is to keep all earlier states."),
            ("d", "Keys and values are states, which hold context. x_t itself enters through the query and the gates."),
        ],
        hint="When is h_t written to the tape?",
    ),
    Choice(
        name="lstmn-second-word",
        chapter=17,
        question="What are the weights at the second word, whatever the model has learned?",
        options=[
            "one half on each of two words",
            "zero: there is nothing to attend to",
            "it depends on the words",
            "1 on the first word",
        ],
        right="d",
        reason="The tape has one entry, and a softmax over one number is 1. Only from the third word on is there a "
        "choice.",
        mistakes=[
            ("a", "The word itself is not on the tape yet, so there is one key and not two."),
            ("b", "That is the first word: its tapes are empty, and h̃ and c̃ are zero."),
            ("c", "With one key the energy does not matter: exp(e) / exp(e) = 1."),
        ],
        hint="How many states does the tape hold at that moment?",
    ),
    Quantity(
        name="caption-penalty",
        chapter=18,
        question="Two words, three cells: α_1 = (0.5, 0.5, 0) and α_2 = (0, 0.5, 0.5). What is Σ_i (1 − Σ_t α_ti)²?",
        right=0.5,
        reason="The cells received 0.5, 1 and 0.5; the squares of what is missing are 0.25, 0 and 0.25.",
        mistakes=[
            (1.0, "Those are the amounts that are missing. They are squared before they are added."),
            (0.0, "That sums over the cells of one word. The penalty sums over the words of one cell."),
            (1.25, "That misses Σ_t: the weights of a cell are added over the words first."),
            (0.25, "Two cells received too little, the first and the third."),
        ],
        hint="Add the weights of each cell over both words.",
    ),
    Choice(
        name="caption-layer",
        chapter=18,
        question="Why are the annotations taken from an early layer of the convolutional network?",
        options=[
            "later layers have no features",
            "early layers are trained better",
            "a cell of a later layer has seen most of the picture, so that a weight on it points nowhere",
            "attention needs exactly 64 keys",
        ],
        right="c",
        reason="The receptive field grows with depth. Attention over places needs vectors that belong to places.",
        mistakes=[
            ("a", "Later layers have more features, about larger parts of the picture."),
            ("b", "All layers are trained together; depth does not decide how well."),
            ("d", "Attention takes any number of keys; 8 × 8 is the choice of this model."),
        ],
        hint="Which pixels does one cell depend on?",
    ),
    Choice(
        name="caption-hard",
        chapter=18,
        question="Why is hard attention not trained by back-propagation through the chosen place alone?",
        options=[
            "one vector is too small for the decoder",
            "sampling a place is a jump: a small change of the energies changes nothing, or everything",
            "its weights do not sum to one",
            "it would need all captions in advance",
        ],
        right="b",
        reason="The gradient of a sample with respect to the energies is zero almost everywhere. REINFORCE takes the "
        "gradient of log p(s) times the reward instead.",
        mistakes=[
            ("a", "The decoder gets one vector in both cases: the average or the sample."),
            ("c", "One weight is 1 and the others are 0. That sums to one."),
            ("d", "Training has the captions in both cases."),
        ],
        hint="Move one energy by a millionth: does the sampled place change?",
    ),
]

EXERCISES = [*LOOKUP, *ALIGNMENT]
