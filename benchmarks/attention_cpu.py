"""The CPU rows: SDPA beside attend(), additive attention beside eager and compiled, statistics beside the forward."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.timing import Row, alternate, peak_memory, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


def rows() -> Iterator[Row]:
    yield from dot_product()
    yield from small_call()
    yield from additive()
    yield from masks()
    yield from distances()
    yield from decoder_step()
    yield from statistics()


def _trained(function: Callable[..., Tensor], *tensors: Tensor) -> Callable[[], None]:
    """Forward and backward, gradients thrown away."""

    def step() -> None:
        z = function(*tensors)
        torch.autograd.grad(z.sum(), tensors)

    return step


def dot_product() -> Iterator[Row]:
    q, k, v = (torch.randn(8, 8, 1024, 64, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        times = alternate({"sdpa": lambda: sdpa(q, k, v), "regard": lambda: regard.attend(q, k, v)}, 25)
    yield from (row("dot product (8, 8, 1024, 64) forward", by, t) for by, t in times.items())
    times = alternate({"sdpa": _trained(sdpa, q, k, v), "regard": _trained(regard.attend, q, k, v)}, 15)
    yield from (row("dot product (8, 8, 1024, 64) forward+backward", by, t) for by, t in times.items())


def small_call() -> Iterator[Row]:
    q, k, v = (torch.randn(1, 1, 16, 16) for _ in range(3))
    times = alternate({"sdpa": lambda: sdpa(q, k, v), "regard": lambda: regard.attend(q, k, v)}, 40, calls=500)
    yield from (row("dot product (1, 1, 16, 16) whole call", by, t) for by, t in times.items())


def _both(work: str, ways: dict[str, Callable[..., Tensor]], *x: Tensor) -> Iterator[Row]:
    """Forward, and forward with backward: CPU time, because machines are seldom quiet."""
    with torch.no_grad():
        forward = {by: (lambda f=f: f(*(y.detach() for y in x))) for by, f in ways.items()}
        times = alternate(forward, 5, clock=time.process_time)
    yield from (row(f"{work} forward", by, t) for by, t in times.items())
    times = alternate({by: _trained(f, *x) for by, f in ways.items()}, 3, clock=time.process_time)
    yield from (row(f"{work} forward+backward", by, t) for by, t in times.items())


def masks() -> Iterator[Row]:
    """What a mask hides is not computed: beside no mask, and beside the dense mask that was made of it before."""
    length, seed = 4096, torch.Generator().manual_seed(1)
    x = tuple(torch.randn(1, 2, length, 64, requires_grad=True) for _ in range(3))
    ends = torch.randperm(length - 1, generator=seed)[:15].sort().values
    table = torch.rand(length // 128, length // 128, generator=seed) < 1 / 8
    named = {
        "causal & window(256)": regard.causal() & regard.window(256),
        "16 equal documents": regard.documents(torch.arange(length) // 256),
        "16 documents": regard.documents(torch.bucketize(torch.arange(length), ends)),
        "half padding": regard.padding([length // 2]),
        "prefix(1024) | causal": regard.prefix(1024) | regard.causal(),
        "mask_mod, an eighth of the blocks": regard.mask_mod(lambda b, h, i, j: table[i // 128, j // 128]),
    }
    for name, mask in named.items():
        seen = mask.dense((1, 2), length, length, torch.device("cpu"))
        ways = {
            "sdpa, no mask": sdpa,
            "sdpa, dense mask": lambda *y, seen=seen: sdpa(*y, seen),
            "regard": lambda *y, mask=mask: regard.attend(*y, mask=mask),
        }
        yield from _both(f"{name}, T=4096 H=2 D=64, CPU time", ways, *x)
    one, window = torch.no_grad(), named["causal & window(256)"]
    with one:
        every, few = (regard.attend(*x, mask=m, weights=True)[1] for m in (None, window))
    ask = {"entropy": True, "received": True, "top": 1}
    times = alternate({"no mask": lambda: every.stats(**ask), "window": lambda: few.stats(**ask)}, 5)
    yield from (
        row("entropy, received and maximum, causal & window(256), T=4096 H=2", by, t) for by, t in times.items()
    )


def distances() -> Iterator[Row]:
    x = tuple(torch.randn(1, 2, 4096, 64, requires_grad=True) for _ in range(3))
    for energy in (regard.Gaussian(), regard.InverseDistance()):
        ways = {"sdpa": sdpa, "regard": lambda *y, energy=energy: regard.attend(*y, energy=energy)}
        yield from _both(f"{type(energy).__name__} T=4096 H=2 D=64, CPU time", ways, *x)


ADDITIVE = """
energy = regard.Additive(256, 256, 256)
q, k, v = (torch.randn(4, 256, 256, requires_grad=True) for _ in range(3))
def eager(q, k, v):
    hidden = torch.tanh(energy.query(q)[:, :, None] + energy.key(k)[:, None])
    return torch.softmax(hidden @ energy.weight, dim=-1) @ v
def ours(q, k, v):
    return regard.attend(q, k, v, energy=energy)
def small(function):  # large enough to take the same path as the whole
    function(*(x[:, :48] for x in (q, k, v))).sum().backward()
small(eager), small(ours)
"""


def additive() -> Iterator[Row]:
    scope: dict[str, object] = {"torch": torch, "regard": regard}
    exec(ADDITIVE, scope)  # the same lines that the memory is measured with, in processes of their own
    tensors = tuple(scope[name] for name in "qkv")
    ways = {"eager": scope["eager"], "regard": scope["ours"]}
    if shutil.which("g++") or shutil.which("clang++"):
        ways["torch.compile"] = torch.compile(scope["eager"])
    with torch.no_grad():
        times = alternate({by: (lambda f=f: f(*tensors)) for by, f in ways.items()}, 15)
    yield from (row("additive B=4 T=256 D=256 forward", by, t) for by, t in times.items())
    times = alternate({by: _trained(f, *tensors) for by, f in ways.items()}, 11)
    yield from (row("additive B=4 T=256 D=256 forward+backward", by, t) for by, t in times.items())
    for by, name in (("eager", "eager"), ("regard", "ours")):
        held = [peak_memory(ADDITIVE, f"{name}(q, k, v).sum().backward()") for _ in range(3)]
        yield row("additive B=4 T=256 D=256 forward+backward, peak extra memory", by, held, "MiB")


def decoder_step() -> Iterator[Row]:
    """One query per sentence, where nothing is shared among queries: the formula itself is what "auto" takes."""
    energy = regard.Additive(256, 256, 256)
    q, k, v = (torch.randn(32, t, 256, requires_grad=True) for t in (1, 50, 50))

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.tanh(energy.query(q)[:, :, None] + energy.key(k)[:, None])
        return torch.softmax(hidden @ energy.weight, dim=-1) @ v

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend(q, k, v, energy=energy)

    times = alternate({"eager": _trained(eager, q, k, v), "regard": _trained(ours, q, k, v)}, 40, calls=5)
    yield from (row("additive decoder step B=32 T_q=1 T_k=50 D=256 forward+backward", by, t) for by, t in times.items())


STATISTICS = """
torch.manual_seed(0)
q, k, v = (torch.randn(1, 8, 16384, 64) for _ in range(3))
out, w = regard.attend(q, k, v, weights=True)
def stats():
    return w.stats(entropy=True, top=8, received=True, map=(256, 256))
"""


def statistics() -> Iterator[Row]:
    scope: dict[str, object] = {"torch": torch, "regard": regard}
    exec(STATISTICS, scope)
    q, k, v = (scope[name] for name in "qkv")
    with torch.no_grad():
        times = alternate({"sdpa forward": lambda: sdpa(q, k, v), "regard stats": scope["stats"]}, 5)
    work = "statistics T=16384 H=8 D=64 (entropy, top-8, received, 256×256 map)"
    yield from (row(work, by, t) for by, t in times.items())
    yield row(f"{work}, peak extra memory", "regard stats", [peak_memory(STATISTICS, "stats()")], "MiB")
    q, k, v = (torch.randn(1, 8, 8192, 64) for _ in range(3))
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    ask = {"entropy": True, "top": 8, "received": True, "map": (256, 256)}
    with torch.no_grad():
        times = alternate(
            {"sdpa forward": lambda: sdpa(q, k, v, is_causal=True), "regard stats": lambda: w.stats(**ask)}, 5
        )
    yield from (row("statistics T=8192 H=8 D=64, causal (the same four)", by, t) for by, t in times.items())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for one in (*masks(), *distances()):
        print(f"{one.work:75} {one.by:18} {one.p20:9.2f} {one.unit}", flush=True)
