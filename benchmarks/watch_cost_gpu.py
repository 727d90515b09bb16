"""python -m benchmarks.watch_cost_gpu: a Llama-shaped model over 131,072 tokens on a GPU, plainly, watched and asked.

The model is random (8 billion parameters' shape, with as many layers as told); what is asked is asked of every head:
entropies, the top 8 keys, what each key received, sinks and patterns, those of equal tokens from 1,024 queries.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.timing import Row, gpu_row, write
from regard import watch
from regard.seeing.analysis import Patterns, TokenizedText
from tools import performance_page as page

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
QUERIES = 1024


def rows(tokens: int, layers: int, device: str, rounds: int) -> list[Row]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**SHAPE, num_hidden_layers=layers, max_position_embeddings=tokens)
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaModel(config).to(torch.bfloat16).eval()
    zipf = 1 / torch.arange(1, SHAPE["vocab_size"] + 1)  # as often as words of a language repeat
    text = TokenizedText.from_ids(
        torch.multinomial(zipf, tokens, replacement=True, generator=torch.Generator().manual_seed(0))
    )

    @torch.no_grad()
    def plain(text: TokenizedText) -> None:
        model(text.ids[None].to(device), use_cache=False)

    @torch.no_grad()
    def watched(text: TokenizedText) -> None:
        with watch(model):
            model(text.ids[None].to(device), use_cache=False)

    @torch.no_grad()
    def asked(text: TokenizedText) -> None:
        with watch(model) as seen:
            model(text.ids[None].to(device), use_cache=False)
        patterns = Patterns(rows=QUERIES)
        patterns.add(seen, text, top=8)
        assert len(patterns.heads()) == layers * SHAPE["num_attention_heads"]
        assert all(call.fidelity().faithful for call in seen), seen

    heads = layers * SHAPE["num_attention_heads"]
    name = f"Llama-shaped, {layers} layers, {tokens:,} tokens, bfloat16"
    works: dict[str, Callable[[TokenizedText], None]] = {
        "plain forward": plain,
        "regard: watched forward": watched,
        f"regard: watched, then entropies, top 8, sinks and patterns of all {heads} heads": asked,
    }
    found = []
    for by, work in works.items():
        work(TokenizedText.from_ids(text.ids[: tokens // 8]))  # compiles what it needs
        _peak(device, reset=True)
        before, seconds = _peak(device), []
        for _ in range(rounds):
            start = time.perf_counter()
            work(text)
            _wait(device)
            seconds.append(time.perf_counter() - start)
        quantiles = [sorted(seconds)[round(q * (rounds - 1))] for q in (0.2, 0.5, 0.8)]
        print(f"{name:60} {by:80} {quantiles[1]:8.2f} s {(_peak(device) - before):8.0f} MiB", flush=True)
        if device.startswith("cuda"):
            found.append(gpu_row(f"{name}, seconds", by, *quantiles, "s"))
            more = _peak(device) - before
            found.append(gpu_row(f"{name}, memory beyond the model", by, more, more, more, "MiB"))
    return sorted(found, key=lambda one: one.work.endswith("model"))


def _peak(device: str, reset: bool = False) -> float:
    if not device.startswith("cuda"):
        return 0.0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / (1 << 20)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("--tokens", type=int, default=131072)
    told.add_argument("--layers", type=int, default=8)
    told.add_argument("--device", default="cuda")
    told.add_argument(
        "--rounds", type=int, default=3, help="after one over an eighth of the tokens that does not count"
    )
    options = told.parse_args()
    measured = rows(options.tokens, options.layers, options.device, options.rounds)
    if measured:
        write(measured)
        page.PAGE.write_text(page.page(), encoding="utf-8")
