"""The special tokens have one definition, which tokenizers, data and models share."""

from __future__ import annotations

import torch

from regard.data import Tokenizer
from regard.models import Annotations, Encoder
from regard.models.multi_decoder import TagEncoder
from regard.special_tokens import BEGIN, END, PAD, SPECIALS, UNKNOWN


def test_every_vocabulary_begins_with_them() -> None:
    tokenizer = Tokenizer.train("word", 10, ["a b", "b c"])
    assert [tokenizer._backend.id_to_token(n) for n in (PAD, BEGIN, END, UNKNOWN)] == SPECIALS


def test_in_place_of_a_tag_stands_the_begin_token() -> None:
    class Echo(Encoder):
        width = 1

        def forward(self, source: torch.Tensor, lengths: torch.Tensor) -> Annotations:
            return Annotations(source[..., None].float(), lengths, source[:, 0, None].float())

    annotations = TagEncoder(Echo(), [7, 8])(torch.tensor([[8, 5, END], [7, 6, END]]), torch.tensor([3, 3]))
    assert annotations.vectors[:, 0, 0].tolist() == [BEGIN, BEGIN]
    assert annotations.decoder.tolist() == [1, 0]
