"""Exercises of chapters 19 to 22: classification of text and sound, the heads of BERT, the limits of weights."""

from __future__ import annotations

import torch

from .exercise import Choice, Function, Quantity

EXERCISES = [
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
        question="Write weights(idf): from the IDF of each word of a text (repeated words repeat), the weights "
        "of static attention.",
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
        question="8000 samples, windows of 200 samples that begin every 80 samples and lie wholly within the "
        "sound. How many frames?",
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
        reason="It sees five outputs of the first layer, which begin two frames apart and see five frames each: "
        "4 · 2 + 5.",
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
        reason="The power is four times as large, and log(4 x) = log x + log 4. Subtracting the mean of the "
        "sound removes it.",
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
        question="Four words; the weights on the next word are 0.8, 0.6 and 0.1 for the first three. What is "
        "the next-word score "
        "of the head, over the queries that have a next word?",
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
        question="A head gives 0.85 of the weight of 'straw' to '##berries'. What else must be known before "
        "calling it a head for parts of words?",
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
        reason="A token with a small value is a place where weight does no harm. Chapter 22 shows what such "
        "weight contributes.",
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
        question="One output along a direction g: weights (0.9, 0.1), and g·v = (0.1, 5) for the two values. "
        "What are the two contributions?",
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
        question="Ten keys whose values have three components. How many independent directions are there in "
        "which one row of weights can change while "
        "its output and its sum stay the same?",
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
        question="A classifier puts weight 1.00 on 'disappointing'. Which observation shows that the word "
        "decided the label?",
        options=[
            "the weight itself",
            "the same weight in a second model",
            "the label stays when other words are exchanged",
            "the label changes when the word is left out or replaced",
        ],
        right="d",
        reason="A cause is found by changing it. In the chapter the label stays without the word, since 'poor' "
        "says the same.",
        mistakes=[
            ("a", "The weight says which state was averaged. That state has read all other words as well."),
            ("b", "Two models may share a habit. Neither was asked what it does without the word."),
            ("c", "That shows that other words did not matter, and says nothing about this one until it is changed."),
        ],
        hint="What would have to be different if the word had not been there?",
    ),
]
