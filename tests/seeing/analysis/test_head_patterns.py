"""Patterns, pairs, chance, alignments, rollout, distances and words: each against its formula written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import attend, causal, watch
from regard.seeing.alignment import alignment_error
from regard.seeing.alignment.symmetrization import symmetrised, time_path, warped
from regard.seeing.alignment.word_weights import grouped, word_weights
from regard.seeing.analysis.even_sample import spread
from regard.seeing.analysis.head_distance import distances, plane
from regard.seeing.analysis.head_patterns import THRESHOLDS, Patterns, induction, sequence
from regard.seeing.analysis.retrieval_heads import retrieval
from regard.seeing.analysis.rollout import flow, rollout
from regard.seeing.analysis.token_kinds import Text

WIDTH, HEADS = 16, 2


class Layer(nn.Module):
    """Attention whose queries and keys are given: what a head does is decided here."""

    def __init__(self, sharp: float, is_causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.sharp, self.is_causal = sharp, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q * self.sharp, k, v, is_causal=self.is_causal)
        return x + out.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, layers: int = 2, is_causal: bool = False, sharp: float = 3.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.layer = nn.ModuleList(Layer(sharp, is_causal) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        # A little of the place, so that equal tokens are not equally good.
        x = self.embedding(ids) + 0.1 * torch.randn(ids.shape[-1], WIDTH, generator=torch.Generator().manual_seed(1))
        for layer in self.layer:
            x = layer(x)
        return x


def looked_at(ids: Tensor, **options: object) -> regard.Seen:
    model = Model(**options)  # type: ignore[arg-type]
    with torch.no_grad(), watch(model) as seen:
        model(ids[None])
    return seen


def a_text(length: int, pair: bool = False) -> Text:
    ids = torch.randint(20, (length,), generator=torch.Generator().manual_seed(3))
    plain = Text.plain(ids)
    delimiters, punctuation = ids == 7, ids == 8
    segments = torch.where(torch.arange(length) < length // 2, 0, 1) if pair else None
    table = torch.randn(20, 3, generator=torch.Generator().manual_seed(4))
    return Text(ids, plain.tokens, delimiters, punctuation, segments, vectors=table[ids] if pair else None)


def written_out(w: Tensor, text: Text) -> dict[str, Tensor]:
    """Every score by its definition: Σ(A ⊙ M)/n, over the whole matrix."""
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
    found = {name: (w * m).sum((-2, -1)) / n for name, m in named.items()}
    found["broad"] = -torch.special.xlogy(w, w).sum(-1).mean(-1)
    found["confidence"] = w.amax(-1).mean(-1)
    best = w.argmax(-1) - torch.arange(n)
    found["positional"] = torch.stack([(head == head.mode().values).float().mean() for head in best])
    return found


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("length", "pair"), [(30, True), (700, False)])
def test_scores_are_their_definitions(is_causal: bool, length: int, pair: bool) -> None:
    text = a_text(length, pair)
    seen = looked_at(text.ids, is_causal=is_causal)
    expected = [written_out(call.weights.dense()[0], text) for call in seen]
    patterns = Patterns()
    patterns.add(seen, text)
    for name in expected[0]:
        scores = patterns.scores(name)
        assert scores.shape == (2, HEADS)
        for layer in range(2):
            assert torch.allclose(scores[layer], expected[layer][name], atol=1e-5), name


def test_pairs_looked_up_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.seeing.analysis import equal_tokens

    monkeypatch.setattr(equal_tokens, "AT_ONCE", 200)
    text = a_text(50, pair=True)
    for is_causal in (False, True):
        (call, _) = looked_at(text.ids, is_causal=is_causal)
        one, other = (equal_tokens.PairMass(equal_tokens.Matches(text), HEADS) for _ in range(2))
        call.weights[0].stats(also=[one])
        other.look_up(call.weights[0])
        for kind in equal_tokens.KINDS:
            assert float(one.total[kind].sum()) > 0
            assert torch.allclose(one.total[kind], other.total[kind], atol=1e-5), kind


def test_equal_tokens_from_some_of_the_queries_are_an_estimate_of_all() -> None:
    text = a_text(600)
    seen = looked_at(text.ids, is_causal=True, sharp=1.0)
    every, some, most = Patterns(), Patterns(rows=200), Patterns(rows=600)
    for patterns in (every, some, most):
        patterns.add(seen, text)
    for name in ("identical", "induction"):
        assert torch.allclose(every.scores(name), most.scores(name), atol=1e-5)
        assert torch.allclose(every.scores(name), some.scores(name), rtol=0.2)
    assert torch.equal(every.scores("previous"), some.scores("previous"))


def test_scores_are_averaged_over_texts() -> None:
    texts = [a_text(20), a_text(33)]
    patterns, alone = Patterns(), [Patterns(), Patterns()]
    for text, own in zip(texts, alone, strict=True):
        torch.manual_seed(0)
        seen = looked_at(text.ids)
        patterns.add(seen, text)
        own.add(seen, text)
    for name in ("self", "identical", "broad"):
        assert torch.allclose(patterns.scores(name), (alone[0].scores(name) + alone[1].scores(name)) / 2)
    with pytest.raises(ValueError, match="no pattern is called"):
        patterns.scores("sideways")
    with pytest.raises(ValueError, match="pair of sentences"):
        patterns.scores("other sentence")


def test_layers_that_share_a_module_are_layers() -> None:
    text, model = a_text(20), Model(layers=1)
    model.layer = nn.ModuleList([model.layer[0], model.layer[0]])
    with torch.no_grad(), watch(model) as seen:
        model(text.ids[None])
    patterns = Patterns()
    assert len(patterns.add(seen, text)) == 2
    expected = torch.stack([written_out(call.weights.dense()[0], text)["self"] for call in seen])
    assert torch.allclose(patterns.scores("self"), expected, atol=1e-6)


class Previous(nn.Module):
    """Head 0 looks at the token before, head 1 at nothing in particular."""

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[-1]
        q = torch.zeros(1, 2, n, n)
        q[0, 0, torch.arange(1, n), torch.arange(n - 1)] = 200.0
        k = torch.eye(n).expand(1, 2, n, n)
        return attend(q, k, torch.randn(1, 2, n, 4), mask=causal())


def test_a_head_built_to_look_back_is_found_and_chance_is_not() -> None:
    text, model = a_text(80), Previous()
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
        mask = {"causal": None, "dense": below, "numbers": numbers}[self.form]
        return F.scaled_dot_product_attention(x, x, torch.randn(1, 2, n, 4), mask, is_causal=mask is None)


def test_chance_draws_among_the_keys_a_query_sees_whatever_form_the_mask_has() -> None:
    text = a_text(80)
    for form in ("causal", "dense", "numbers"):
        model, patterns = Even(form), Patterns()
        with watch(model) as seen:
            model(text.ids[None])
        patterns.add(seen, text)
        for head in patterns.heads():
            assert head.p["previous"] == head.p["identical"] == 1.0, form


def test_a_padded_text_must_stand_first() -> None:
    ids, real = torch.randint(20, (1, 9)), torch.arange(9) < 6

    class Padded(Model):
        def forward(self, seen: Tensor) -> Tensor:
            x = self.embedding(ids)[:, None]
            return F.scaled_dot_product_attention(x, x, x, seen)

    model, text = Padded(), Text.plain(ids[0, :6])
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


def test_forward_passes_and_stacks_are_not_mixed() -> None:
    text, model = a_text(10), Model()
    with torch.no_grad(), watch(model) as twice:
        model(text.ids[None])
        model(text.ids[None] * 0)
    both = nn.ModuleDict({"encoder": Model(), "decoder": Model()})
    with torch.no_grad(), watch(both) as mixed:
        both["encoder"](text.ids[None])
        both["decoder"](text.ids[None])
    for seen, word in ((twice, "several forward passes"), (mixed, "encoder.layer, decoder.layer")):
        for ask in (rollout, distances, lambda seen: Patterns().add(seen, text), lambda seen: flow(seen, 0)):
            with pytest.raises(ValueError, match=word):
                ask(seen)


def test_induction_on_a_repeated_sequence() -> None:
    ids = sequence(20, 12, avoid=[0, 1])
    assert torch.equal(ids[:12], ids[12:])
    assert int(ids.min()) >= 2
    seen = looked_at(ids, is_causal=True)
    expected = torch.stack([call.weights.dense()[0].diagonal(1 - 12, -2, -1)[:, 1:].mean(-1) for call in seen])
    found = induction(seen, 12)
    assert torch.allclose(found, expected, atol=1e-6)


def test_pieces_become_words() -> None:
    text = Text(
        torch.arange(5), ["[CLS]", "un", "##seen", "heads", "[SEP]"], torch.zeros(5).bool(), torch.zeros(5).bool(),
        words=[None, 0, 0, 1, None],
    )  # fmt: skip
    assert grouped(text) == ([0, 1, 1, 2, 3], ["[CLS]", "unseen", "heads", "[SEP]"])
    w = torch.rand(5, 5).softmax(-1)
    words, names = word_weights(w, text)
    assert names[1] == "unseen"
    assert torch.allclose(words.sum(-1), torch.ones(4))
    assert torch.allclose(words[1, 1], (w[1, 1] + w[1, 2] + w[2, 1] + w[2, 2]) / 2)
    with pytest.raises(ValueError, match="does not know its words"):
        grouped(Text.plain([1, 2]))


# Alignments


def test_links_of_both_directions_are_joined() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 1), (5, 5)}, {(0, 0), (1, 1), (3, 3)}
    assert symmetrised(forward, backward, "intersection") == {(0, 0), (1, 1)}
    assert symmetrised(forward, backward, "union") == forward | backward
    # (2, 1) is beside (1, 1) and gives word 2 its first link; (3, 3) and (5, 5) touch nothing.
    assert symmetrised(forward, backward) == {(0, 0), (1, 1), (2, 1)}
    with pytest.raises(ValueError, match="grow-diag"):
        symmetrised(forward, backward, "both")  # type: ignore[arg-type]


def every_path(rows: int, cols: int) -> list[list[tuple[int, int]]]:
    if (rows, cols) == (1, 1):
        return [[(0, 0)]]
    found = []
    for a, b in ((1, 1), (1, 0), (0, 1)):
        if rows > a and cols > b:
            found += [[*path, (rows - 1, cols - 1)] for path in every_path(rows - a, cols - b)]
    return found


def test_time_warping_finds_the_cheapest_path() -> None:
    costs = torch.rand(4, 5, dtype=torch.float64)
    best = min(every_path(4, 5), key=lambda path: sum(float(costs[at]) for at in path))
    assert warped(costs) == best


def test_sound_is_aligned_in_time() -> None:
    """Tokens heard one after the other, each for ten frames, under noise."""
    truth = torch.arange(40) // 10
    weights = (torch.rand(3, 4, 40) + 4 * (truth == torch.arange(4)[:, None])).softmax(-1)
    path = time_path(weights)
    heard = {frame: token for token, frame in path}
    assert sum(heard[frame] == int(truth[frame]) for frame in range(40)) >= 36
    with pytest.raises(ValueError, match="odd"):
        time_path(weights, width=4)


def test_the_error_rate_of_links_from_attention() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    links = alignment_error.link(weights)
    assert links == {(0, 0), (2, 1), (0, 2)}
    # Two sure links of which one is found, one more found is possible: 1 − (1 + 2)/(3 + 2).
    assert alignment_error.error([links], [{(0, 0), (1, 2)}], [{(2, 1)}]) == pytest.approx(1 - 3 / 5)


# Through the layers


def mixed(seen: regard.Seen) -> list[Tensor]:
    found = []
    for call in seen:
        a = call.weights.dense()[0].mean(0)
        a = a + torch.eye(len(a))
        found.append(a / a.sum(-1, keepdim=True))
    return found


@pytest.mark.parametrize("is_causal", [False, True])
def test_rollout_is_the_product_of_its_layers(is_causal: bool) -> None:
    seen = looked_at(a_text(25).ids, layers=3, is_causal=is_causal)
    first, second, third = mixed(seen)
    expected = third @ second @ first
    assert torch.allclose(rollout(seen), expected, atol=1e-5)
    assert torch.allclose(rollout(seen, rows=[3, 20]), expected[[3, 20]], atol=1e-5)
    assert torch.allclose(rollout(seen).sum(-1), torch.ones(25), atol=1e-5)


def test_flow_of_one_layer_is_its_capacity_and_of_two_is_bounded() -> None:
    (only,) = mixed(one := looked_at(a_text(6).ids, layers=1))
    assert torch.allclose(flow(one, 2), only[2], atol=1e-6)
    two = looked_at(a_text(6).ids, layers=2)
    first, second = mixed(two)
    found = flow(two, 2)
    # Two layers: through each middle token as much as the narrower of its two edges, all at once.
    expected = torch.minimum(second[2][:, None], first).sum(0)
    assert torch.allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="128 tokens"):
        flow(looked_at(a_text(200).ids), 0)


def test_distances_between_heads() -> None:
    seen = looked_at(a_text(12).ids)
    rows = torch.cat([call.weights.dense()[0] for call in seen]) * 0.999 + 0.001 / 12
    found = distances(seen)
    assert found.shape == (4, 4)
    middle = (rows[0] + rows[3]) / 2
    kl = [(x * (x / middle).log()).sum(-1) for x in (rows[0], rows[3])]
    assert float(found[0, 3]) == pytest.approx(float(((kl[0] + kl[1]) / 2).mean()), rel=1e-3)
    assert torch.equal(found, found.T)


def test_the_default_dtype_and_device_are_not_those_of_places_in_a_text() -> None:
    """In bfloat16 the last of 600 places is past the end, and nothing can be counted beyond 256."""
    model, ids = Model(), torch.arange(600) % 7
    with torch.no_grad(), watch(model) as seen:
        model(ids[None])

    def found() -> tuple[list[dict[str, float]], list[dict[str, float]], Tensor]:
        patterns = Patterns()
        patterns.add(seen, Text.plain(ids))
        heads = patterns.heads()
        return [head.scores for head in heads], [head.p for head in heads], distances(seen)

    scores, p, apart = found()
    torch.set_default_dtype(torch.bfloat16)
    try:
        again, p_again, apart_again = found()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(scores, again, strict=True):
        assert one == pytest.approx(other, rel=1e-2)
        assert one["positional"] == other["positional"]
    assert torch.allclose(apart, apart_again, atol=1e-5)
    assert [x.keys() for x in p] == [x.keys() for x in p_again]
    with torch.device("meta"):
        assert spread(100, 64).tolist() == spread(100, 64).tolist()


def test_the_map_keeps_distances_of_points_in_a_plane() -> None:
    points = torch.randn(7, 2)
    apart = torch.cdist(points, points)
    found = plane(apart)
    assert torch.allclose(torch.cdist(found, found), apart, atol=1e-4)


def test_a_head_that_copies_from_the_needle_is_a_retrieval_head() -> None:
    """Prompt 0 … 9 with the needle at 4 … 6; the model writes 4, 5, 6; head 0 looks there, head 1 at the first."""

    class EncoderDecoder(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k.clone(), is_causal=q.shape[-2] > 1)

    model, width = EncoderDecoder(), 13
    k = torch.eye(width).expand(1, 2, width, width).clone()
    q = torch.zeros(1, 2, 12, width)
    for step in range(3):
        q[0, 0, 9 + step, 4 + step] = 90.0
        q[0, 1, 9 + step, 0] = 90.0
    with watch(model) as seen:
        model(q[:, :, :10], k[:, :, :10])
        model(q[:, :, 10:11], k[:, :, :11])
        model(q[:, :, 11:12], k[:, :, :12])
    assert seen[0].steps == [10, 1, 1]
    ids = torch.tensor([*range(10), 4, 5, 6])
    assert retrieval(seen, ids, range(4, 7)).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="in the prompt"):
        retrieval(seen, ids, range(9, 12))


def test_keys_that_nobody_sees_are_left_out_and_change_nothing() -> None:
    """Statistics walk a causal matrix up to the diagonal; every answer is the whole matrix's."""
    q, k, v = (torch.randn(2, 2, 1200, 4, dtype=torch.float64) for _ in range(3))
    for mask in (causal(), causal() & regard.padding([700, 1200]), causal() & regard.window(40), causal(-600)):
        z, w = attend(q, k, v, mask=mask, weights=True)
        dense = w.dense()
        found = w.stats(entropy=True, top=8, received=True, offsets=[-1, 0], on=[0, 900], fidelity=(v, z))
        assert torch.allclose(found.entropy, -torch.special.xlogy(dense, dense).sum(-1))  # type: ignore[arg-type]
        assert torch.allclose(found.top.values, dense.topk(8).values)  # type: ignore[union-attr]
        assert torch.allclose(found.received, dense.sum(-2))  # type: ignore[arg-type]
        assert torch.allclose(found.on, dense[..., [0, 900]].sum(-1))  # type: ignore[arg-type]
        assert torch.allclose(found.offsets[..., 1], dense.diagonal(0, -2, -1))  # type: ignore[index]
        assert float(found.fidelity.max()) < 1e-12  # type: ignore[union-attr]


def test_a_pattern_nobody_scored_is_named() -> None:
    with pytest.raises(ValueError, match=r"no pattern is called 'prev'; there are .*previous"):
        Patterns().strongest("prev")
