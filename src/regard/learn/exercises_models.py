"""Exercises of chapters 19 to 22: classification of text and sound, the heads of BERT, the limits of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .check import Choice, Function, Quantity

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSIFICATION = [
    Quantity(
        name="idf-rare-word",
        chapter=19,
        question="Of 1000 documents 10 contain the word. What is its IDF, log(N / n), with the natural logarithm?",
        right=4.60517,
        reason="ln(1000 / 10) = ln 100.",
        mistakes=[
            (2.0, "That is the logarithm to base 10. It only scales all IDFs, but the question says natural."),
            (100.0, "The logarithm is missing."),
            (-4.60517, "That is log(n / N): rare words would be unimportant."),
            (5.51086, "That is the smoothed formula, ln((1 + N) / (1 + n)) + 1."),
        ],
        hint="Divide, then take the logarithm.",
    ),
    Choice(
        name="idf-everywhere",
        chapter=19,
        question="A word is in every document. What do the two formulas, log(N/n) and ln((1+N)/(1+n)) + 1, give it?",
        options=["0 and 1", "1 and 0", "0 and 0", "both the largest IDF of all"],
        right="a",
        reason="log 1 = 0, so the word does not count at all. The smoothed formula adds one, so it counts a little.",
        mistakes=[
            ("b", "log(N/N) = log 1 = 0 is the first formula; the + 1 is in the second."),
            ("c", "The second formula ends in + 1."),
            ("d", "It is the smallest: a word that is everywhere says nothing about one document."),
        ],
        hint="Set n = N.",
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
    Quantity(
        name="sound-frames",
        chapter=20,
        question="8000 samples, windows of 200 samples that begin every 80 samples and lie wholly within the sound. "
        "How many frames?",
        right=98.0,
        reason="1 + (8000 − 200) // 80 = 1 + 97.",
        mistakes=[
            (100.0, "8000 / 80 counts windows that reach beyond the end."),
            (97.0, "That is the number of steps between frames. There is one frame more than steps."),
            (40.0, "8000 / 200 would be windows that do not overlap. They begin every 80 samples."),
            (97.5, "Only whole frames count."),
        ],
        hint="The last window begins at sample 7800 at the latest.",
    ),
    Quantity(
        name="sound-window",
        chapter=20,
        question="Two convolutions of window 5, each with stride 2. How many input frames does one output depend on?",
        right=13.0,
        reason="It sees five outputs of the first layer, which begin two frames apart and see five frames each: 4 · 2 "
        "+ 5.",
        mistakes=[
            (10.0, "The windows overlap and slide; they are not set side by side."),
            (9.0, "That is for stride 1. Here neighbouring outputs of the first layer are two frames apart."),
            (25.0, "The five windows of the first layer overlap: they do not see 5 · 5 different frames."),
            (5.0, "That is one layer."),
        ],
        hint="Which frames do the first and the last of the five inputs of the second layer see?",
    ),
    Choice(
        name="sound-louder",
        chapter=20,
        question="A recording is made twice as loud. What happens to its log-mel energies?",
        options=[
            "they double",
            "the same number is added to all of them",
            "nothing",
            "they become four times as large",
        ],
        right="b",
        reason="The power is four times as large, and log(4 x) = log x + log 4. Subtracting the mean of the sound "
        "removes it.",
        mistakes=[
            ("a", "The samples double. The logarithm turns a factor into a sum."),
            ("c", "Before the mean is subtracted they do change, by log 4."),
            ("d", "The power is four times as large; the energies are its logarithm."),
        ],
        hint="|2 X|² = 4 |X|², and then the logarithm.",
    ),
    Quantity(
        name="heads-score",
        chapter=21,
        question="Four words; the weights on the next word are 0.8, 0.6 and 0.1 for the first three. What is the "
        "next-word score of the head, over the queries that have a next word?",
        right=0.5,
        reason="1.5 / 3: the last word has no next one, and does not count.",
        mistakes=[
            (0.375, "That divides by four. The last word has no next word, so it is no failure of the head."),
            (0.8, "That is the largest weight. A score is the mean over queries."),
            (1.5, "That is the sum."),
            (0.6, "That is the median."),
        ],
        hint="Mean over the queries that have such a key.",
    ),
    Choice(
        name="heads-control",
        chapter=21,
        question="A head gives 0.85 of the weight of 'straw' to '##berries'. What else must be known before calling "
        "it a head for parts of words?",
        options=[
            "nothing: 0.85 is more than one half",
            "how much it gives to the next token where that begins a new word",
            "how many heads the layer has",
            "whether the weights of the row sum to one",
        ],
        right="b",
        reason="A next-token head gives 0.85 as well, to every next token. Only the comparison tells the two apart.",
        mistakes=[
            ("a", "A large number has to be large compared with something: the head may do the same everywhere."),
            ("c", "Other heads do not change what this one does."),
            ("d", "They always do."),
        ],
        hint="Which simpler pattern would give the same number?",
    ),
    Choice(
        name="heads-sink",
        chapter=21,
        question="Why may a head put most of its weight on [CLS] or [SEP]?",
        options=[
            "these tokens are the most important ones of the text",
            "the weights of a row must sum to one, also when there is nothing to look for",
            "they are the first tokens that were trained",
            "the softmax prefers tokens at the ends",
        ],
        right="b",
        reason="A token with a small value is a place where weight does no harm. Chapter 22 shows what such weight "
        "contributes.",
        mistakes=[
            ("a", "Most such heads change nothing when these tokens are hidden from them. Weight is not importance."),
            ("c", "All tokens are trained together."),
            ("d", "The softmax does not know where a key stands."),
        ],
        hint="What can a row of a softmax not do?",
    ),
    Quantity(
        name="limits-contribution",
        chapter=22,
        question="One output along a direction g: weights (0.9, 0.1), and g·v = (0.1, 5) for the two values. What are "
        "the two contributions?",
        right=[0.09, 0.5],
        reason="C_j = w_j · (g·v_j). The key with a ninth of the weight contributes five times as much.",
        mistakes=[
            ([0.9, 0.1], "Those are the weights. A contribution is the weight times the value along g."),
            ([0.1, 5.0], "Those are the values. They enter with their weights."),
            ([0.153, 0.847], "Those are shares. Contributions sum to g·z = 0.59, and not to one."),
        ],
        hint="Multiply each weight by its value.",
    ),
    Choice(
        name="limits-same-output",
        chapter=22,
        question="Ten keys whose values have three components. How many independent directions are there in which one "
        "row of weights can change while its output and its sum stay the same?",
        options=["0: the output determines the weights", "3", "6", "9"],
        right="c",
        reason="Ten numbers with four equations (three components and the sum) leave 10 − 4 directions.",
        mistakes=[
            ("a", "Three numbers cannot determine ten."),
            ("b", "Three is the number of equations from the components, and not the number of free directions."),
            ("d", "9 leaves the sum alone fixed. The three components must stay, too."),
        ],
        hint="Count the unknowns, then the equations.",
    ),
    Choice(
        name="limits-experiment",
        chapter=22,
        question="A classifier puts weight 1.00 on 'disappointing'. Which observation shows that the word decided the "
        "label?",
        options=[
            "the weight itself",
            "the same weight in a second model",
            "the label stays when other words are exchanged",
            "the label changes when the word is left out or replaced",
        ],
        right="d",
        reason="A cause is found by changing it. In the chapter the label stays without the word, since 'poor' says "
        "the same.",
        mistakes=[
            ("a", "The weight says which state was averaged. That state has read all other words as well."),
            ("b", "Two models may share a habit. Neither was asked what it does without the word."),
            ("c", "That shows that other words did not matter, and says nothing about this one until it is changed."),
        ],
        hint="What would have to be different if the word had not been there?",
    ),
]


_SQUARE = torch.tensor([[0.5, -1.0], [2.0, 0.25]]), torch.tensor([[1.0, 0.5], [-0.5, 0.75]])

RECURRENT = [
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
        question="A GRU and a self-attention layer read 1000 words on hardware that computes any number of products "
        "at once. What is the longest chain of steps that must wait for each other?",
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
        question="The energies of three annotations are s = (0, 0, ln 2), the annotations themselves are the numbers "
        "h = (4, 8, 10). What is the context c?",
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
        reason="l_i = cell([y_{i−1}; c_i], l_{i−1}): the context must be there first. Luong turns the order round "
        "(chapter 15).",
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
        question="The readout's linear map gave (1, −2, 3, 5, −1, −4). What is left after the maxout over each two "
        "neighbours?",
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
        question="v · tanh(W [h; h̄]) for 30 states h and 50 states h̄, each 512 wide, hidden width 512. How many "
        "products of a matrix with a vector of 512 are needed?",
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
        reason="The set of keys within D of p_t changes in jumps, and a jump has no derivative. The Gaussian changes "
        "smoothly.",
        mistakes=[
            ("a", "The softmax already sums to one; after the Gaussian the weights no longer do."),
            ("c", "Energies do not depend on the distance. Nothing says that far words fit better."),
            ("d", "The Gaussian only makes weights smaller. What is outside of the window stays outside."),
        ],
        hint="What is the derivative of the output with respect to p_t without it?",
    ),
]


def _normalized(
    dim: int | None = -1, *, centred: bool = True, correction: int = 0, power: float = 0.5
) -> Callable[[torch.Tensor], torch.Tensor]:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        over = tuple(range(x.dim())) if dim is None else dim
        mean = x.mean(over, keepdim=True) if centred else torch.zeros(())
        variance = x.var(over, keepdim=True, correction=correction) if centred else x.square().mean(over, keepdim=True)
        return (x - mean) / (variance + 1e-5) ** power

    return normalize


TRANSFORMER = [
    Quantity(
        name="transformer-parameters",
        chapter=12,
        question="How many weights (without biases and norms) has one encoder layer with d_model = 512, 8 heads of 64 "
        "and a feed-forward part of 2048?",
        right=3145728.0,
        reason="W^Q, W^K, W^V and W^O are 512 × 512 each, for all heads together: 4 · 512² = 1,048,576. The "
        "feed-forward part is 512 × 2048 and back: 2,097,152. It holds two thirds of the layer.",
        mistakes=[
            (2883584.0, "W^O is missing: the concatenated heads are mixed by one more 512 × 512 matrix."),
            (
                10485760.0,
                "The heads do not have 512 × 512 matrices each. A head is 64 wide, so its three matrices are 512 × 64.",
            ),
            (1048576.0, "That is the attention alone. The feed-forward part has two matrices of 512 × 2048."),
            (2097152.0, "That is the feed-forward part alone. The attention has four matrices of 512 × 512."),
        ],
        hint="Four square matrices of the attention, and two of the feed-forward part.",
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
    Choice(
        name="transformer-cross-attention",
        chapter=12,
        question="In the middle attention of a decoder layer, where do queries, keys and values come from?",
        options=[
            "all three from the target so far",
            "queries from the target, keys and values from the encoder's annotations",
            "queries and keys from the target, values from the annotations",
            "queries from the annotations, keys and values from the target",
        ],
        right="b",
        reason="The target asks, the source answers. Keys and values belong together, one pair for each source token, "
        "and the output has one row for each target token.",
        mistakes=[
            ("a", "That is the first attention of the layer, the masked one. Nothing of the source would enter."),
            (
                "c",
                "A key needs a value: with keys from the target there would be as many weights as target tokens, and "
                "the values would be as many as source tokens.",
            ),
            (
                "d",
                "Then the output would have one row for each source token, and could not be added to the target's "
                "rows.",
            ),
        ],
        hint="The output is added to the target's residual stream: how many rows must it have?",
    ),
    Choice(
        name="transformer-output-matrix",
        chapter=12,
        question="What would be lost without W^O, if the heads' outputs were only set side by side?",
        options=[
            "nothing: the next layer's W^Q, W^K, W^V can do the same",
            "the heads would no longer be computed in parallel",
            "each head could write into its own 64 components of the residual stream only",
            "the weights of a row would no longer sum to one",
        ],
        right="c",
        reason="[z_1 … z_H] W^O = Σ_h z_h W^O_h: with it, every head writes a vector into the whole stream.",
        mistakes=[
            (
                "a",
                "The output is first added to the residual stream, which the feed-forward part reads too. Which "
                "component a head writes to matters before the next projection.",
            ),
            ("b", "The heads are independent of W^O, which is applied after them."),
            ("d", "The softmax makes rows sum to one, long before W^O."),
        ],
        hint="Which components of the sum x + concat(z) can head 1 change?",
    ),
]


TRANSFORMER_LAYER = [
    Choice(
        name="no-position",
        chapter=10,
        question="Without position embeddings a Transformer cannot tell where a word stands, nor how far apart two "
        "are. Why?",
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
        question="Self-attention without positions gives the words A, B, C the outputs 1, 2, 3. What does it give for "
        "the input C, A, B? Three numbers, in that order.",
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
        reason="By the chain rule the factors of the layers multiply. Normalizing after each layer keeps every factor "
        "near one.",
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
        question="How many numbers do W_1 and W_2 of a feed-forward network have together, with width 512 and hidden "
        "width 2048? Leave the biases out.",
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

EXERCISES = [*TRANSFORMER_LAYER, *TRANSFORMER, *RECURRENT, *CLASSIFICATION]
