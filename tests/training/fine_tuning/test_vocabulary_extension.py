"""A vocabulary that grows by a new corpus: what it had keeps its number."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from regard.data.label_set import LabelSet
from regard.data.tokenizer import Tokenizer
from regard.training.fine_tuning.vocabulary_extension import extended_labels, extended_tokenizer

OLD = ["the cat sat on the mat", "the dog sat on the log"] * 5
NEW = ["a żółw żuł the carrot", "a żółw sat on the carrot"] * 5


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_old_pieces_keep_their_ids_and_new_text_is_known(kind: str, tmp_path: object) -> None:
    tokenizer = Tokenizer.train(kind, 60, OLD)  # type: ignore[arg-type]
    more = extended_tokenizer(tokenizer, NEW, 200)
    assert len(more) > len(tokenizer)
    ids = list(range(len(tokenizer)))
    assert more.pieces(ids) == tokenizer.pieces(ids)
    assert tokenizer.decode(tokenizer.encode(NEW[0])) != NEW[0], "it has characters or words that were not known"
    for text in (*OLD[:2], *NEW[:2]):
        assert more.decode(more.encode(text)) == text


def test_the_size_is_a_limit() -> None:
    tokenizer = Tokenizer.train("word", 60, OLD)
    assert len(extended_tokenizer(tokenizer, NEW, len(tokenizer) + 2)) == len(tokenizer) + 2
    with pytest.raises(ValueError, match=r"leaves no room for the \d+ that the new corpus needs; raise tokenizer.size"):
        extended_tokenizer(tokenizer, NEW, 8)
    assert len(extended_tokenizer(tokenizer, OLD, 60)) == len(tokenizer)


def test_labels_are_appended() -> None:
    labels = extended_labels(LabelSet(["yes", "no"]), ["yes", "perhaps", "never"])
    assert labels.names == ["yes", "no", "never", "perhaps"]
