"""Classifiers: every pooling is its formula, every weight shown is the one used, and padding is never read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn.functional import conv1d, cross_entropy

import regard
from regard.data import EncodedCorpus, LabelSet, Pair, Tokenizer, TokenizerPair
from regard.data.corpora import opinions
from regard.layers import pooling
from regard.models import (
    BagEncoderConfig,
    Classifier,
    ClassifierConfig,
    ConvolutionEncoderConfig,
    EncoderConfig,
    HeadConfig,
    LSTMNEncoderConfig,
    RecurrentEncoderConfig,
    TransformerEncoderConfig,
)
from regard.models.encoders import WindowConvolution
from regard.training.scores import distance, error_rate

if TYPE_CHECKING:
    from pathlib import Path

WORDS, CLASSES, WIDTH = 30, 3, 16
ENCODERS: dict[str, EncoderConfig] = {
    "linear": BagEncoderConfig(),
    "bag": BagEncoderConfig(width=WIDTH),
    "cnn": ConvolutionEncoderConfig(embedding=8, width=8, windows=[2, 3]),
    "rnn": RecurrentEncoderConfig(cell="lstm", embedding=8, width=8),
    "lstmn": LSTMNEncoderConfig(embedding=8, width=8),
    "transformer": TransformerEncoderConfig(width=WIDTH, heads=2, hidden=16, layers=1),
}
SOUND: dict[str, EncoderConfig] = {
    "cnn": ConvolutionEncoderConfig(reads="sound", embedding=8, width=8, windows=[3], layers=2, stride=2),
    "rnn": RecurrentEncoderConfig(reads="sound", embedding=8, width=8),
    "transformer": TransformerEncoderConfig(reads="sound", width=8, heads=2, hidden=8, layers=1),
}
POOLINGS = ("mean", "last", "max", "static", "learned", "attention")


def batch(rows: int = 6, longest: int = 9) -> SimpleNamespace:
    lengths = torch.randint(2, longest + 1, (rows,))
    source = torch.randint(4, WORDS, (rows, longest))
    source[torch.arange(longest) >= lengths[:, None]] = 0
    label = torch.randint(4, 4 + CLASSES, (rows,))
    target = torch.stack([torch.full_like(label, 1), label, torch.full_like(label, 2)], 1)
    return SimpleNamespace(
        source=source, source_lengths=lengths, target=target, target_lengths=torch.full_like(label, 3)
    )


def classifier(encoder: str, how: str) -> Classifier:
    model = Classifier(ClassifierConfig(WORDS, CLASSES, ENCODERS[encoder], HeadConfig(how, hidden=8))).eval()
    assert model.static is not None
    model.static.idf.copy_(torch.rand(WORDS) + 1)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin as zeros
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("how", POOLINGS)
def test_weights_are_those_used_and_padding_is_not_read(encoder: str, how: str) -> None:
    model, given = classifier(encoder, how), batch()
    with torch.no_grad(), regard.watch(model) as seen:
        said = model(given.source, given.source_lengths, weights=True)
    if how == "last":
        assert said.weights is None
    else:
        torch.testing.assert_close(said.weights.sum(1), torch.ones(6))
        assert (said.weights[torch.arange(9) >= given.source_lengths[:, None]] == 0).all()
    if how in ("mean", "static", "learned", "attention"):
        call = seen["pooling"]
        torch.testing.assert_close(call.weights.dense()[:, 0], said.weights, atol=1e-6, rtol=1e-5)
        assert call.fidelity().error < 1e-5
    padded = torch.cat([given.source, torch.randint(4, WORDS, (6, 3))], 1)
    padded[:, :9][given.source == 0] = 7  # anything may stand there
    with torch.no_grad():
        torch.testing.assert_close(model(padded, given.source_lengths).logits, said.logits, atol=1e-5, rtol=1e-5)


def test_poolings_are_their_formulas() -> None:
    vectors = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    source, lengths, summary = torch.tensor([[4, 5, 4, 6, 9]]), torch.tensor([4]), torch.randn(1, WIDTH)
    made = {
        "mean": pooling.MeanPooling(),
        "static": pooling.StaticPooling(WORDS),
        "learned": pooling.LearnedWordPooling(WORDS),
        "attention": pooling.AttentionPooling(WIDTH, 8),
    }
    made = {name: part.double() for name, part in made.items()}
    made["static"].idf.copy_(torch.arange(WORDS))
    made["learned"].word.weight.data.normal_()
    h, x = vectors[0, :4], source[0, :4]
    part = made["attention"]
    tanh = torch.tanh(part.query @ part.energy.query.weight.mT + h @ part.energy.key.weight.mT)
    energies = {
        "mean": torch.full((4,), 0.25, dtype=torch.float64),
        "static": torch.tensor([4, 5, 4, 6], dtype=torch.float64) / 19,
        "learned": torch.softmax(made["learned"].word.weight[x, 0], 0),
        "attention": torch.softmax(tanh @ part.energy.weight, 0),
    }
    for name, w in energies.items():
        z, weights = made[name](vectors, lengths, summary, source, weights=True)
        torch.testing.assert_close(weights[0, :4], w)
        torch.testing.assert_close(z[0], w @ h)


def test_max_pooling_and_the_shares_of_places() -> None:
    vectors = torch.tensor([[[1.0, 5.0, 0.0], [2.0, 1.0, 3.0], [9.0, 9.0, 9.0]]])
    z, share = pooling.MaxPooling()(vectors, torch.tensor([2]), vectors[:, 0], torch.zeros(1, 3), weights=True)
    assert z.tolist() == [[2.0, 5.0, 3.0]]
    torch.testing.assert_close(share, torch.tensor([[1 / 3, 2 / 3, 0.0]]))


def test_tfidf_is_counted_and_the_classifier_is_linear_in_it() -> None:
    texts = ["a b a", "b c", "b"]
    sides = TokenizerPair(Tokenizer.train("word", 10, texts), LabelSet(["no", "yes"]))
    encoded = EncodedCorpus.build([Pair(text, "no", row) for row, text in enumerate(texts)], sides)
    a, b, c = (sides.source.encode(word)[0] for word in "abc")
    counted = encoded.idf(len(sides.source))
    for word, texts_with in ((a, 1), (b, 3), (c, 1), (2, 3)):
        assert counted[word] == pytest.approx(np.log(4 / (1 + texts_with)) + 1)
    model = Classifier(ClassifierConfig(len(sides.source), 2, BagEncoderConfig(), HeadConfig("static")))
    model.static.idf.copy_(torch.from_numpy(counted))
    model.encoder.embedding.weight.data.normal_()
    logits = model(torch.tensor([[a, b, a, 2]]), torch.tensor([4])).logits[0]
    scores = model.encoder.embedding.weight  # of each word for each class
    weights = torch.tensor([counted[i] for i in (a, b, a, 2)])
    torch.testing.assert_close(logits, (weights / weights.sum()) @ scores[[a, b, a, 2]])


def test_a_linear_classifier_begins_knowing_nothing() -> None:
    model = Classifier(ClassifierConfig(WORDS, CLASSES, BagEncoderConfig(), HeadConfig("static")))
    assert not model(torch.randint(4, WORDS, (2, 5)), torch.tensor([5, 3])).logits.any()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_are_convolutions_of_each_sentence_alone(stride: int) -> None:
    layer = WindowConvolution(5, 4, [2, 3], stride)
    x, lengths = torch.randn(3, 8, 5), torch.tensor([8, 5, 1])
    result, kept = layer(x, lengths)
    assert kept.tolist() == [-(-n // stride) for n in lengths.tolist()]
    for i, n in enumerate(lengths.tolist()):
        alone = x[i, :n].mT[None]
        for bank, size, part in zip(layer.banks, (2, 3), result[i].split(4, -1), strict=True):
            around = torch.nn.functional.pad(alone, ((size - 1) // 2, size // 2))
            wanted = conv1d(around, bank.weight, bank.bias)[0].mT.relu()[::stride]
            torch.testing.assert_close(part[: len(wanted)], wanted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_and_filler_rows_add_nothing(smoothing: float) -> None:
    model, given = classifier("rnn", "attention"), batch()
    loss = model.loss(given, smoothing=smoothing)
    logits = model(given.source, given.source_lengths).logits
    wanted = cross_entropy(logits, given.target[:, 1] - 4, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss.total, wanted)
    assert int(loss.tokens) == 6
    given.target_lengths[4:] = 1
    given.target[4:, 1:] = 0
    fewer = model.loss(given, smoothing=smoothing)
    part = cross_entropy(logits[:4], given.target[:4, 1] - 4, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(fewer.total, part)
    assert int(fewer.tokens) == 4


@pytest.mark.parametrize("encoder", SOUND)
@pytest.mark.parametrize("how", ["mean", "max", "attention"])
def test_sounds_of_any_length(encoder: str, how: str) -> None:
    model = Classifier(ClassifierConfig(0, CLASSES, SOUND[encoder], HeadConfig(how, hidden=8))).eval()
    samples = torch.randint(-9000, 9000, (3, 3000), dtype=torch.int16)
    lengths = torch.tensor([3000, 1700, 40])
    with torch.no_grad(), regard.watch(model) as seen:
        said = model(samples, lengths, weights=True)
    assert said.logits.isfinite().all()
    torch.testing.assert_close(said.weights.sum(1), torch.ones(3))
    if how != "max":
        assert seen["pooling"].fidelity().error < 1e-5
    for i, n in enumerate(lengths.tolist()):
        alone = model(samples[i : i + 1, :n], lengths[i : i + 1]).logits[0]
        torch.testing.assert_close(said.logits[i], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("how", ["static", "learned"])
def test_sound_has_no_words_to_weigh(how: str) -> None:
    with pytest.raises(ValueError, match=f'head.pooling = "{how}" weighs words, and the encoder reads sound'):
        Classifier(ClassifierConfig(0, CLASSES, SOUND["rnn"], HeadConfig(how)))


@pytest.mark.parametrize("how", ["attention", "max"])
def test_weights_to_compare_with_are_the_static_ones_and_no_attention_of_the_model(how: str) -> None:
    given = batch()
    model = classifier("bag", how).eval()
    model.static.idf.uniform_(1, 4)
    with torch.no_grad(), regard.watch(model) as seen:
        model(given.source, given.source_lengths)
        rare = model.rarity(given.source, given.source_lengths)
    assert [call.name for call in seen] == (["pooling"] if how == "attention" else [])
    nothing = torch.zeros(*given.source.shape, 1)
    _, used = model.static(nothing, given.source_lengths, nothing[:, 0], given.source, weights=True)
    torch.testing.assert_close(rare, used)


def test_a_folder_holds_all_of_it(tmp_path: Path) -> None:
    model, given = classifier("cnn", "static"), batch()
    model.save_pretrained(tmp_path)
    again = regard.models.load(tmp_path)
    assert isinstance(again, Classifier)
    assert again.config == model.config
    torch.testing.assert_close(
        again(given.source, given.source_lengths).logits, model(given.source, given.source_lengths).logits
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("head", None, "head is None; it must be a table"),
        ("head", {"pooling": "median"}, "head.pooling is 'median'; it must be one of mean, last, max"),
        ("head", {"poling": "mean"}, "head has unknown keys: poling"),
        ("encoder", {"kind": "cnn", "windows": []}, "encoder.windows is .*; it must be a list of positive whole"),
        ("encoder", {"kind": "cnn", "windows": [3, 0]}, "encoder.windows"),
        ("classes", 0, "config.classes is 0"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_key(key: str, value: object, message: str) -> None:
    values = ClassifierConfig(WORDS, CLASSES).to_dict()
    with pytest.raises(ValueError, match=message):
        ClassifierConfig.from_dict({**values, key: value})


def test_opinions_need_more_than_counting() -> None:
    """The same grammar in other words: what `not`, `but` and `although` do is what the labels say."""
    result = list(opinions.pairs(2000))
    assert result == list(opinions.pairs(2000))
    assert len({pair.source for pair in result}) == 2000
    assert not {pair.source for pair in result} & {pair.source for pair in opinions.pairs(500, split="test")}
    good, poor = set(opinions._GOOD) | set(opinions._LIKED), set(opinions._POOR) | set(opinions._DISLIKED)
    checked = 0
    for pair in result:
        words = pair.source.split()
        if pair.target == "neutral" or "everyone" in words:
            continue
        if words[0] == "although":
            words = words[words.index(",") :]
        elif "," in words:
            cut = words.index(",")
            words = words[cut:] if words[cut + 1] == "but" else words[:cut]
        sides = []
        for i, word in enumerate(words):
            turned = words[i - 1] in ("not", "never", "hardly") or words[i - 2 : i] == ["anything", "but"]
            if word in good | poor:
                sides.append((word in good) != turned)
        assert set(sides) == {pair.target == "positive"}, pair.source
        checked += 1
    assert checked > 800
    # Two reviews of the same words with different labels: no count of words can tell them apart.
    bags: dict[tuple[str, ...], set[str]] = {}
    for pair in opinions.pairs(30_000):
        bags.setdefault(tuple(sorted(pair.source.split())), set()).add(pair.target)
    assert any(len(labels) > 1 for labels in bags.values())


def test_distances_and_error_rates() -> None:
    assert distance("kitten", "sitting") == distance("sitting", "kitten") == 3
    assert distance("", "abc") == 3
    assert error_rate(["sevn", "one"], ["seven", "one"]) == pytest.approx(1 / 8)
    assert error_rate(["aaaa"], ["b"]) == 4
    with pytest.raises(ValueError, match="given are 1 text and 2 references"):
        error_rate(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="the references are empty"):
        error_rate([""], [""])
