"""python -m benchmarks.single_file_time [--tokens N]: how long `seen.to_html` takes for a long text.

A causal model of random queries and keys, by default 30 layers of 9 heads (as SmolLM2) over 6,000 tokens, 64 wide.
Prints wall and CPU seconds and the size of the file; with --profile, on one thread, the functions that take longest.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

import regard

WORDS = ["attention", "is", "a", "way", "to", "look", "things", "up", "."]


class Layers(nn.Module):
    """Causal attention of the same queries and keys, rolled by one token from layer to layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        for at, layer in enumerate(self.layers):
            layer(q.roll(at, -2), k, v)


class Layer(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend(q, k, v, mask=regard.causal())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="print the functions that take longest")
    options = parser.parse_args()
    if options.profile:  # on one thread no work is handed to others, which a profile does not see
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Layers(options.layers)
    with torch.no_grad(), regard.watch(model) as seen:
        model(*(torch.randn(1, options.heads, options.tokens, 64) for _ in range(3)))
    seen.tokens = [[WORDS[at % len(WORDS)] for at in range(options.tokens)]]
    profile = cProfile.Profile() if options.profile else nullcontext()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        wall, cpu = time.perf_counter(), time.process_time()
        with profile:
            seen.to_html(path)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = path.stat().st_size
    print(
        f"{options.layers} layers of {options.heads} heads, {options.tokens:,} tokens: {wall:.1f} s, {cpu:.1f} CPU s, "
        f"{size / 1e6:.1f} MB; {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    )
    if isinstance(profile, cProfile.Profile):
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
