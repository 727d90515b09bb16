"""Every cell of the table of systems learns: what docs/systems.md says works is trained here."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from regard.data import Batches, EncodedCorpus, LabelSet, Tokenizer, TokenizerPair
from regard.data.corpora import opinions, phrasebook, scenes, tones
from regard.data.media import PictureReader, SoundReader
from regard.data.tokenizer_pair import EmptyReader
from regard.models import (
    DECODERS,
    ENCODERS,
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
)
from tools import systems_page as systems

RATES = {"bag of words": 3e-2, "EfficientNet-Lite0": 2e-3}  # the last is 1280 wide
STEPS = 40  # at most: most need four


@cache
def material(reads: str, labels: bool) -> tuple[TokenizerPair, EncodedCorpus]:
    """A handful of pairs: enough to see whether a model learns them by heart."""
    if reads == "text":
        corpus = opinions.pairs(12) if labels else (p for p in phrasebook.pairs(80) if len(p.source.split()) < 8)
        pairs = [pair for pair, _ in zip(corpus, range(12), strict=False)]
        source = Tokenizer.train("word", 500, (pair.source for pair in pairs))
    elif reads == "sound":
        pairs, source = list(tones.pairs(6)), SoundReader()
    elif reads == "a picture":
        pairs, source = list(scenes.pairs(8)), PictureReader(64)
    else:
        pairs, source = list(phrasebook.pairs(12)), EmptyReader()
    texts = [pair.target for pair in pairs]
    target = LabelSet.train(texts) if labels else Tokenizer.train("word", 500, texts)
    sides = TokenizerPair(source, target)
    return sides, EncodedCorpus.build(pairs, sides)


def built(reads: str, encoder: str, part: str) -> EncoderDecoder | Classifier:
    """The system of a cell, the same every time."""
    head, below = systems.HEADS.get(part), systems.ENCODERS[reads, encoder]
    sides, _ = material(reads, head is not None)
    torch.manual_seed(0)
    if head is not None:
        return Classifier(ClassifierConfig(sides.source_size, len(sides.target.names), below, head))
    decoder = systems.paired(below, systems.WRITERS[part])
    return EncoderDecoder(EncoderDecoderConfig(sides.source_size, len(sides.target), below, decoder))


@pytest.mark.parametrize(("reads", "encoder", "part"), systems.cells(), ids=lambda name: str(name).replace(" ", "-"))
def test_it_learns(reads: str, encoder: str, part: str) -> None:
    _, encoded = material(reads, part in systems.HEADS)
    (batch,) = Batches(encoded, tokens=1 << 30)
    model = built(reads, encoder, part)
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learns, lr=RATES.get(encoder, 1e-2))
    losses = []
    for _ in range(STEPS):
        loss = model.loss(batch)
        losses.append(float(loss.nll / loss.tokens))
        if losses[-1] < 0.85 * losses[0]:
            break
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    else:
        pytest.fail(f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f} in {STEPS} steps")


def test_the_page_is_what_the_code_says() -> None:
    assert systems.PAGE.read_text(encoding="utf-8") == systems.page(), "run: python -m tools.systems_page"


def test_no_kind_is_missing_from_the_table() -> None:
    assert {part.kind for part in systems.ENCODERS.values()} == set(ENCODERS)
    assert {part.kind for part in systems.WRITERS.values()} == set(DECODERS)


@pytest.mark.parametrize(("reads", "encoder", "part"), systems.cells(), ids=lambda name: str(name).replace(" ", "-"))
def test_a_batch_without_a_pair_costs_nothing(reads: str, encoder: str, part: str) -> None:
    """What a process gets for which no pair is left: the others wait for its gradients."""
    _, encoded = material(reads, part in systems.HEADS)
    batch = Batches(encoded, tokens=1 << 30, rank=len(encoded), world=len(encoded) + 1)[0]
    assert batch.rows.tolist() == [-1]
    model = built(reads, encoder, part)
    loss = model.loss(batch)
    loss.total.backward()
    assert float(loss.tokens) == 0
    assert float(loss.nll) == 0
