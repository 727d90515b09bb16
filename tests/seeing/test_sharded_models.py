"""Models in parts: two processes (DDP, FSDP, tensor parallelism), offloaded layers, checkpoints, ensembles."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard import watch

if TYPE_CHECKING:
    from pathlib import Path

    from regard import Seen

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    """Four heads of width two."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MambaMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).cumsum(dim=-2)


def whole() -> tuple[nn.Module, Tensor, list[Tensor]]:
    """A model, its input and its weights."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Attention(), Attention()), torch.randn(2, 5, 8)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    return model, x, weights(seen)


def weights(seen: Seen) -> list[Tensor]:
    return [call.weights.tile(slice(None), slice(None)) for call in seen]


def replicated(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.children():
        plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "o": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    return model


def in_one_process(rank: int, store: str, results: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model, x, expected = whole()
    for way in (replicated, fully_sharded, tensor_parallel):
        split = way(copy.deepcopy(model))
        with watch(split) as seen:
            split(x).sum().backward()
        assert seen.faithful, (way.__name__, seen)
        assert [call.layer for call in seen] == [0, 1], way.__name__
        share = way is tensor_parallel
        for call, w, all_heads in zip(seen, weights(seen), expected, strict=True):
            numbers = range(2 * rank, 2 * rank + 2) if share else range(4)
            assert call.head_numbers == numbers, way.__name__
            assert call.all_heads == 4, way.__name__
            torch.testing.assert_close(w, all_heads[:, numbers.start : numbers.stop], msg=way.__name__)
        assert (f"2 of 4, from {2 * rank}" in repr(seen)) == share
    with open(f"{results}{rank}", "w", encoding="utf-8") as file:
        file.write("all")
    torch.distributed.destroy_process_group()


def test_two_processes_see_what_each_computes(tmp_path: Path) -> None:
    mp.spawn(in_one_process, (str(tmp_path / "store"), str(tmp_path / "result")), nprocs=2)
    assert [(tmp_path / f"result{rank}").read_text() for rank in range(2)] == ["all", "all"]


@torch.no_grad()
def test_layers_dispatched_by_a_device_map_are_seen_and_named() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, x, expected = whole()
    model = nn.Sequential(model[0], MambaMixer(), copy.deepcopy(model[1]))
    split = accelerate.dispatch_model(
        model, device_map={"0": "cpu", "1": "cpu", "2": "cpu"}, main_device="cpu", force_hooks=True
    )
    assert "forward" in vars(split[1])  # a hook in place of the class's
    hooked = split[1].forward
    with watch(split) as seen:
        split(x)
    torch.testing.assert_close(weights(seen)[0], expected[0])
    assert len(seen) == 2
    assert split[1].forward is hooked


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_no_further_call(reentrant: bool) -> None:
    model, x, expected = whole()
    with watch(model) as seen:
        for layer in model:
            x = checkpoint(layer, x.requires_grad_(), use_reentrant=reentrant)
        x.sum().backward()
    assert len(seen) == 2
    assert seen.faithful
    torch.testing.assert_close(weights(seen), expected)


def test_an_ensemble_under_vmap_is_named() -> None:
    models = [whole()[0] for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)

    def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    ensemble, x = torch.vmap(run, (0, 0, None)), torch.randn(2, 5, 8)
    expected = ensemble(parameters, buffers, x)
    with watch(models[0]) as seen:
        out = ensemble(parameters, buffers, x)
    torch.testing.assert_close(out, expected)
    assert not seen.faithful
    assert [message for message in seen.missed if "inside torch.vmap" in message] == seen.missed != []
