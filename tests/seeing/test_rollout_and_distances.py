"""Rollout and flow against matrix products and capacities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import Seen, watch
from regard.seeing.analysis import (
    Patterns,
    classical_scaling,
    flow,
    head_distances,
    head_matches,
    induction_scores,
    repeated_sequence,
    repeated_sequence_scores,
    retrieval_scores,
    rollout,
)
from tests.support.attention_model import AttentionModel, random_text, watched
from tests.support.small_language_models import small_model

if TYPE_CHECKING:
    import regard


def mixed(seen: regard.Seen) -> list[Tensor]:
    result = []
    for call in seen:
        a = call.weights.dense()[0].mean(0)
        a = a + torch.eye(len(a))
        result.append(a / a.sum(-1, keepdim=True))
    return result


@pytest.mark.parametrize("is_causal", [False, True])
def test_rollout_is_the_product_of_its_layers(is_causal: bool) -> None:
    seen = watched(random_text(25).ids, layers=3, is_causal=is_causal)
    first, second, third = mixed(seen)
    expected = third @ second @ first
    assert torch.allclose(rollout(seen), expected, atol=1e-5)
    assert torch.allclose(rollout(seen, rows=[3, 20]), expected[[3, 20]], atol=1e-5)
    assert torch.allclose(rollout(seen).sum(-1), torch.ones(25), atol=1e-5)


def test_flow_of_one_layer_is_its_capacity_and_of_two_is_bounded() -> None:
    (only,) = mixed(one := watched(random_text(6).ids, layers=1))
    assert torch.allclose(flow(one, 2), only[2], atol=1e-6)
    two = watched(random_text(6).ids, layers=2)
    first, second = mixed(two)
    result = flow(two, 2)
    # Two layers: through each middle token as much as the narrower of its two edges, all at once.
    expected = torch.minimum(second[2][:, None], first).sum(0)
    assert torch.allclose(result, expected, atol=1e-6)
    with pytest.raises(ValueError, match="128 tokens"):
        flow(watched(random_text(200).ids), 0)


def test_distances_between_heads() -> None:
    seen = watched(random_text(12).ids)
    rows = torch.cat([call.weights.dense()[0] for call in seen]) * 0.999 + 0.001 / 12
    result = head_distances(seen)
    assert result.shape == (4, 4)
    middle = (rows[0] + rows[3]) / 2
    kl = [(x * (x / middle).log()).sum(-1) for x in (rows[0], rows[3])]
    assert float(result[0, 3]) == pytest.approx(float(((kl[0] + kl[1]) / 2).mean()), rel=1e-3)
    assert torch.equal(result, result.T)


def test_the_map_keeps_distances_of_points_in_a_plane() -> None:
    points = torch.randn(7, 2)
    apart = torch.cdist(points, points)
    result = classical_scaling(apart)
    assert torch.allclose(torch.cdist(result, result), apart, atol=1e-4)


def test_distances_between_the_heads_of_two_runs() -> None:
    text = random_text(12).ids
    seen, other = watched(text), watched(text)
    result = head_distances(seen, other=other)
    both = [torch.cat([call.weights.dense()[0] for call in each]) * 0.999 + 0.001 / 12 for each in (seen, other)]
    p, q = both[0][1], both[1][2]
    middle = (p + q) / 2
    kl = [(x * (x / middle).log()).sum(-1) for x in (p, q)]
    assert float(result[1, 2]) == pytest.approx(float(((kl[0] + kl[1]) / 2).mean()), rel=1e-3)
    assert torch.allclose(head_distances(other, other=seen), result.T, atol=1e-6)
    with pytest.raises(ValueError, match=r"over one text: .* got 9 × 9 and 12 × 12"):
        head_distances(seen, other=watched(random_text(9).ids))
    with pytest.raises(ValueError, match="a run has no self-attention"):
        head_distances(seen, other=Seen())
    with pytest.raises(ValueError, match="rows is the number of queries to compare, at least 1, got 0"):
        head_distances(seen, rows=0)


def test_each_head_is_matched_with_the_nearest_of_the_other_run() -> None:
    text = random_text(12).ids
    seen = watched(text)
    same = head_matches(seen, seen).columns
    assert same["other layer"] == same["layer"] == [0, 0, 1, 1]
    assert same["other head"] == same["head"] == [0, 1, 0, 1]
    assert same["distance"] == same["same place"] == pytest.approx([0] * 4, abs=1e-6)
    assert same["mutual"] == [True] * 4
    other = watched(text)
    distances, found = head_distances(seen, other=other), head_matches(seen, other).columns
    assert found["distance"] == pytest.approx(distances.amin(1).tolist())
    assert found["same place"] == pytest.approx(distances.diagonal().tolist())
    number = [2 * layer + head for layer, head in zip(found["other layer"], found["other head"], strict=True)]
    assert number == distances.argmin(1).tolist()
    assert found["mutual"] == [int(distances[:, m].argmin()) == n for n, m in enumerate(number)]


def test_induction_on_a_repeated_sequence() -> None:
    ids = repeated_sequence(20, 12, avoid=[0, 1])
    assert torch.equal(ids[:12], ids[12:])
    assert int(ids.min()) >= 2
    seen = watched(ids, is_causal=True)
    expected = torch.stack([call.weights.dense()[0].diagonal(1 - 12, -2, -1)[:, 1:].mean(-1) for call in seen])
    scores = induction_scores(seen, 12)
    assert torch.allclose(scores, expected, atol=1e-6)


def test_forward_passes_and_stacks_are_not_mixed() -> None:
    text, model = random_text(10), AttentionModel()
    with torch.no_grad(), watch(model) as twice:
        model(text.ids[None])
        model(text.ids[None] * 0)
    both = nn.ModuleDict({"encoder": AttentionModel(), "decoder": AttentionModel()})
    with torch.no_grad(), watch(both) as mixed:
        both["encoder"](text.ids[None])
        both["decoder"](text.ids[None])
    for seen, word in ((twice, "several forward passes"), (mixed, "encoder.layer, decoder.layer")):
        for ask in (rollout, head_distances, lambda seen: Patterns().add(seen, text), lambda seen: flow(seen, 0)):
            with pytest.raises(ValueError, match=word):
                ask(seen)


def test_a_head_that_copies_from_the_needle_is_a_retrieval_head() -> None:
    """Prompt 0 … 9 with the needle at 4 … 6; the model writes 4, 5, 6; head 0 looks there, head 1 at the first."""

    class Generator(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k.clone(), is_causal=q.shape[-2] > 1)

    model, width = Generator(), 13
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
    assert retrieval_scores(seen, ids, range(4, 7)).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="in the prompt"):
        retrieval_scores(seen, ids, range(9, 12))
    with watch(model) as forced:  # prompt and answer in one pass
        model(q, k[:, :, :12])
    with pytest.raises(ValueError, match="say how many of them are the prompt, with prompt="):
        retrieval_scores(forced, ids[:12], range(4, 7))
    assert retrieval_scores(forced, ids, range(4, 7), prompt=10).tolist() == [[1.0, 0.0]]
    # Without the last token only two steps of the answer are known.
    assert retrieval_scores(forced, ids[:12], range(4, 7), prompt=10)[0, 0] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="saw 12 queries, which are not a prompt"):
        retrieval_scores(forced, ids[:11], range(4, 7), prompt=10)


def test_scores_on_repeated_sequences_stand_beside_a_control() -> None:
    model = small_model("gpt2", layers=2)
    result = repeated_sequence_scores(model, vocabulary=40, length=12, sequences=3)
    eager = small_model("gpt2", layers=2)
    eager.set_attn_implementation("eager")
    expected = []
    for seed in range(3):
        twice = repeated_sequence(40, 12, seed)
        with torch.no_grad():
            weights = eager(twice[None], output_attentions=True).attentions
        rows = torch.arange(12, 24)
        expected.append(torch.stack([w[0][:, rows, rows - 11].mean(-1) for w in weights]))
    torch.testing.assert_close(result.scores["induction"].double(), torch.stack(expected), rtol=1e-9, atol=1e-12)
    assert result.scores["previous"].shape == result.control["duplicate"].shape == (3, 2, 4)
    columns = result.table().columns
    assert len(columns["induction, control"]) == len(columns["standard error of duplicate"]) == 8
    assert repr(result).startswith("3 sequences of twice 12 random tokens")
    model.train()
    with pytest.raises(ValueError, match="in training mode with Dropout"):
        repeated_sequence_scores(model, vocabulary=40)
