"""The Inside view: one layer and head of a Transformer of regard, matrix by matrix, as the model computed them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..seeing.watch import watch
from ..special_tokens import UNKNOWN
from .guard import RequestError
from .responses import rounded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..attention.weights import Weights
    from ..decoding.model_folders import Pretrained
    from ..layers.transformer import TransformerLayer
    from ..models.encoder_decoder import EncoderDecoder

MOST_TOKENS = 24
"""Tokens that are computed; of a longer text, the first so many."""
NEXT = 8
"""Most likely next tokens that are listed."""


def _record(tensors: dict[str, Tensor], name: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """The first input ("name in") and the output ("name out") of a module; a forward hook."""
    tensors[f"{name} in"] = inputs[0].detach()
    tensors[f"{name} out"] = (output[0] if isinstance(output, tuple) else output).detach()


@torch.no_grad()
def inside_view(loaded: Pretrained, text: str, layer: int, head: int) -> dict[str, Any]:
    """`matrices` by name, each a list of rows, and `steps`: which of them each step of the computation shows.

    A step has `shows`, names of matrices side by side, or `product`, [left, right, result] of a matrix product. In
    `scores` masked entries are null. Of a language model `next` has the likeliest next tokens.
    """
    network: EncoderDecoder = loaded.model
    writes = network.config.encoder.kind == "none"
    stack: Any = network.decoder if writes else network.encoder
    layers = list(stack.layers)
    if not 0 <= layer < len(layers):
        raise RequestError(404, f"there is no layer {layer}; the model has {len(layers)}, counted from 0")
    part: TransformerLayer = layers[layer]
    attention = part.attention
    if not 0 <= head < attention.heads:
        raise RequestError(404, f"there is no head {head}; the layer has {attention.heads}, counted from 0")
    tokenizer = loaded.tokenizers.target if writes else loaded.tokenizers.source
    ids = (tokenizer.continued(text) if writes else list(tokenizer.encode(text)))[:MOST_TOKENS]
    if writes and UNKNOWN in ids:
        raise RequestError(422, "the text has letters that this model does not know; leave them out")
    if not ids:
        raise RequestError(422, "the text holds no token of this model; type another")
    modules = {
        "layer": part, "attention norm": part.around_attention.norm, "query": attention.query,
        "key_value": attention.key_value, "output": attention.output, "around attention": part.around_attention,
        "feed_forward norm": part.around_feed_forward.norm, "hidden": part.feed_forward[1],
        "feed_forward": part.feed_forward,
    }  # fmt: skip
    one = torch.ones(1, dtype=torch.int64)
    tensors: dict[str, Tensor] = {}
    with ExitStack() as hooks, watch(network) as seen:
        for name, module in modules.items():
            hooks.callback(module.register_forward_hook(partial(_record, tensors, name)).remove)
        if writes:
            annotations = network.encode(one[:, None], one)
            features = network.decoder(torch.tensor([ids]), annotations).features
        else:
            network.encode(torch.tensor([ids]), one * len(ids))
    kind = "decoder" if writes else "encoder"
    call = next(x for x in seen if x.layer == layer and x.kind == "self" and x.name.startswith(kind))
    matrices = _matrices(part, head, {name: x[0] for name, x in tensors.items()}, call.head(head))
    content: dict[str, Any] = {
        "tokens": tokenizer.pieces(ids),
        "layers": len(layers),
        "heads": attention.heads,
        "width": attention.head_width,
        "matrices": {name: rounded(x, 5) for name, x in matrices.items()},
        "steps": _steps(part, matrices),
    }
    if writes:
        shares = network.decoder.readout(features)[0, -1].float().softmax(-1).topk(NEXT)
        pieces = tokenizer.pieces(shares.indices.tolist())
        content["next"] = [{"piece": x, "share": y} for x, y in zip(pieces, rounded(shares.values, 5), strict=True)]
    return content


def _matrices(part: TransformerLayer, head: int, x: dict[str, Tensor], weights: Any) -> dict[str, Tensor]:
    """Every matrix of the layer for one head, [tokens, …]; those of other heads only in `concat`."""
    attention, d = part.attention, part.attention.head_width
    key_head = head * attention.key_heads // attention.heads
    keys, values = x["key_value out"].unflatten(-1, (2, attention.key_heads, d))[:, :, key_head].unbind(1)
    energies = weights.flat()
    n = weights.entries[0]
    q, k = energies.a[n].float(), energies.b[n].float()
    modified = energies.block(slice(n, n + 1), slice(0, len(q)), slice(0, len(k)), -torch.inf)[0]
    products = q @ k.mT
    concat = x["output in"]
    matrices = {
        "X": x["layer in"],
        "norm of X": x["attention norm out"],
        "Q": x["query out"].unflatten(-1, (-1, d))[:, head],
        "K": keys,
        "V": values,
        "Q turned": q,
        "K turned": k,
        "QKᵀ": products,
        "QKᵀ / √d": products * energies.form.scale,
        "masked": modified,  # with a bias of positions, where the model has one
        "W": weights.dense().float(),
        "Z": concat.unflatten(-1, (-1, d))[:, head],
        "concat": concat,
        "concat · W_O": x["output out"],
        "after attention": x["around attention out"],
        "norm": x["feed_forward norm out"],
        "hidden": x["hidden out"],
        "feed-forward": x["feed_forward out"],
        "out": x["layer out"],
    }
    if attention.rotary is None:
        del matrices["Q turned"], matrices["K turned"]
    return {"Kᵀ": k.mT, **matrices}


def _steps(part: TransformerLayer, matrices: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The steps in the order in which the layer computes them."""
    around = part.around_attention
    before = around.first and around.normalizes
    scores = "QKᵀ / √d" if part.scaled else "QKᵀ"
    rotates = part.attention.rotary is not None
    masks = bool((matrices["masked"] == -torch.inf).any())
    source = "norm of X" if before else "X"
    steps: list[dict[str, Any]] = [
        {"title": "X", "text": "One row for each token: what the layer reads.", "shows": ["X"]},
    ]
    if before:
        steps.append({"title": "Norm", "text": "Each row with mean 0 and variance 1.", "shows": ["X", "norm of X"]})
    text = f"{source} times three matrices of this head: a query, a key and a value for each token."
    steps.append({"title": "Q, K, V", "text": text, "shows": ["Q", "K", "V"]})
    if rotates:
        text = "Queries and keys are turned by an angle that grows with the position."
        steps.append({"title": "Positions", "text": text, "shows": ["Q turned", "K turned"]})
    steps += [
        {"title": "Q Kᵀ", "text": "Every query times every key: how well they match.",
         "product": ["Q turned" if rotates else "Q", "Kᵀ", "QKᵀ"]},
    ]  # fmt: skip
    if part.scaled:
        text = "Divided by the root of the width, so that the numbers stay small."
        steps.append({"title": "÷ √d", "text": text, "shows": ["QKᵀ", "QKᵀ / √d"]})
    if masks:
        text = "A token may not look at those after it: these entries are closed."
        steps.append({"title": "Mask", "text": text, "shows": [scores, "masked"]})
    steps += [
        {"title": "Softmax", "text": "Each row becomes weights that sum to 1.",
         "shows": ["masked" if masks else scores, "W"]},
        {"title": "W V", "text": "Each token gets the average of the values, by its weights.",
         "product": ["W", "V", "Z"]},
        {"title": "Concat", "text": "The results of all heads side by side; this head's are outlined.",
         "shows": ["concat"]},
        {"title": "W_O", "text": "Mixed by one matrix.", "shows": ["concat", "concat · W_O"]},
    ]  # fmt: skip
    done = [*(["added to what the layer read"] if around.adds else []), *([] if around.first else ["normalized"])]
    if done:
        title = ", ".join([*(["add"] if around.adds else []), *([] if around.first else ["norm"])])
        shows = [*(["X"] if around.adds else []), "concat · W_O", "after attention"]
        steps.append({"title": title.capitalize(), "text": f"{', and '.join(done).capitalize()}.", "shows": shows})
    if before:
        text = "Normalized before the feed-forward network."
        steps.append({"title": "Norm", "text": text, "shows": ["after attention", "norm"]})
    steps += [
        {"title": "Hidden", "text": "Each row by itself, into a wider layer; negative numbers become 0.",
         "shows": ["hidden"]},
        {"title": "Feed-forward", "text": "And back to the width of the model.", "shows": ["hidden", "feed-forward"]},
        {"title": "Out", "text": f"{'Added again: w' if around.adds else 'W'}hat the next layer reads.",
         "shows": ["feed-forward", "out"]},
    ]  # fmt: skip
    return steps


MOST_KEYS = 512
"""Keys of one response."""


@torch.no_grad()
def neuron_view(weights: Weights, query: int, cols: range) -> dict[str, Any]:
    """For one head, [T_q, T_k].

    `energy` is Σ_d product_d: scale · q_d k_d for a dot product, w_d tanh(q_d + k_d) for an additive energy,
    −(q_d − k_d)² / 2 for a Gaussian. Any other function of (q, k) has no terms. `modified` is the energy after biases,
    caps and the mask, null where it is masked; `weight` is that energy normalized.
    """
    energies = weights.flat()
    n, form = weights.entries[0], energies.form
    entry, row, span = slice(n, n + 1), slice(query, query + 1), slice(cols.start, cols.stop)
    q, k = energies.a[n, query].float(), energies.b[n, span].float()  # [D], [cols, D]
    product = form.terms(q, k)
    energy = form(energies.a[entry, row], energies.b[entry, span])[0, 0] if product is None else product.sum(-1)
    modified = energies.block(entry, row, span, -torch.inf)[0, 0]
    return {
        "query": query,
        "cols": [cols.start, cols.stop],
        "q": rounded(q, 7),
        "k": rounded(k, 7),
        "kind": "function" if product is None or form.kernel is None else form.kernel,
        "scale": form.scale,
        "product": None if product is None else rounded(product, 7),
        "energy": rounded(energy, 7),
        "modified": rounded(modified, 7),
        "weight": rounded(weights.tile(query, span)[0], 7),
        "normalizer": type(weights.normalize).__name__,
    }
