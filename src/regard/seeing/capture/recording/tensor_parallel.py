"""Which share of a module's heads this process has, under tensor parallelism."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class HeadShare(NamedTuple):
    """The heads of one process among those of `ranks`."""

    rank: int
    ranks: int


WHOLE = HeadShare(0, 1)


def head_share(module: nn.Module | None) -> HeadShare:
    """By the parameters: heads are divided where some are split by rows and others by columns over the same processes.

    That is how projections to queries, keys and values and the projection of the output are split (Shoeybi et al.
    2019). FSDP splits all parameters by rows and gathers them before the module runs: it divides no heads.
    """
    tensor = sys.modules.get("torch.distributed.tensor")  # imported if a parameter is a DTensor
    if module is None or tensor is None:
        return WHOLE
    split = [x for x in module.parameters() if isinstance(x, tensor.DTensor)]
    for mesh in {x.device_mesh for x in split}:
        for axis in range(mesh.ndim):
            placements = [x.placements[axis] for x in split if x.device_mesh == mesh]
            if {0, 1} <= {x.dim for x in placements if isinstance(x, tensor.Shard)}:
                return HeadShare(mesh.get_local_rank(axis), mesh.size(axis))
    return WHOLE
