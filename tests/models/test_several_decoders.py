"""One encoder with several decoders: annotations that do not know the language, and each row by its own decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import Batch
from regard.decoding import search
from regard.models import (
    Annotations,
    Encoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    MultiDecoder,
    MultiDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    load,
)
from regard.models.several_decoders import TagEncoder
from regard.special_tokens import BEGIN, END

if TYPE_CHECKING:
    from pathlib import Path

    from regard.models import DecoderConfig

FR, ES = 4, 5
SOURCE = torch.tensor([[FR, 7, 8, 9, 2], [ES, 7, 8, 9, 2], [ES, 6, 2, 0, 0], [FR, 8, 2, 0, 0]])
LENGTHS = torch.tensor([5, 5, 3, 3])
TARGET = torch.tensor([[1, 6, 7, 8, 2], [1, 9, 9, 2, 0], [1, 6, 2, 0, 0], [1, 8, 8, 8, 2]])
BATCH = Batch(SOURCE, LENGTHS, TARGET, torch.tensor([5, 4, 3, 5]), torch.arange(4))
DECODERS: list[DecoderConfig] = [
    RecurrentDecoderConfig(attention="bahdanau", embedding=8, width=8, dropout=0.0),
    TransformerDecoderConfig(width=8, heads=2, hidden=8, layers=2, dropout=0.0),
]


def model(decoder: DecoderConfig, tied: str = "decoder") -> MultiDecoder:
    torch.manual_seed(0)
    encoder = RecurrentEncoderConfig(embedding=8, width=4, dropout=0.0)
    config = MultiDecoderConfig(10, 10, encoder, decoder, tied=tied, tags=[FR, ES])  # type: ignore[arg-type]
    return MultiDecoder(config).double().eval()


def single(many: MultiDecoder, number: int) -> EncoderDecoder:
    """The encoder-decoder of one language, with the same weights."""
    config = EncoderDecoderConfig(10, 10, many.config.encoder, many.config.decoder, tied=many.config.tied)
    one = EncoderDecoder(config).double().eval()
    one.encoder.load_state_dict(many.encoder.encoder.state_dict())  # type: ignore[union-attr]
    one.decoder.load_state_dict(many.decoder.decoders[number].state_dict())  # type: ignore[union-attr, index]
    return one


def rows(batch: Batch, chosen: list[int]) -> Batch:
    """Some rows, with <s> in the place of the tag: what the encoder reads."""
    source = batch.source[chosen].clone()
    source[:, 0] = 1
    at = torch.tensor(chosen)
    return Batch(source, batch.source_lengths[at], batch.target[at], batch.target_lengths[at], at)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.kind)
def test_the_annotations_of_a_sentence_are_the_same_for_both_decoders(decoder: DecoderConfig) -> None:
    annotations = model(decoder).encode(SOURCE, LENGTHS)
    assert annotations.decoder is not None
    assert annotations.decoder.tolist() == [0, 1, 1, 0]
    assert torch.equal(annotations.vectors[0], annotations.vectors[1])
    assert torch.equal(annotations.summary[0], annotations.summary[1])


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.kind)
def test_the_loss_is_the_sum_of_the_losses_of_the_languages(decoder: DecoderConfig) -> None:
    many = model(decoder)
    loss = many.loss(BATCH, smoothing=0.1)
    parts = [
        single(many, number).loss(rows(BATCH, chosen), smoothing=0.1) for number, chosen in ((0, [0, 3]), (1, [1, 2]))
    ]
    torch.testing.assert_close(loss.total, parts[0].total + parts[1].total)
    torch.testing.assert_close(loss.nll, parts[0].nll + parts[1].nll)
    loss.total.backward()
    assert all(weight.grad is not None for weight in many.parameters())


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda each: each.kind)
def test_a_mixed_batch_is_searched_as_each_language_alone(decoder: DecoderConfig) -> None:
    many = model(decoder)
    mixed = search(many, many.encode(SOURCE, LENGTHS), beams=3, longest=6, weights=True)
    for number, chosen in ((0, [0, 3]), (1, [1, 2])):
        one, part = single(many, number), rows(BATCH, chosen)
        alone = search(one, one.encode(part.source, part.source_lengths), beams=3, longest=6, weights=True)
        for row, hypotheses in zip(chosen, alone, strict=True):
            assert [h.tokens for h in mixed[row]] == [h.tokens for h in hypotheses]
            torch.testing.assert_close(mixed[row][0].weights, hypotheses[0].weights)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    many = model(DECODERS[0])
    many.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, MultiDecoder)
    assert again.task == "translate"
    torch.testing.assert_close(again.double().loss(BATCH).nll, many.loss(BATCH).nll)  # type: ignore[operator]


def test_a_sentence_without_a_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="sentence 2 does not begin with a tag"):
        model(DECODERS[0]).encode(torch.tensor([[FR, 7, 2], [7, 7, 2]]), torch.tensor([3, 3]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tags": []}, "a list of positive whole numbers"),
        ({"tags": [4, 4]}, "one token twice"),
        ({"tags": [4, 5], "tied": "all"}, "there are several"),
    ],
)
def test_impossible_configurations(settings: dict[str, object], expected: str) -> None:
    encoder = RecurrentEncoderConfig(embedding=8, width=4)
    config = MultiDecoderConfig(10, 10, encoder, DECODERS[0], **settings)  # type: ignore[arg-type]
    assert any(expected in problem for problem in config.problems())


def test_in_place_of_a_tag_stands_the_begin_token() -> None:
    class Echo(Encoder):
        width = 1

        def forward(self, source: torch.Tensor, lengths: torch.Tensor) -> Annotations:
            return Annotations(source[..., None].float(), lengths, source[:, 0, None].float())

    annotations = TagEncoder(Echo(), [7, 8])(torch.tensor([[8, 5, END], [7, 6, END]]), torch.tensor([3, 3]))
    assert annotations.vectors[:, 0, 0].tolist() == [BEGIN, BEGIN]
    assert annotations.decoder.tolist() == [1, 0]
