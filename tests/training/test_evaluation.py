"""The columns of a file that a run is evaluated on, and the rows it cannot be evaluated on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import Pair, Tokenizer, TokenizerPair
from regard.data.corpora import tones
from regard.decoding import model_folders
from regard.models import EncoderDecoder, EncoderDecoderConfig, NoEncoderConfig, TransformerDecoderConfig
from regard.seeing.align import best_links
from regard.special_tokens import BEGIN, END
from regard.training import recipe_files, results, scores
from regard.training.evaluation import (
    alignment_errors,
    alignments,
    default_columns,
    error_rate,
    evaluate_task,
    evaluate_translation,
    force_align,
    gold_links,
    pairs_of_file,
    parse_columns,
    perplexity,
    step_by_step_nll,
    text_words,
)
from regard.training.tasks import recipe_task
from tests.support.aligned_pairs import PAIRS as ALIGNED
from tests.support.aligned_pairs import TARGETS, pair_model, pair_tokenizers
from tests.support.small_translators import recurrent_translator, save_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("columns", "header", "expected"), [
    ('["en", "fr"]', "fr,en", ("en", "fr")),
    ('["text, en", "text, fr"]', '"text, fr","text, en"', ("text, en", "text, fr")),  # a comma is part of the name
    ('["2", "1"]', "1,2", ("2", "1")),  # a name, though it is a number
    ('["en", "fr", "links"]', "fr,en", ("en", "fr")),  # no gold links in this file
    ('["en", 1]', "fr,en", (0, 1)),
    ("[1, 0]", "fr,en", (1, 0)),
    ("[1, 0, 2]", "fr,en", (1, 0)),  # no gold links in this file
    ("[1, 0, 2]", "fr,en,licence", (1, 0)),  # the third column holds no links
    ("[1, 0, 2]", "fr,en,0-0", (1, 0, 2)),
    ("[0, 2]", "fr,en", (0, 1)),
    ("[-1, 0]", "fr,en", (0, 1)),
    ("[1]", "fr,en", (0, 1)),
    ("[]", "fr,en", (0, 1)),
    ('["en", "fr"]', "target,source", (0, 1)),
    ('"en"', "fr,en", (0, 1)),  # no list
])  # fmt: skip
def test_columns_of_a_run(columns: str, header: str, expected: tuple[int | str, ...], tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    (run / "recipe.toml").write_text(f"[data]\ncolumns = {columns}\n", encoding="utf-8")
    file = tmp_path / "pairs.csv"
    file.write_text(f"{header}\nle chat,the cat{',0-0' * (header.count(',') == 2)}\n", encoding="utf-8")
    found = default_columns(model_folders.load(run), file)
    assert found == expected
    if found != (0, 1):
        pairs = pairs_of_file(file, "translate", found)
        assert (pairs[-1].source, pairs[-1].target) == ("the cat", "le chat")


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    loaded = model_folders.load(run)
    (run / "recipe.toml").write_text("[data\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"recipe\.toml is not a recipe: .*--columns"):
        default_columns(loaded, tmp_path / "pairs.csv")


def test_a_sound_that_is_too_long_is_named_by_its_frames() -> None:
    tokenizers = model_folders.load("digits-cnn").tokenizers
    pairs = [Pair(next(tones.pairs(1)).source, tokenizers.target.names[0], where="sounds.tsv:1")]
    recipe = recipe_files.load_recipe("cnn-digits", ["data.longest=3"])
    message = r"sounds\.tsv:1: the sound has \d+ frames of 10 ms, and the model was trained on at most 3 \(data"
    with pytest.raises(ValueError, match=message):
        evaluate_task(recipe_task(recipe), None, tokenizers, pairs)


def test_columns_of_the_command_line() -> None:
    assert parse_columns(None) == (0, 1)
    assert parse_columns("1, 0,links") == (1, 0, "links")


PAIRS = [Pair("a b c", "x y", 0, "one", "0-0 2-1", "1-1"), Pair("c a", "y x x", 1, "two")]


def system(attention: str) -> tuple[EncoderDecoder, TokenizerPair]:
    tokenizers = TokenizerPair(Tokenizer.train("word", 20, ["a b c"]), Tokenizer.train("word", 20, ["x y"]))
    return recurrent_translator(tokenizers, attention), tokenizers


def test_the_weights_are_those_of_the_decoder_on_the_reference() -> None:
    model, tokenizers = system("bahdanau")
    first, second = force_align(model, tokenizers, PAIRS)
    assert (first.source, first.target) == (["a", "b", "c"], ["x", "y"])
    ids = torch.tensor([[*tokenizers.source.encode("a b c"), 2]])
    target = torch.tensor([[1, *tokenizers.target.encode("x y")]])
    with torch.no_grad():
        weights = model(ids, torch.tensor([4]), target, weights=True).weights[0, 0]
    torch.testing.assert_close(first.weights, weights[:2, :3])
    assert first.sure == {(0, 0), (2, 1)}
    assert second.sure is None
    assert error_rate([second]) is None
    links = first.links
    expected = 1 - (len(links & {(0, 0), (2, 1)}) + len(links & {(0, 0), (2, 1), (1, 1)})) / (len(links) + 2)
    assert error_rate([first, second]) == pytest.approx(expected)


def test_unknown_words_are_named_and_shown_as_written() -> None:
    model, tokenizers = system("bahdanau")
    [made] = force_align(model, tokenizers, [Pair("a zebra", "x y")])
    assert made.source == ["a", "zebra"]
    assert made.unknown == ["zebra"]


def test_a_model_without_attention_aligns_nothing() -> None:
    model, tokenizers = system("none")
    with pytest.raises(ValueError, match="no attention, so it aligns nothing"):
        force_align(model, tokenizers, PAIRS)


SOURCE, TARGET = "He hit me with a pie.", "Il m'a entarté."
PAIR = Pair(SOURCE, TARGET, 0, "line 1", "0-0 1-2 5-2 2-1")
SPACED = Pair("He hit me with a pie .", "Il m' a entarté .", 0, "line 1", "0-0 2-1 1-3 5-3 6-4", "3-3")


def split_punctuation() -> TokenizerPair:
    return TokenizerPair(*(Tokenizer.train("word", 20, [text], punctuation=True) for text in (SOURCE, TARGET)))


def test_links_of_words_that_the_tokenizer_splits_are_refused() -> None:
    tokenizers = split_punctuation()
    model = recurrent_translator(tokenizers)
    expected = "line 1 has gold links, and its source has 6 words between spaces but 7 words of the model: 0:He 1:hit"
    with pytest.raises(ValueError, match=expected):
        force_align(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=expected):
        alignment_errors(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=expected):
        evaluate_translation(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=r"its target has 3 .* 5 words of the model: 0:Il 1:m' 2:a 3:entarté 4:\."):
        gold_links(replace(PAIR, source=SPACED.source), tokenizers)


def test_links_of_words_with_spaces_between_them_are_read() -> None:
    tokenizers = split_punctuation()
    sure, possible = gold_links(SPACED, tokenizers)
    assert sure == {(0, 0), (2, 1), (1, 3), (5, 3), (6, 4)}
    assert possible == {(3, 3)}
    [made] = force_align(recurrent_translator(tokenizers), tokenizers, [SPACED])
    assert (made.sure, made.target) == (sure, ["Il", "m'", "a", "entarté", "."])


def test_without_gold_links_the_model_splits_as_it_likes() -> None:
    tokenizers = split_punctuation()
    assert gold_links(Pair(SOURCE, TARGET), tokenizers) == (None, set())
    [made] = force_align(recurrent_translator(tokenizers), tokenizers, [Pair(SOURCE, TARGET)])
    assert made.target == ["Il", "m'", "a", "entarté", "."]
    assert alignment_errors(recurrent_translator(tokenizers, "none"), tokenizers, [PAIR]) == {}


def test_a_link_outside_the_pair_and_an_empty_text() -> None:
    tokenizers = split_punctuation()
    with pytest.raises(ValueError, match="link 7-0 is outside line 1, which has 7 words and 5 words"):
        gold_links(replace(SPACED, alignment="7-0"), tokenizers)
    assert text_words(tokenizers.source, "") == ([], [])


@pytest.mark.parametrize("masked", [True, False])
def test_it_is_the_loss_of_whole_windows_only_with_a_mask(masked: bool) -> None:
    torch.manual_seed(0)
    decoder = TransformerDecoderConfig(width=8, heads=2, hidden=16, layers=2, masked=masked)
    config = EncoderDecoderConfig(source_vocabulary=0, target_vocabulary=9, encoder=NoEncoderConfig(), decoder=decoder)
    model, windows = EncoderDecoder(config).eval().double(), torch.randint(4, 9, (3, 7))
    with torch.no_grad():
        nothing = model.encode(windows.new_ones(3, 1), windows.new_ones(3))
        logits = model.decoder.readout(model.decoder(windows[:, :-1], nothing).features)
    whole = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert (abs(step_by_step_nll(model, windows) - whole) < 1e-9) == masked


pytest.importorskip("sacrebleu", reason="needs the extra `train`")


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return pair_tokenizers()


class TestForced:
    @pytest.mark.parametrize("kind", ["transformer", "bahdanau"])
    @torch.no_grad()
    def test_pair_by_pair_is_the_same(self, kind: str, tokenizers: TokenizerPair) -> None:
        it = pair_model(kind)
        together = alignments(it, tokenizers, ALIGNED)
        loss = count = 0.0
        for pair, weights in zip(ALIGNED, together, strict=True):
            source = torch.tensor([[*tokenizers.source.encode(pair.source), END]])
            target = torch.tensor([[BEGIN, *tokenizers.target.encode(pair.target), END]])
            decoded = it(source, torch.tensor([source.shape[1]]), target[:, :-1], weights=True)
            logprobs = it.readout(decoded.features)[0].log_softmax(-1).gather(1, target[0, 1:, None])
            loss, count = loss - logprobs.sum().item(), count + len(logprobs)
            layers = 3 if kind == "transformer" else 1
            shape = (layers, len(pair.target.split()), len(pair.source.split()))
            assert weights.shape == shape
            # Summed over all words of the source, what is missing to 1 went to </s>.
            kept = decoded.weights.unflatten(1, (layers, -1)).mean(2)[0, :, :-1, :-1].sum(-1)  # [layers, pieces]
            words = torch.tensor(tokenizers.target.words(target[0, 1:-1].tolist()))
            for word in range(shape[1]):
                torch.testing.assert_close(weights[:, word].sum(-1), kept[:, words == word].mean(-1))
        assert perplexity(it, tokenizers, ALIGNED) == pytest.approx(math.exp(loss / count), rel=1e-4)
        assert perplexity(it, tokenizers, ALIGNED, tokens=1) == pytest.approx(math.exp(loss / count), rel=1e-4)
        with torch.no_grad():
            it.decoder.output.weight *= 1e6
        assert perplexity(it, tokenizers, ALIGNED) == math.inf, "it is past what a float holds, and no crash"

    def test_links_that_the_model_draws_are_no_error(self, tokenizers: TokenizerPair) -> None:
        it = pair_model("bahdanau")
        drawn = [best_links(weights[0]) for weights in alignments(it, tokenizers, ALIGNED)]
        gold = [
            replace(pair, alignment=" ".join(f"{i}-{j}" for i, j in links), possible=None)
            for pair, links in zip(ALIGNED, drawn, strict=True)
        ]
        assert alignment_errors(it, tokenizers, gold) == {"attention": 0.0}
        assert alignment_errors(it, tokenizers, ALIGNED)["attention"] > 0
        assert list(alignment_errors(pair_model(), tokenizers, ALIGNED)) == [
            "layer 1",
            "layer 2",
            "layer 3",
        ]

    def test_without_attention_there_is_no_alignment(self, tokenizers: TokenizerPair) -> None:
        assert alignment_errors(pair_model("seq2seq"), tokenizers, ALIGNED) == {}


def test_an_evaluation_has_everything_and_survives_its_file(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    it = pair_model()
    evaluation, texts = evaluate_translation(it, tokenizers, ALIGNED, beams=2)
    assert len(texts) == evaluation.sentences == len(ALIGNED)
    assert evaluation.bleu == scores.bleu(texts, TARGETS)
    assert evaluation.perplexity == perplexity(it, tokenizers, ALIGNED)
    assert evaluation.best_aer == min(evaluation.aer.values())
    assert sum(each.sentences for each in evaluation.by_length) == len(ALIGNED)
    assert evaluation.tokens_per_second > 0
    assert evaluation.search == {"beams": 2}
    results.save_result(tmp_path, "test", evaluation)
    results.save_result(tmp_path, "other", evaluation)
    assert results.load_results(tmp_path) == {"test": evaluation, "other": evaluation}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    without, _ = evaluate_translation(it, tokenizers, [replace(pair, alignment=None) for pair in ALIGNED], beams=1)
    assert without.aer == {}
    with pytest.raises(ValueError, match="no pairs"):
        evaluate_translation(it, tokenizers, [])


def test_precision_and_recall_by_hand() -> None:
    from regard.training.scores import by_label

    truths, answers = ["a", "a", "a", "b", "c"], ["a", "a", "b", "a", "d"]
    result = by_label(answers, [Pair("x", truth) for truth in truths], ["d", "c", "b", "a", "e"])
    assert list(result) == ["d", "c", "b", "a"], "in the order of the model's labels; nothing is known of e"
    assert (result["a"].count, result["a"].answers) == (3, {"b": 1, "a": 2})
    assert result["a"].precision == result["a"].recall == result["a"].f1 == pytest.approx(200 / 3)
    assert (result["b"].precision, result["b"].recall, result["b"].f1) == (0, 0, 0)
    assert (result["c"].precision, result["c"].recall) == (None, 0)
    assert (result["d"].precision, result["d"].recall, result["d"].count) == (0, None, 0)


def test_a_results_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for text, message in (("{", "not JSON"), ("[]", "holds a list"), ('{"test": {"bleu": 1}}', "this version")):
        (tmp_path / "results.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            results.load_results(tmp_path)
