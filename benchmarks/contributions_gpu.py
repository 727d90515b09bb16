"""Statistics of contributions C_ij = w_ij (g_i · v_j) beside attention itself, and attention × gradient of a model.

    PYTHONPATH=src python3 -m benchmarks.contributions_gpu --csv benchmarks/speeds.csv

The first part is one causal layer: milliseconds per call, five calls in a row, as `benchmarks.statistics_gpu` measures.
The second is a Llama-shaped model with random weights: its forward and backward passes, and the same with
`watch(gradients=True)` and the contributions of every head of every layer, asked for their totals, what each key
received, and a map. Milliseconds, and the peak of memory beyond the model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.statistics_gpu import measure, timed
from benchmarks.timing import RESULTS, Row, gpu_row, quantiles, write
from benchmarks.watch_cost_gpu import SHAPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = {"total": True, "size": True, "spread": True, "received": True, "received_size": True, "map": (128, 128)}
OF_A_MODEL = {"total": True, "received": True, "received_size": True, "map": (128, 128)}


def one_layer(length: int, heads: int, width: int) -> Iterator[Row]:
    q, k, v, g = (torch.randn(1, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    _, w = regard.attend(q, k, v, mask=regard.causal(), weights=True)
    c = regard.Contributions(w, v, g)
    questions: dict[str, dict[str, object]] = {
        "regard: total, size, spread, received, received size, map": EVERY,
        "regard: total, received, received size, map": OF_A_MODEL,
        "regard: the first with top 8": {**EVERY, "top": 8},
        "regard: only total": {"total": True},
        "regard: only received": {"received": True},
        "regard: only spread": {"spread": True},
        "regard: only map": {"map": (128, 128)},
        "regard: only top 8": {"top": 8},
    }
    works: dict[str, Callable[[], object]] = {
        "PyTorch forward": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        **{by: lambda asked=asked: c.stats(**asked) for by, asked in questions.items()},
    }
    work = f"contributions T={length} H={heads} D={width} causal, bfloat16"
    rows = []
    for by, call in works.items():
        p20, p50, p80, _, peak = measure(call, 0.3)
        rows.append(gpu_row(work, by, p20, p50, p80))
        rows.append(gpu_row(f"{work}, peak extra memory", by, peak, peak, peak, "MiB"))
    yield from sorted(rows, key=lambda row: row.work)


def of_a_model(layers: int, lengths: list[int], rounds: int) -> Iterator[Row]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**SHAPE, num_hidden_layers=layers, max_position_embeddings=max(lengths))
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaModel(config).to(torch.bfloat16).eval()

    def backward(ids: torch.Tensor) -> None:
        model(ids, use_cache=False).last_hidden_state.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    def attributed(ids: torch.Tensor) -> None:
        with regard.watch(model, gradients=True) as seen:
            backward(ids)
        for call in seen:
            call.contributions().stats(**OF_A_MODEL)  # type: ignore[arg-type]

    works: dict[str, Callable[[torch.Tensor], None]] = {
        "forward and backward": backward,
        "regard: the same and the contributions of all heads": attributed,
    }
    for length in lengths:
        ids = torch.randint(SHAPE["vocab_size"], (1, length), device="cuda")
        work = f"attention × gradient, Llama-shaped, {layers} layers, {length:,} tokens, bfloat16"
        times: dict[str, list[float]] = {by: [] for by in works}
        memory = {}
        for by, call in works.items():
            call(ids)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call(ids)
            memory[by] = (torch.cuda.max_memory_allocated() - before) / 2**20
        for _ in range(rounds):
            for by, call in works.items():
                times[by].append(timed(lambda call=call, ids=ids: call(ids), 1))
        for by in works:
            yield gpu_row(work, by, *quantiles(times[by]))
        for by in works:
            yield gpu_row(f"{work}, memory beyond the model", by, *[memory[by]] * 3, "MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    rows = []
    for part in (one_layer(16384, 16, 128), of_a_model(options.layers, options.tokens, options.rounds)):
        for row in part:
            print(f"{row.work:90} {row.by:60} {row.p20:9.3f} {row.p50:9.3f} {row.p80:9.3f} {row.unit}", flush=True)
            rows.append(row)
        torch.cuda.empty_cache()
    write(rows, options.csv)


if __name__ == "__main__":
    main()
