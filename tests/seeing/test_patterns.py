"""Pairs of equal tokens: computed block by block and pair by pair, the sums are the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend, causal, watch
from regard.seeing import patterns
from regard.seeing.analysis import THRESHOLDS, Patterns, TokenizedText, head_distances, induction_scores
from tests.support.attention_model import HEADS, AttentionModel, random_text, watched


def test_pairs_looked_up_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(patterns, "CHUNK", 200)
    text = random_text(50, pair=True)
    for is_causal in (False, True):
        (call, _) = watched(text.ids, is_causal=is_causal)
        one, other = (patterns.PairSums(patterns.TokenPairs(text), HEADS) for _ in range(2))
        call.weights[0].stats(also=[one])
        other.add_pairwise(call.weights[0])
        for kind in patterns.KINDS:
            assert float(one.total[kind].sum()) > 0
            assert torch.allclose(one.total[kind], other.total[kind], atol=1e-5), kind


def written_out(w: Tensor, text: TokenizedText) -> dict[str, Tensor]:
    """Every score by its definition: Σ(A ⊙ M)/n over the whole matrix; of repeated tokens over the queries that are."""
    n = len(text)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    same = text.ids[:, None] == text.ids
    earlier = same & (j < i)
    shifted = torch.zeros_like(earlier)
    shifted[:, 1:] = earlier[:, :-1]
    named = {
        "next": j == i + 1,
        "previous": j == i - 1,
        "self": j == i,
        "first": (j == 0).expand(n, n),
        "delimiter": text.delimiters.expand(n, n),
        "punctuation": text.punctuation.expand(n, n),
        "identical": same & (i != j),
        "duplicate": earlier,
        "induction": shifted,
    }
    if text.segments is not None:
        across = text.segments[:, None] != text.segments
        named["other sentence"] = same & across
        alike = F.cosine_similarity(text.vectors[:, None], text.vectors, dim=-1) > 0.5
        named["related"] = alike & across & ~same
    queries = {"duplicate": int(earlier.any(1).sum()), "induction": int(shifted.any(1).sum())}
    computed = {name: (w * m).sum((-2, -1)) / queries.get(name, n) for name, m in named.items()}
    computed["broad"] = -torch.special.xlogy(w, w).sum(-1).mean(-1)
    computed["confidence"] = w.amax(-1).mean(-1)
    best = w.argmax(-1) - torch.arange(n)
    computed["positional"] = torch.stack([(head == head.mode().values).float().mean() for head in best])
    return computed


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("length", "pair"), [(30, True), (700, False)])
def test_scores_are_their_definitions(is_causal: bool, length: int, pair: bool) -> None:
    text = random_text(length, pair)
    seen = watched(text.ids, is_causal=is_causal)
    expected = [written_out(call.weights.dense()[0], text) for call in seen]
    patterns = Patterns()
    patterns.add(seen, text)
    for name in expected[0]:
        scores = patterns.scores(name)
        assert scores.shape == (2, HEADS)
        for layer in range(2):
            assert torch.allclose(scores[layer], expected[layer][name], atol=1e-5), name


def test_equal_tokens_from_some_of_the_queries_are_an_estimate_of_all() -> None:
    text = random_text(600)
    seen = watched(text.ids, is_causal=True, sharp=1.0)
    every, some, most = Patterns(), Patterns(rows=200), Patterns(rows=600)
    for counted in (every, some, most):
        counted.add(seen, text)
    for name in ("identical", "induction"):
        assert torch.allclose(every.scores(name), most.scores(name), atol=1e-5)
        assert torch.allclose(every.scores(name), some.scores(name), rtol=0.2)
    assert torch.equal(every.scores("previous"), some.scores("previous"))


def test_scores_are_averaged_over_texts() -> None:
    texts = [random_text(20), random_text(33)]
    patterns, alone = Patterns(), [Patterns(), Patterns()]
    for text, own in zip(texts, alone, strict=True):
        torch.manual_seed(0)
        seen = watched(text.ids)
        patterns.add(seen, text)
        own.add(seen, text)
    for name in ("self", "identical", "broad"):
        assert torch.allclose(patterns.scores(name), (alone[0].scores(name) + alone[1].scores(name)) / 2)
    with pytest.raises(ValueError, match="no pattern is called"):
        patterns.scores("sideways")
    with pytest.raises(ValueError, match="pair of sentences"):
        patterns.scores("other sentence")


def test_layers_that_share_a_module_are_layers() -> None:
    text, model = random_text(20), AttentionModel(layers=1)
    model.layer = nn.ModuleList([model.layer[0], model.layer[0]])
    with torch.no_grad(), watch(model) as seen:
        model(text.ids[None])
    patterns = Patterns()
    assert len(patterns.add(seen, text)) == 2
    expected = torch.stack([written_out(call.weights.dense()[0], text)["self"] for call in seen])
    assert torch.allclose(patterns.scores("self"), expected, atol=1e-6)


def test_a_padded_text_must_stand_first() -> None:
    ids, real = torch.randint(20, (1, 9)), torch.arange(9) < 6

    class Padded(AttentionModel):
        def forward(self, seen: Tensor) -> Tensor:
            x = self.embedding(ids)[:, None]
            return F.scaled_dot_product_attention(x, x, x, seen)

    model, text = Padded(), TokenizedText.from_ids(ids[0, :6])
    masks = {
        "right": real & torch.ones(9, 9).bool(),
        "left": real.flip(0) & torch.ones(9, 9).tril().bool(),
        "unmasked": torch.ones(9, 9).bool(),
    }
    for name, mask in masks.items():
        with torch.no_grad(), watch(model) as seen:
            model(mask)
        if name == "right":
            Patterns().add(seen, text)
            continue
        with pytest.raises(ValueError, match="Pad on the right and give the mask"):
            Patterns().add(seen, text)


def test_the_default_dtype_and_device_are_not_those_of_places_in_a_text() -> None:
    """In bfloat16 the last of 600 places is past the end, and nothing can be counted beyond 256."""
    model, ids = AttentionModel(), torch.arange(600) % 7
    with torch.no_grad(), watch(model) as seen:
        model(ids[None])

    def computed() -> tuple[list[dict[str, float]], list[dict[str, float]], Tensor]:
        patterns = Patterns()
        patterns.add(seen, TokenizedText.from_ids(ids))
        heads = patterns.heads()
        return [head.scores for head in heads], [head.p for head in heads], head_distances(seen)

    scores, p, apart = computed()
    torch.set_default_dtype(torch.bfloat16)
    try:
        again, p_again, apart_again = computed()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(scores, again, strict=True):
        assert one == pytest.approx(other, rel=1e-2)
        assert one["positional"] == other["positional"]
    assert torch.allclose(apart, apart_again, atol=1e-5)
    assert [x.keys() for x in p] == [x.keys() for x in p_again]


def test_a_pattern_nobody_scored_is_named() -> None:
    with pytest.raises(ValueError, match=r"no pattern is called 'prev'; there are .*previous"):
        Patterns().strongest("prev")


class Induction(nn.Module):
    """Head 0 looks at the token after the same one, if it was there before, else at the first; head 1 at nothing."""

    def forward(self, ids: Tensor) -> Tensor:
        n, half = ids.shape[-1], ids.shape[-1] // 2
        q = torch.zeros(1, 2, n, n)
        q[0, 0, torch.arange(half, n), torch.arange(1, half + 1)] = 200.0
        q[0, 0, torch.arange(half), 0] = 200.0
        return attend(q, torch.eye(n).expand(1, 2, n, n), torch.randn(1, 2, n, 4), mask=causal())


def test_an_induction_head_is_called_one_on_the_standard_repeated_sequence() -> None:
    """Only half of the queries have an earlier occurrence: the score is over these, and 1 is reached."""
    text = TokenizedText.from_ids(torch.randperm(500)[:64].repeat(2))
    with watch(model := Induction()) as seen:
        model(text.ids[None])
    patterns = Patterns()
    patterns.add(seen, text)
    assert torch.allclose(patterns.scores("induction"), induction_scores(seen, 64))
    head, idle = patterns.heads()
    assert head.scores["induction"] == pytest.approx(1.0, abs=1e-4)
    assert {"induction", "sink"} <= set(head.labels)  # a head can have several
    assert "induction" not in idle.labels
    assert head.p["induction"] == pytest.approx(0.01)


def test_a_text_without_a_repeated_token_says_nothing_about_induction() -> None:
    text = TokenizedText.from_ids(torch.arange(12))
    patterns = Patterns()
    patterns.add(watched(text.ids), text)
    with pytest.raises(ValueError, match="in no text a token was repeated"):
        patterns.scores("induction")
    assert "induction" not in patterns.heads()[0].scores
    again, alone = random_text(30), Patterns()
    seen = watched(again.ids)
    patterns.add(seen, again)
    alone.add(seen, again)
    assert torch.equal(patterns.scores("induction"), alone.scores("induction"))


def test_patterns_print_as_a_table_and_have_errors_over_texts() -> None:
    patterns = Patterns()
    assert repr(patterns) == "Patterns of no text yet"
    with pytest.raises(ValueError, match="no pattern is called 'inductoin'"):
        patterns.p("inductoin")
    alone = []
    for length in (20, 33, 41):
        text = random_text(length)
        seen = watched(text.ids)
        patterns.add(seen, text)
        one = Patterns()
        one.add(seen, text)
        alone.append(one.scores("induction"))
    errors = patterns.standard_error("induction")
    torch.testing.assert_close(errors, torch.stack(alone).std(0) / 3**0.5)
    assert repr(patterns).splitlines()[0].startswith("Patterns of 4 heads over 3 texts")
    assert "induction" in repr(patterns)
    table = patterns.table()
    assert table.columns["standard error of induction"] == errors.flatten().tolist()
    q = patterns.q("previous")
    assert q is not None
    assert bool((q >= patterns.p("previous")).all())


class Previous(nn.Module):
    """Head 0 looks at the token before, head 1 at nothing in particular."""

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[-1]
        q = torch.zeros(1, 2, n, n)
        q[0, 0, torch.arange(1, n), torch.arange(n - 1)] = 200.0
        k = torch.eye(n).expand(1, 2, n, n)
        return attend(q, k, torch.randn(1, 2, n, 4), mask=causal())


def test_a_head_built_to_look_back_is_significant_and_chance_is_not() -> None:
    text, model = random_text(80), Previous()
    with watch(model) as seen:
        model(text.ids[None])
    patterns = Patterns()
    patterns.add(seen, text)
    back, idle = patterns.heads()
    assert back.scores["previous"] > 0.9
    assert back.labels[:1] == ["positional"] or "previous" in back.labels
    assert back.p["previous"] == pytest.approx(0.01)  # the least that 99 draws can say
    assert idle.p["previous"] > 0.05
    assert "previous" not in idle.labels
    assert set(THRESHOLDS) >= set(back.labels)


class Even(nn.Module):
    """Every key a query may see gets the same weight, behind a mask in one of its forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[-1]
        x, below = torch.zeros(1, 2, n, 4), torch.ones(n, n).tril().bool()
        numbers = torch.zeros(n, n, dtype=torch.bfloat16).masked_fill(~below, torch.finfo(torch.bfloat16).min).float()
        if self.form == "written":
            return numbers.expand(1, 2, n, n).softmax(-1) @ torch.randn(1, 2, n, 4)
        mask = {"causal": None, "dense": below, "numbers": numbers}[self.form]
        return F.scaled_dot_product_attention(x, x, torch.randn(1, 2, n, 4), mask, is_causal=mask is None)


def test_chance_draws_among_the_keys_a_query_sees_whatever_form_the_mask_has() -> None:
    text = random_text(80)
    for form in ("causal", "dense", "numbers", "written"):
        model, patterns = Even(form), Patterns()
        with watch(model) as seen:
            model(text.ids[None])
        patterns.add(seen, text)
        for head in patterns.heads():
            assert head.p["previous"] == head.p["identical"] == 1.0, form
