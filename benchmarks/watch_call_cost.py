"""python -m benchmarks.watch_call_cost: CPU time that watching adds to one call of attention, for each way to call it.

Calls are tiny, so that what is measured is Python. Plain and watched loops take turns; each pair gives a difference.
The last rows are the opening and closing of a watch, on models of few and of many modules.

`--whole` prints instead what watching a whole forward pass costs, opening and closing included, as a ratio of CPU
times: an eager GPT-2 of Hugging Face, and one with fused kernels in `torch.inference_mode`, which takes fingerprints.
"""

from __future__ import annotations

import argparse
import functools
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Row, row, write
from regard import attend, watch
from tools import performance_page as page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS, LOOPS, ROUNDS = 20, 10, 21
WHOLE: dict[str, Any] = {"eager": torch.no_grad, "sdpa": torch.inference_mode}
WIDTH, HEADS, TOKENS = 32, 2, 8


class Kernel(nn.Module):
    """A module that calls scaled_dot_product_attention."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Attend(nn.Module):
    """A module that calls regard.attend."""

    def forward(self, x: Tensor) -> Tensor:
        return attend(x, x, x)


class MultiheadModule(nn.Module):
    """nn.MultiheadAttention, with or without the weights."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), weights

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=self.weights)[0]
        return out


def ways() -> Iterator[tuple[str, nn.Module, Callable[[], object]]]:
    """Names, models, and a call of each."""
    heads, tokens = torch.randn(1, HEADS, TOKENS, WIDTH // HEADS), torch.randn(1, TOKENS, WIDTH)
    for name, model in (("scaled_dot_product_attention", Kernel()), ("regard.attend", Attend())):
        yield name, model, lambda model=model: model(heads)  # type: ignore[misc]
    for name, weights in (("nn.MultiheadAttention", True), ("nn.MultiheadAttention, need_weights=False", False)):
        training = MultiheadModule(weights).train()  # without the fast path of evaluation
        yield name, training, lambda model=training: model(tokens)  # type: ignore[misc]
    fast = MultiheadModule(False).eval()
    yield "nn.MultiheadAttention, fast path", fast, lambda: fast(tokens)
    for implementation in ("sdpa", "eager"):
        layer, inputs = _llama_layer(implementation)
        yield f"Hugging Face, {implementation}", layer, lambda layer=layer, inputs=inputs: layer(**inputs)  # type: ignore[misc]


def _llama_layer(implementation: str) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=1)
    config._attn_implementation = implementation
    angles = torch.zeros(1, TOKENS, WIDTH // HEADS)
    inputs = {"hidden_states": torch.randn(1, TOKENS, WIDTH), "position_embeddings": (angles.cos(), angles.sin())}
    return LlamaAttention(config, 0).eval(), {**inputs, "attention_mask": None}


def call_cost(model: nn.Module, call: Callable[[], object]) -> list[float]:
    """Microseconds of CPU time by which a watched call exceeds a plain one."""
    differences = []
    for count in range(ROUNDS + 2):
        with watch(model):
            watched = _microseconds(call)
        plain = _microseconds(call)
        if count > 1:
            differences.append(watched - plain)
    return differences


def _microseconds(call: Callable[[], object]) -> float:
    """Of one call, by the fastest of some loops: what else runs on the machine slows down some of them."""
    times = []
    for _ in range(LOOPS):
        start = time.process_time()
        for _ in range(CALLS):
            call()
        times.append((time.process_time() - start) * 1e6 / CALLS)
    return min(times)


def opening_cost(model: nn.Module) -> list[float]:
    """Milliseconds of CPU time to open and close a watch."""

    def opened() -> None:
        with watch(model):
            pass

    return [_microseconds(opened) / 1e3 for _ in range(5)]


@torch.no_grad()
def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    for name, model, call in ways():
        yield row(f"watched call, {name}", "regard: CPU time added", call_cost(model, call), "µs")
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, batch_first=True)
    for layers in (8, 32):
        name = f"watch opened and closed, Transformer of {layers} layers"
        yield row(name, "regard: CPU time", opening_cost(nn.TransformerEncoder(layer, layers)))


def whole() -> None:
    """Print the ratio of watched to plain for some forward passes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    ways = [(kind, mode, length) for kind, mode in WHOLE.items() for length in (16, 128, 512)]
    for kind, mode, length in ways:
        config = GPT2Config(vocab_size=1000, bos_token_id=None, eos_token_id=None, attn_implementation=kind)
        model, ids = GPT2LMHeadModel(config).eval(), torch.randint(0, 999, (1, length))

        def watched(model: nn.Module = model, ids: Tensor = ids) -> None:
            with watch(model):
                model(ids)

        with mode():
            plain = functools.partial(model, ids)
            pairs = [(_once(plain), _once(watched)) for _ in range(ROUNDS)][2:]
        ratio = median(second / first for first, second in pairs)
        alone = median(first for first, _ in pairs) * 1e3
        print(f"GPT-2, {kind}, {mode.__name__}, {length} tokens: {ratio:.2f} × of {alone:.0f} ms", flush=True)


def _once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="forward passes of whole models")
    if parser.parse_args().whole:
        whole()
        return
    measured = []
    for one in rows():
        print(f"{one.work:60} {one.p50:8.2f} {one.unit}", flush=True)
        measured.append(one)
    write(measured)
    page.PAGE.write_text(page.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
