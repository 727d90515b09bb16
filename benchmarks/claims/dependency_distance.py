"""Accuracy by the distance of a dependency: the last word asks for a fact that stood n words before it.

    python -m benchmarks.claims.dependency_distance [--full] [--seeds N] [--save-plot FILE.svg]

A fact is one word that says which of four values one of sixteen names has. The last word is a name whose fact occurs
once, n words before; all other words are facts about the other names. Two linear maps with a ReLU between them read
the network's vector of the last word, and nothing else. Distances in training are between 1 and 200, evenly on a
logarithmic scale.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from regard.attention import padding
from regard.layers import EncoderLayer
from regard.models import RecurrentEncoderConfig, TransformerEncoderConfig
from regard.models.encoders import ConvolutionEncoderConfig

from .command_line import draw, options, print_table

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from regard.models.encoders import EncoderConfig

NAMES, VALUES = 16, 4
QUESTIONS, FACTS = 4, 4 + NAMES  # the first ids of the words that ask for a name, and of the facts
WORDS, FARTHEST, WIDTH = FACTS + NAMES * VALUES, 200, 32
DISTANCES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 20, 30, 50, 80, 120, 200)

ENCODERS: dict[str, tuple[EncoderConfig, bool]] = {
    "CNN": (ConvolutionEncoderConfig(embedding=WIDTH, width=WIDTH, windows=[5], layers=3, dropout=0.0), False),
    "LSTM": (
        RecurrentEncoderConfig(cell="lstm", embedding=WIDTH, width=WIDTH, bidirectional=False, dropout=0.0),
        False,
    ),
    "LSTM with attention": (
        RecurrentEncoderConfig(cell="lstm", embedding=WIDTH, width=WIDTH, bidirectional=False, dropout=0.0),
        True,
    ),
    "Transformer": (TransformerEncoderConfig(width=WIDTH, heads=2, hidden=64, layers=2, dropout=0.0), False),
}
"""Each encoder, and whether a layer of self-attention follows it."""


def texts(count: int, distance: int, chance: torch.Generator) -> tuple[Int[Tensor, "count n"], Int[Tensor, "count"]]:
    """Texts whose last word asks for the fact `distance` words before it, and the value of that fact."""
    before = int(torch.randint(0, 6, (), generator=chance))
    shape = count, before + distance + 1
    name = torch.randint(0, NAMES, (count, 1), generator=chance)
    others = (name + torch.randint(1, NAMES, shape, generator=chance)) % NAMES
    values = torch.randint(0, VALUES, shape, generator=chance)
    text = FACTS + VALUES * others + values
    text[:, before], text[:, -1] = FACTS + VALUES * name[:, 0] + values[:, before], QUESTIONS + name[:, 0]
    return text, values[:, before]


class LastWordClassifier(nn.Module):
    """The encoder's vector of the last word, by itself or after a layer of self-attention, into four values."""

    def __init__(self, config: EncoderConfig, attends: bool) -> None:
        super().__init__()
        self.encoder = config.build(WORDS, FARTHEST + 8)
        self.attention = EncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0) if attends else None
        self.values = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, VALUES))

    def forward(self, text: Int[Tensor, "count n"]) -> Float[Tensor, "count values"]:
        lengths = torch.full((len(text),), text.shape[1])
        vectors = self.encoder(text, lengths).vectors
        if self.attention is not None:
            vectors = self.attention(vectors, padding(lengths))
        logits: Tensor = self.values(vectors[:, -1])
        return logits


def train(config: EncoderConfig, attends: bool, updates: int, seed: int, rate: float = 3e-3) -> LastWordClassifier:
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    model = LastWordClassifier(config, attends)
    adam = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, updates)
    for _ in range(updates):
        distance = round(math.exp(float(torch.rand((), generator=chance)) * math.log(FARTHEST)))
        text, label = texts(32, distance, chance)
        adam.zero_grad()
        nn.functional.cross_entropy(model(text), label).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: LastWordClassifier, distance: int, count: int = 400) -> float:
    text, label = texts(count, distance, torch.Generator().manual_seed(10_000 + distance))
    return 100 * float((model(text).argmax(-1) == label).double().mean())


def main() -> None:
    chosen = options(__doc__ or "")
    updates = 800 if chosen.full else 150
    curves = {}
    for name, (config, attends) in ENCODERS.items():
        models = [train(config, attends, updates, seed) for seed in range(chosen.seeds)]
        curves[name] = [(n, sum(accuracy(model, n) for model in models) / len(models)) for n in DISTANCES]
        print(name, [round(y) for _, y in curves[name]], flush=True)
    print_table("distance", curves)
    draw(chosen.save_plot, curves, "distance in words", "accuracy, %", log_x=True, level=(100 / VALUES, "chance"))


if __name__ == "__main__":
    main()
