"""Scenes: reproducible, with right captions and the place of every word; test captions never occur in training."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.corpora import scenes
from regard.data.corpora.scenes import COLOURS

COUNT = 300


@pytest.fixture(scope="module")
def drawn() -> list[tuple[scenes.Scene, np.ndarray]]:
    made = [scenes.scene(pair.source) for pair in scenes.pairs(COUNT, seed=3)]
    return [(one, one.picture(scenes.SIZE).astype(float)) for one in made]


def test_a_name_is_a_picture() -> None:
    first, again = scenes.picture("scene:train:0:5"), scenes.picture("scene:train:0:5")
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.uint8
    assert (first == again).all()
    others = ("scene:train:0:6", "scene:train:1:5", "scene:test:0:5")
    assert all((scenes.picture(other) != first).any() for other in others)
    assert scenes.picture("scene:train:0:5", 96).shape == (96, 96, 3)


def test_pairs_are_the_same_again_and_longer_lists_go_on() -> None:
    short, long = list(scenes.pairs(20, seed=1)), list(scenes.pairs(40, seed=1))
    assert long[:20] == short
    assert len({pair.target for pair in long}) > 30


def test_the_test_split_has_captions_that_training_never_has() -> None:
    train = {pair.target for pair in scenes.pairs(3000)}
    test = {pair.target for pair in scenes.pairs(1000, split="test")}
    assert not train & test
    assert {word for one in test for word in one.split()} == {word for one in train for word in one.split()}


def test_captions_name_the_larger_first_then_the_upper_or_left(drawn: list[tuple[scenes.Scene, np.ndarray]]) -> None:
    seen = set()
    for scene, _ in drawn:
        if len(scene.groups) == 1:
            assert scene.relation == ""
            continue
        seen.add(scene.relation)
        (xs, ys), (us, vs) = (([t.x for t in g.things], [t.y for t in g.things]) for g in scene.groups)
        stands = {
            "above": max(ys) < min(vs),
            "below": min(ys) > max(vs),
            "left of": max(xs) < min(us),
            "right of": min(xs) > max(us),
        }
        assert stands[scene.relation]
        order = ["large", "", "small"]
        ranks = [order.index(group.size) for group in scene.groups]
        assert ranks[0] < ranks[1] if scene.relation in ("below", "right of") else ranks[0] <= ranks[1]
    assert seen == {"above", "below", "left of", "right of"}


def test_articles() -> None:
    captions = [pair.target for pair in scenes.pairs(2000)]
    assert any("an orange" in caption for caption in captions)
    assert not any("a orange" in caption or "an small" in caption for caption in captions)


def test_words_say_where_they_are(drawn: list[tuple[scenes.Scene, np.ndarray]]) -> None:
    """Inside the boxes of a colour word there is that colour, and outside all boxes there is only grey."""
    for scene, picture in drawn:
        assert scene.caption == " ".join(word.text for word in scene.words)
        size = len(picture)
        coloured = picture.max(-1) - picture.min(-1) > 60  # grey has none
        everywhere = np.zeros((size, size), bool)
        for word in scene.words:
            if word.text in {"a", "an", "two", "three", *scene.relation.split()}:
                assert word.boxes == ()
                continue
            for box in word.boxes:
                left, top = int(box.left * size), int(box.top * size)
                rows, cols = slice(top, int(box.bottom * size) + 1), slice(left, int(box.right * size) + 1)
                everywhere[max(top - 3, 0) : rows.stop + 3, max(left - 3, 0) : cols.stop + 3] = True
                if word.text in COLOURS:
                    here = picture[rows, cols][coloured[rows, cols]]
                    near = np.abs(np.median(here, axis=0) - COLOURS[word.text]).max()
                    assert near < 45, scene.caption
        assert not (coloured & ~everywhere).any(), scene.caption


def test_no_two_things_overlap_and_all_are_in_the_picture(drawn: list[tuple[scenes.Scene, np.ndarray]]) -> None:
    for scene, _ in drawn:
        boxes = [thing.box for group in scene.groups for thing in group.things]
        for i, box in enumerate(boxes):
            assert min(box) >= 0
            assert max(box) <= 1
            for other in boxes[:i]:
                apart = (
                    box.right <= other.left
                    or other.right <= box.left
                    or box.bottom <= other.top
                    or other.bottom <= box.top
                )
                assert apart, scene.caption


def test_plurals_are_for_several(drawn: list[tuple[scenes.Scene, np.ndarray]]) -> None:
    for scene, _ in drawn:
        for group in scene.groups:
            assert (group.words[-1].text != group.shape) == (len(group.things) > 1)


@pytest.mark.parametrize("name", ["scene:", "scene:valid:0:1", "scene:train:0:-1", "scene:train:0", "scene:train:a:1"])
def test_what_is_no_scene_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no scene; scenes are called"):
        scenes.scene(name)
