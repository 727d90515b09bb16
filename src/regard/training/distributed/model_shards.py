"""A model whose parameters are sharded over processes by FSDP2, PyTorch's `fully_shard`.

Zhao et al. 2023 (arXiv 2304.11277): each process keeps 1/n of every parameter, its gradient and its moments. A unit's
parameters are gathered before its forward and backward pass, and its gradients are averaged and scattered after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.export
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from ...layers.transformer_layers import TransformerLayer
from ...models import Loss

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

# FSDP prepares the backward pass at the tensors of a result, which it must find in it.
torch.export.register_dataclass(Loss)


def shard_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a model in place. Each Transformer layer is a unit, and the rest of the model is another.

    `model.loss` becomes a forward pass of FSDP. Parameters, gathered parameters and gradients stay in their own type:
    mixed precision is autocast's, as without FSDP.
    """
    for module in list(model.modules()):
        if isinstance(module, TransformerLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


@torch.no_grad()
def copy_whole(model: nn.Module, whole: nn.Module) -> None:
    """Copy the weights of a sharded model into one that is whole. Every process must call this."""
    to = whole.state_dict()
    for name, tensor in model.state_dict().items():
        to[name].copy_(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def whole_weights(model: nn.Module, *, keep: bool) -> tuple[dict[str, Tensor], bool]:
    """The state dict with whole tensors on the CPU, and whether all of its numbers are finite.

    Every process must call this. Only those with `keep` get the tensors. Names of one parameter share one tensor.
    """
    names: dict[str, str] = {}  # name → the first name of the same parameter
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    weights: dict[str, Tensor] = {}
    finite = True
    for name, tensor in model.state_dict().items():
        if names.get(name, name) != name:
            continue
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        finite = finite and bool(whole.isfinite().all())
        if keep:
            weights[name] = whole.detach().cpu().clone()
    if keep:
        weights |= {name: weights[other] for name, other in names.items()}
    return weights, finite


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """This process's part of each."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
