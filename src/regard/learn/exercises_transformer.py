"""Exercises of chapter 12: the layers of a Transformer."""

from __future__ import annotations

import torch

from .exercise import Choice, Function, Quantity


def _rows(dim: int | None, *, centred: bool = True, correction: int = 0) -> object:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        over = tuple(range(x.dim())) if dim is None else dim
        mean = x.mean(over, keepdim=True) if centred else torch.zeros(())
        variance = x.var(over, keepdim=True, correction=correction) if centred else x.square().mean(over, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt()

    return normalize


EXERCISES = [
    Quantity(
        name="transformer-parameters",
        chapter=12,
        question="How many weights (without biases and norms) has one encoder layer with d_model = 512, 8 heads "
        "of 64 and a "
        "feed-forward part of 2048?",
        right=3145728.0,
        reason="W^Q, W^K, W^V and W^O are 512 × 512 each, for all heads together: 4 · 512² = 1,048,576. The "
        "feed-forward "
        "part is 512 × 2048 and back: 2,097,152. It holds two thirds of the layer.",
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
        question="Write layer_norm(x) for x [tokens, width] without the learned g and b: every row gets mean 0 "
        "and variance 1. "
        "Divide by the root of (variance + 1e-5), where the variance divides by the width.",
        right=_rows(-1),
        reason="Each token is normalized by itself, over its components.",
        mistakes=[
            (
                _rows(0),
                "That normalizes each component over the tokens, as batch norm does. A token would depend on "
                "the others.",
            ),
            (_rows(None), "That takes one mean and one variance over the whole matrix. Each row has its own."),
            (
                _rows(-1, correction=1),
                "That variance divides by width − 1 (PyTorch's default). Layer norm divides by the width.",
            ),
            (_rows(-1, centred=False), "The mean is not subtracted. That is RMSNorm, which newer models use."),
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
        reason="The target asks, the source answers. Keys and values belong together, one pair for each source "
        "token, and the "
        "output has one row for each target token.",
        mistakes=[
            ("a", "That is the first attention of the layer, the masked one. Nothing of the source would enter."),
            (
                "c",
                "A key needs a value: with keys from the target there would be as many weights as target "
                "tokens, and the "
                "values would be as many as source tokens.",
            ),
            (
                "d",
                "Then the output would have one row for each source token, and could not be added to the "
                "target's rows.",
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
                "component a "
                "head writes to matters before the next projection.",
            ),
            ("b", "The heads are independent of W^O, which is applied after them."),
            ("d", "The softmax makes rows sum to one, long before W^O."),
        ],
        hint="Which components of the sum x + concat(z) can head 1 change?",
    ),
]
