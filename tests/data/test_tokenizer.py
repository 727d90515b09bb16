"""Tokenizers: text comes back, special ids are ours alone, files are whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from regard.data import BEGIN, END, PAD, UNKNOWN, Pair, Tokenizer, TokenizerPair
from regard.data.corpora import phrasebook

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tokenizers")

KINDS = ["bpe", "unigram", "word", "character"]
BOOK = list(phrasebook.pairs(400, seed=5))
TEXTS = [text for pair in BOOK for text in (pair.source, pair.target)]


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(request.param, 1200, TEXTS)


def test_text_comes_back(trained: Tokenizer) -> None:
    for text, ids in zip(TEXTS, trained.encode_batch(TEXTS), strict=True):
        assert trained.decode(ids) == text
        assert trained.encode(text) == ids
        assert min(ids) > UNKNOWN
        assert max(ids) < len(trained)


def test_special_ids_come_first_and_are_left_out_of_text(trained: Tokenizer) -> None:
    assert trained.pieces([PAD, BEGIN, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = trained.encode("the cat sleeps .")
    assert trained.decode([BEGIN, *ids, END, PAD, PAD]) == "the cat sleeps ."


def test_what_a_text_says_is_never_a_special_id(trained: Tokenizer) -> None:
    """A stranger's "</s>" must not end a sentence."""
    for text in ("<s> the cat </s>", "</s>", "a <pad> b", "the</s>cat", "<unk>"):
        assert min(trained.encode(text)) >= UNKNOWN, text


def test_unknown_shows(trained: Tokenizer) -> None:
    ids = trained.encode("the ☃ sleeps")
    assert UNKNOWN in ids
    assert "<unk>" in trained.decode(ids)


def test_pieces_belong_to_words(trained: Tokenizer) -> None:
    for text in TEXTS[:100]:
        ids = trained.encode(text)
        words = trained.words(ids)
        assert len(words) == len(ids)
        assert words == sorted(words)
        assert words[-1] == text.count(" "), text
        spelt = [""] * (words[-1] + 1)
        for piece, word in zip(trained.pieces(ids), words, strict=True):
            spelt[word] += piece.replace("▁", "")
        assert spelt == text.split(" ")


def test_saved_and_loaded(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(again) == len(trained)
    assert again.encode_batch(TEXTS) == trained.encode_batch(TEXTS)
    assert min(again.encode("</s> <s>")) >= UNKNOWN, "what is set at training holds after loading"
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"], "nothing unfinished is left behind"


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same(kind: str) -> None:
    one, two = (Tokenizer.train(kind, 600, TEXTS) for _ in range(2))  # type: ignore[arg-type]
    assert [one.pieces(ids) for ids in one.encode_batch(TEXTS)] == [two.pieces(ids) for ids in two.encode_batch(TEXTS)]
    if kind != "unigram":
        assert one.encode_batch(TEXTS) == two.encode_batch(TEXTS)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_text_as_people_write_it_comes_back(kind: str) -> None:
    """Cased, with apostrophes, thin spaces, digits, escapes of Moses' tokenizer, and two spaces in a row."""
    texts = [
        "Where's the library? (It's closed.)",
        "L'été dernier, j'ai payé 3,50 € aujourd'hui\u202f!",
        "l&apos; herbe est &quot; verte &quot; .",
        "two  spaces, and a – dash",
        "A.B.C. http://x.y/z?q=1 #tag",
    ]
    tokenizer = Tokenizer.train(kind, 400, texts * 3)  # type: ignore[arg-type]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode(texts[3])
    assert tokenizer.words(ids)[-1] == 5, "two spaces part two words, not three"


def test_pieces_never_join_words_or_cross_an_escape() -> None:
    tokenizer = Tokenizer.train("bpe", 400, ["l&apos; eau , l&apos; air d'été"] * 50)
    assert tokenizer.pieces(tokenizer.encode("l&apos; eau , d'été")) == ["▁l", "&apos;", "▁eau", "▁,", "▁d'", "été"]


def test_lowercase() -> None:
    tokenizer = Tokenizer.train("bpe", 300, TEXTS, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("The CAT sleeps .")) == "the cat sleeps ."


def test_joint_and_separate_sides(tmp_path: Path) -> None:
    joint = TokenizerPair.train("word", 2000, BOOK)
    assert joint.joint
    assert len(joint.source) > 700
    joint.save(tmp_path)
    assert TokenizerPair.load(tmp_path).joint
    apart = TokenizerPair.train("word", 2000, BOOK, joint=False)
    assert not apart.joint
    assert max(len(apart.source), len(apart.target)) < len(joint.source)
    assert UNKNOWN in apart.source.encode("voiture")
    apart.save(tmp_path)  # over the joint one
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tokenizer.source.json", "tokenizer.target.json"]
    again = TokenizerPair.load(tmp_path)
    assert not again.joint
    assert again.target.encode("une voiture rouge") == apart.target.encode("une voiture rouge")
    (tmp_path / "tokenizer.target.json").unlink()
    with pytest.raises(ValueError, match=r"neither tokenizer.json nor tokenizer.source.json and tokenizer.target.json"):
        TokenizerPair.load(tmp_path)


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'wordpiece'; known kinds are bpe, unigram, word, character"):
        Tokenizer.train("wordpiece", 100, TEXTS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 4"):
        Tokenizer.train("bpe", 4, TEXTS)
    with pytest.raises(ValueError, match=r"a vocabulary of 10 is too small .* ask for at least \d\d"):
        Tokenizer.train("bpe", 10, TEXTS)
    with pytest.raises(ValueError, match="no text to train"):
        TokenizerPair.train("bpe", 100, list[Pair]())
    file = tmp_path / "tokenizer.json"
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer.json"):
        Tokenizer.load(file)
    with pytest.raises(FileNotFoundError):
        Tokenizer.load(tmp_path / "nowhere.json")
    Tokenizer.train("word", 50, TEXTS).save(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["content"] = token["content"].replace("<pad>", "[PAD]")
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {name.replace("<pad>", "[PAD]"): i for name, i in vocabulary.items()}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"begins with <pad> <s> </s> <unk>; this one begins with \['\[PAD\]'"):
        Tokenizer.load(file)
    tokenizer = Tokenizer.train("word", 50, TEXTS)
    with pytest.raises(ValueError, match="id 50 is not in this vocabulary of 50"):
        tokenizer.pieces([7, 50])


def test_words_with_punctuation_split_off() -> None:
    """Text as people write it gives the tokens of the tokenised text that the vocabulary comes from."""
    tokenised = "l' accord sur le teacher 's est-ce qu' il <2fr> aujourd'hui 1992 , . ?"
    tokenizer = Tokenizer.train("word", 100, [tokenised], lowercase=True, punctuation=True)
    typed = "L'accord sur le teacher's est-ce qu'il <2fr> aujourd'hui 1992, .?"
    assert tokenizer.pieces(tokenizer.encode(typed)) == tokenised.split()
    assert tokenizer.pieces(tokenizer.encode(tokenised)) == tokenised.split()
    plain = Tokenizer.train("word", 100, [tokenised])
    assert plain.encode("l'accord") == [3], "without `punctuation`, spaces alone separate words"
    with pytest.raises(ValueError, match="punctuation = true is for the tokenizer"):
        Tokenizer.train("bpe", 100, [tokenised], punctuation=True)


@pytest.mark.parametrize(
    ("kind", "text", "unknown"),
    [
        ("bpe", "red ж carж щ", ["ж", "щ"]),
        ("word", "red ж cart", ["ж", "cart"]),
        ("character", "a car ж", ["ж"]),
        ("bpe", "red car", []),
        ("word", "red </s>", ["</s>"]),
    ],
)
def test_the_unknown_parts_of_a_text(kind: str, text: str, unknown: list[str]) -> None:
    tokenizer = Tokenizer.train(kind, 60, ["a red car", "the red car"] * 5)
    assert tokenizer.unknown_parts(text) == unknown
    assert bool(unknown) == (UNKNOWN in tokenizer.encode(text))
