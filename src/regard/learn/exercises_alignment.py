"""Exercises of chapters 16 to 18: alignments, the LSTMN, Show, Attend and Tell."""

from __future__ import annotations

import torch

from .exercise import Choice, Function, Quantity

EXERCISES = [
    Quantity(
        name="alignment-error-rate",
        chapter=16,
        question="Predicted links A = {0-0, 1-1, 2-2, 3-2}; sure links S = {0-0, 1-1}; possible links P = {0-0, "
        "1-1, 2-2}. What is the "
        "alignment error rate 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)?",
        right=1 / 6,
        reason="|A ∩ S| = 2 and |A ∩ P| = 3, over 4 + 2 links: 1 − 5/6.",
        mistakes=[
            (
                0.25,
                "That is the share of predicted links that are not even possible. The rate counts missing sure "
                "links, too.",
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
        question="Write links(w): for weights w [target words, source words], the source word of largest weight "
        "for every target word, as numbers.",
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
        question="To align a given translation, the decoder is fed its words one after the other (forced "
        "decoding). What would go wrong if it were "
        "fed its own words instead?",
        options=[
            "nothing: the weights depend on the source only",
            "the rows would no longer sum to one",
            "the weights would be those of another sentence, namely its own translation",
            "it would need a beam search",
        ],
        right="c",
        reason="The query is the decoder's state, which has read the target so far. Another target has other "
        "states, and its rows belong to other words.",
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
        question="An LSTMN with one unit. The tape of memories is c = (4, 8), the weights are s = (0.25, 0.75), "
        "the gates f = i = 0.5, and the "
        "candidate ĉ = 1. What is the new memory c_t?",
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
        reason="The tape holds h_1 … h_{t−1}; h_t is what is being computed. It reads from left to right, as "
        "its authors wanted.",
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
        reason="The tape has one entry, and a softmax over one number is 1. Only from the third word on is "
        "there a choice.",
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
        reason="The gradient of a sample with respect to the energies is zero almost everywhere. REINFORCE "
        "takes the gradient of log p(s) times the reward instead.",
        mistakes=[
            ("a", "The decoder gets one vector in both cases: the average or the sample."),
            ("c", "One weight is 1 and the others are 0. That sums to one."),
            ("d", "Training has the captions in both cases."),
        ],
        hint="Move one energy by a millionth: does the sampled place change?",
    ),
]
