"""Translating: in order, in any batch, as it streams; every model with its cache and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from regard.data import Tokenizer, TokenizerPair
from regard.decoding import Hypothesis, Sample, search, translate
from regard.decoding.classification import Classification, TextWords
from regard.models import EncoderDecoder, EncoderDecoderConfig, RecurrentDecoderConfig, TransformerDecoderConfig
from regard.special_tokens import BEGIN, END
from tests.support.small_translators import DECODERS, ENCODERS, TEXTS, small_translator, text_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return text_tokenizers()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_cached_steps_agree_with_reading_everything_again(decoder: str, beams: int, tokenizers: TokenizerPair) -> None:
    """What search says of a hypothesis, by cached steps reordered and dropped, is what teacher forcing says of it."""
    it = small_translator(
        len(tokenizers.source), "transformer" if decoder in ("transformer", "alibi") else "rnn", decoder
    )
    for result in translate(it, tokenizers, TEXTS, beams=beams, best=beams, weights=True, longest=15):
        for h in result.hypotheses if result.source else []:
            source = torch.tensor([result.source_tokens])
            target = torch.tensor([[BEGIN, *h.tokens, END]])
            decoded = it(source, torch.tensor([source.shape[1]]), target[:, :-1], weights=True)
            logprobs = it.readout(decoded.features)[0].log_softmax(-1)
            assert h.logprob == pytest.approx(logprobs.gather(1, target[0, 1:, None]).sum().item(), rel=1e-3)
            if decoder == "seq2seq":
                assert h.weights is None
            else:
                assert h.weights is not None
                torch.testing.assert_close(h.weights, decoded.weights[0], rtol=1e-3, atol=1e-4)


def test_learned_positions_end_a_translation(tokenizers: TokenizerPair) -> None:
    torch.manual_seed(1)
    size = len(tokenizers.source)
    decoder = TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=1, positions="learned")
    it = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["rnn"], decoder, longest=7)).eval()
    with torch.no_grad():
        it.decoder.output.weight[END] = 0  # it does not end by itself
    for longest in (None, 50):
        result = list(translate(it, tokenizers, TEXTS[:3], beams=2, weights=True, longest=longest))
        assert max(len(t.tokens) for t in result) == 7  # with </s>


@pytest.mark.parametrize("decoder", ["bahdanau", "transformer"])
def test_batches_and_windows_change_nothing(decoder: str, tokenizers: TokenizerPair) -> None:
    it = small_translator(len(tokenizers.source), decoder=decoder)
    expected = [next(translate(it, tokenizers, [text], beams=3)) for text in TEXTS]
    for tokens, window in ((10_000, 100), (40, 100), (1, 3), (10_000, 2)):
        result = list(translate(it, tokenizers, TEXTS, tokens=tokens, window=window, beams=3))
        assert [t.source for t in result] == TEXTS
        assert [t.text for t in result] == [t.text for t in expected]
        assert [t.hypotheses[0].score for t in result] == pytest.approx(
            [t.hypotheses[0].score for t in expected], rel=1e-4
        )


def test_it_reads_no_further_than_its_window_and_answers_before_the_end(tokenizers: TokenizerPair) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield TEXTS[read % 2]

    answers = translate(small_translator(len(tokenizers.source)), tokenizers, endless(), window=4, beams=1)
    for number in range(1, 10):
        next(answers)
        assert read <= (number + 3) // 4 * 4


class Recording:
    """An engine that says each source backwards, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def __call__(self, sources: list[list[int]], **how: object) -> list[list[Hypothesis]]:
        self.batches.append(sources)
        return [[Hypothesis(source[-2::-1], 0.0, 0.0)] for source in sources]


def test_batches_hold_like_lengths_and_no_more_than_asked(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    result = list(translate(engine, tokenizers, TEXTS * 5, tokens=60))
    assert [t.hypotheses[0].tokens for t in result] == [t.source_tokens[-2::-1] for t in result]
    assert all(len(batch) == 1 or max(map(len, batch)) * len(batch) <= 60 for batch in engine.batches)
    assert len(engine.batches) < len(TEXTS) * 5 / 2
    # What is next in order is translated first.
    assert TEXTS[0] in {tokenizers.source.decode(source) for source in engine.batches[0]}


def test_an_answer_goes_out_as_soon_as_it_is_the_next(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    answers = translate(engine, tokenizers, TEXTS, tokens=1)
    for number, _ in zip(range(1, 4), answers, strict=False):
        assert len(engine.batches) <= number


def test_empty_lines_stay_empty(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    assert [t.text for t in translate(engine, tokenizers, ["", "   ", ""])] == ["", "", ""]
    assert engine.batches == []
    first, second = translate(engine, tokenizers, ["", ""])
    first.hypotheses[0].tokens.append(5)
    assert second.hypotheses[0].tokens == [], "what one caller changes, another sees"


def test_too_long_a_sentence_is_named(tokenizers: TokenizerPair) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has [\d,]+ tokens; at most 2,048"):
        list(translate(Recording(), tokenizers, ["a worm", "worm " * 3000]))


def test_a_model_in_training_stays_in_training(tokenizers: TokenizerPair) -> None:
    it = small_translator(len(tokenizers.source)).train()
    list(translate(it, tokenizers, TEXTS[:2], beams=2))
    assert it.training
    with pytest.raises(ValueError, match=r"model\.eval"):
        search(it, it.encode(torch.tensor([[5, END]]), torch.tensor([2])))


@pytest.fixture(scope="module")
def pointer() -> tuple[EncoderDecoder, TokenizerPair]:
    """A model that can copy unknown words. Two of them have one id with probability 1/2."""
    both = Tokenizer.train("word", 40, ["the red car", "sees a bird"], slots=2)
    torch.manual_seed(0)
    decoder = RecurrentDecoderConfig(embedding=16, width=16, copy=True)
    config = EncoderDecoderConfig(len(both), len(both), ENCODERS["rnn"], decoder, slots=2)
    return EncoderDecoder(config).eval(), TokenizerPair(both, both)


def test_an_unknown_word_is_required_only_where_the_source_has_it(
    pointer: tuple[EncoderDecoder, TokenizerPair],
) -> None:
    it, tokenizers = pointer
    names = ["Zorblatt", *(f"name{n}" for n in range(20))]
    ids = [tokenizers.target.encode(name)[0] for name in names]
    same = names[ids.index(ids[0], 1)]  # another unknown word with the id of the first
    how: dict[str, Any] = {"beams": 3, "longest": 6}
    for source in ("the red car", f"the {same} car", f"the {same} Zorblatt car"):
        with pytest.raises(ValueError, match=f"'Zorblatt' cannot be written: .* cannot be copied from '{source}'"):
            list(translate(it, tokenizers, [source], prefix=["Zorblatt"], **how))
    with pytest.raises(ValueError, match=f"'{same}' is not in the target vocabulary"):
        list(translate(it, tokenizers, ["the Zorblatt car"], prefix=[f"Zorblatt {same}"], **how))
    first, second = translate(it, tokenizers, ["", "the Zorblatt car"], prefix=["Zorblatt"] * 2, **how)
    assert (first.text, second.text.split()[0]) == ("", "Zorblatt")


def test_samples_and_n_best_differ_from_one_another(tokenizers: TokenizerPair) -> None:
    it = small_translator(len(tokenizers.source))
    (drawn,) = translate(it, tokenizers, TEXTS[:1], beams=5, best=5, sample=Sample(seed=1))
    (ranked,) = translate(it, tokenizers, TEXTS[:1], beams=5, best=5)
    assert len({tuple(h.tokens) for h in ranked.hypotheses}) == 5
    assert len({tuple(h.tokens) for h in drawn.hypotheses}) > 1
    assert len(ranked.texts) == 5


@pytest.mark.parametrize(
    ("text", "marked", "warning"),
    [
        ("the film was dull", "the film was dull", ""),
        ("the zebra was dull", "the ⟨zebra⟩ was dull", "the model does not know what stands in ⟨⟩"),
        ("the film was dull.", "the film was ⟨dull.⟩", "it knows 'dull', so put a space"),
        ("zebra zebra", "⟨zebra⟩ ⟨zebra⟩", "the model knows no word of this"),
    ],
)
def test_unknown_words_are_marked(text: str, marked: str, warning: str) -> None:
    tokenizer = Tokenizer.train("word", 20, ["the film was dull", "the film was good"])
    ids = np.array([*tokenizer.encode(text), END])
    words = TextWords.of(Classification(text, ids), tokenizer)
    assert words.marked() == marked.split()
    assert warning in words.warning()
    assert bool(warning) == bool(words.warning())
