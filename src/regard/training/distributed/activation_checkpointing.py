"""Transformer layers that keep no activations for the backward pass and compute them again (Chen et al. 2016).

Memory falls from all activations of all layers to those of one layer and the input of each; the price is a second
forward pass (arXiv 1604.06174).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

from ...layers.transformer_layers import TransformerLayer

if TYPE_CHECKING:
    from torch import nn


def checkpoint_activations(model: nn.Module) -> None:
    """Change the layers of a model in place. Dropout draws the same numbers both times."""
    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    if not layers:
        raise ValueError(
            "training.activation_checkpointing = true is for Transformer layers, and this model has none; set it to "
            "false"
        )
    for layer in layers:
        object.__setattr__(layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False))
