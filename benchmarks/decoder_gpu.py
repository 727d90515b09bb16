"""Training attentive decoders on a GPU: the usual loop over steps, beside ours, plain and in a CUDA graph.

    python -m benchmarks.decoder_gpu            B=256, T=30, 512 wide, bf16, forward and backward of the decoder

The usual loop is what tutorials and toolkits write: `nn.GRUCell`, tanh attention from PyTorch operations, autograd.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from regard.models import Annotations, RecurrentDecoderConfig, TransformerDecoderConfig
from regard.models.transformer_decoder import TransformerDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, VOCABULARY = 512, 8000


class Usual(nn.Module):
    """Bahdanau's decoder, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.weight = nn.Linear(WIDTH, 1, bias=False)
        self.bridge, self.cell = nn.Linear(WIDTH, WIDTH), nn.GRUCell(2 * WIDTH, WIDTH)
        self.join = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, notes: Annotations) -> torch.Tensor:
        y, keys = self.embedding(tokens), self.key(notes.vectors)
        closed = torch.arange(keys.shape[1], device=keys.device) >= notes.lengths[:, None]
        h = torch.tanh(self.bridge(notes.summary))
        features = []
        for t in range(tokens.shape[1]):
            e = self.weight(torch.tanh(self.query(h)[:, None] + keys))[..., 0].masked_fill(closed, -torch.inf)
            context = (torch.softmax(e, -1)[:, None].to(notes.vectors.dtype) @ notes.vectors)[:, 0]
            h = self.cell(torch.cat([y[:, t], context], -1), h)
            features.append(torch.tanh(self.join(torch.cat([h, y[:, t], context], -1))))
        return torch.stack(features, 1)


def timed(work: Callable[[], object], rounds: int = 20) -> float:
    """Milliseconds, the median of single calls; the host waits for each."""
    for _ in range(3):
        work()
    took = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - start) * 1e3)
    return statistics.median(took)


def graphed(work: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=30)
    given = parser.parse_args()
    torch.manual_seed(0)
    notes = Annotations(
        torch.randn(given.batch, given.length, WIDTH, device="cuda", requires_grad=True),
        torch.randint(given.length // 2, given.length + 1, (given.batch,), device="cuda"),
        torch.randn(given.batch, WIDTH, device="cuda"),
    )
    tokens = torch.randint(4, VOCABULARY, (given.batch, given.length), device="cuda")
    rnn = {"embedding": WIDTH, "width": WIDTH, "dropout": 0.0}
    models: dict[str, nn.Module] = {
        "usual loop": Usual(),
        "Bahdanau": RecurrentDecoderConfig(**rnn).build(VOCABULARY, WIDTH, 512),
        "Luong general": RecurrentDecoderConfig(attention="luong", energy="general", cell="lstm", **rnn).build(
            VOCABULARY, WIDTH, 512
        ),
        "Luong concat": RecurrentDecoderConfig(attention="luong", energy="concat", cell="lstm", **rnn).build(
            VOCABULARY, WIDTH, 512
        ),
        "Transformer, one layer": TransformerDecoder(
            TransformerDecoderConfig(width=WIDTH, heads=8, hidden=2048, layers=1, dropout=0.0), VOCABULARY, WIDTH, 512
        ),
    }
    usual = 0.0
    for name, model in models.items():
        model.cuda().train()
        parameters = [p for n, p in model.named_parameters() if not n.startswith("output")]

        def work(model: nn.Module = model, parameters: list[torch.Tensor] = parameters) -> object:
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                out = model(tokens, notes)
            features = out if isinstance(out, torch.Tensor) else out.features
            return torch.autograd.grad(
                features.float().square().mean(), [notes.vectors, *parameters], allow_unused=True
            )

        plain, replayed = timed(work), timed(graphed(work))
        usual = usual or plain
        ratios = f"{plain:7.2f} ms, {usual / plain:5.1f} ×    in a graph {replayed:6.2f} ms, {usual / replayed:5.1f} ×"
        print(f"{name:24} {ratios}", flush=True)


if __name__ == "__main__":
    main()
