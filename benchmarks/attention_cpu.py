"""The CPU rows: SDPA beside attend(), additive attention beside eager and compiled, statistics beside the forward."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
    yield from additive_beside_a_busy_process()
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


def additive_beside_a_busy_process() -> Iterator[Row]:
    """Machines are seldom quiet: ten runs with another process that computes all the time. Each row is of these ten."""
    scope: dict[str, object] = {"torch": torch, "regard": regard}
    exec(ADDITIVE, scope)
    tensors = tuple(scope[name] for name in "qkv")
    ways = {"eager": scope["eager"], "regard": scope["ours"]}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with torch.no_grad():
            times = alternate({by: (lambda f=f: f(*tensors)) for by, f in ways.items()}, 10, calls=3)
        yield from (row("additive B=4 T=256 D=256 forward, beside a busy process", by, t) for by, t in times.items())
        times = alternate({by: _trained(f, *tensors) for by, f in ways.items()}, 10, calls=3)
        name = "additive B=4 T=256 D=256 forward+backward, beside a busy process"
        yield from (row(name, by, t) for by, t in times.items())
    finally:
        busy.kill()


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
