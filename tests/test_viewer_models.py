"""Models behind the page: what the API says of a translation, a text or a picture is what the library says."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
import torch
from viewing import error_of, get, json_of, post

from regard.decoding import pretrained
from regard.decoding.trail import trail
from regard.decoding.translate import translate
from regard.viewer.app import make
from regard.viewer.shelf import Model, Shelf, installed, model_at

if TYPE_CHECKING:
    from pathlib import Path

SENTENCE = "My sister has a small black dog."
NAMES = [name for name in pretrained.shipped() if name.startswith("tatoeba-")]


@pytest.mark.parametrize("name", NAMES)
def test_a_translation_with_its_alignment_and_its_search(name: str) -> None:
    app = make(Shelf(models=installed()))
    (told,) = json_of(post(app, "/api/translate", {"text": SENTENCE, "models": [name], "beams": 3}))["translations"]
    loaded = pretrained.load(name)
    (found,) = translate(loaded.model, loaded.tokenizers, [SENTENCE], **{**loaded.search, "beams": 3, "weights": True})
    assert told["translation"] == found.text
    assert (told["source"], told["target"]) == (found.source_pieces, found.pieces)
    assert found.weights is not None
    torch.testing.assert_close(torch.tensor(told["weights"]), found.weights.mean(0), atol=1e-4, rtol=0)
    assert told["fidelity"]["kept"] is True
    assert len(told["steps"]) == len(found.tokens)
    # Along the translation the alternatives' log-probabilities add up to that of the whole.
    total = 0.0
    for step, piece in zip(told["steps"], found.pieces, strict=True):
        total += next(x["logprob"] for x in step["alternatives"] if x["piece"] == piece)
    assert total == pytest.approx(found.hypotheses[0].logprob, abs=1e-3)
    # Greedily, each step's beam is what has been written.
    (greedy,) = json_of(post(app, "/api/translate", {"text": SENTENCE, "models": [name], "beams": 1}))["translations"]
    ends = [step["beam"][0]["text"] for step in greedy["steps"]]
    assert ends[-1] == greedy["translation"]
    assert [step["prefix"] for step in greedy["steps"][1:]] == ends[:-1]


def test_a_trail_ends_in_what_the_search_finds() -> None:
    if not NAMES:
        pytest.skip("no translator ships")
    loaded = pretrained.load(NAMES[0])
    (found,) = translate(loaded.model, loaded.tokenizers, [SENTENCE], beams=4)
    source = torch.tensor([found.source_tokens])
    with torch.no_grad():
        annotations = loaded.model.encode(source, torch.tensor([source.shape[1]]))
    steps = trail(loaded.model.decoder, annotations, beams=4)
    assert all(1 <= len(step) <= 4 for step in steps)
    assert all(len(held.tokens) == at + 1 for at, step in enumerate(steps) for held in step)
    ended = [held for step in steps for held in step if held.tokens == found.tokens]
    assert [held.score for held in ended] == pytest.approx([found.hypotheses[0].score], abs=1e-5)
    with pytest.raises(ValueError, match="of one sentence, got 2"):
        trail(loaded.model.decoder, annotations.select(torch.tensor([0, 0])), beams=1)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/api/translate", {"text": "a", "models": []}, 422, "models"),
        ("/api/translate", {"text": "a", "models": ["nobody"]}, 404, "nobody"),
        ("/api/translate", {"text": " ", "models": ["x"]}, 422, "text"),
        ("/api/translate", {"text": "a", "models": ["x"], "beams": 17}, 422, "beams"),
        ("/api/classify", {"text": "a", "models": ["x"]}, 404, "none is installed"),
        ("/api/caption", {}, 404, "no model here can caption"),
        ("/api/listen", {}, 404, "no model here can listen"),
    ],
)
def test_what_no_model_can_do_is_refused(path: str, body: object, status: int, word: str) -> None:
    app = make(Shelf(models=[Model("tatoeba", "read", "t", "t")]))
    assert word in error_of(post(app, path, body), status)


def test_a_model_is_known_by_its_configuration(tmp_path: Path) -> None:
    assert {model.task for model in installed() if model.ours} <= {
        "translate",
        "classify",
        "caption",
        "listen",
        "generate",
    }
    with pytest.raises(ValueError, match="neither trace"):
        model_at(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert model_at(str(tmp_path)) == Model(tmp_path.name, "read", tmp_path.name, str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="should be a JSON object"):
        model_at(str(tmp_path))


def test_the_picture_that_was_sent_is_the_one_that_is_told(tmp_path: Path) -> None:
    """An untrained captioner says nonsense, but of the right picture and with weights over its grid."""
    image = pytest.importorskip("PIL.Image")
    from regard.viewer.senses import _file

    packed = io.BytesIO()
    image.new("RGB", (8, 8), (250, 0, 0)).save(packed, "PNG")
    with _file(packed.getvalue()) as name:
        from regard.data.pictures import Pictures

        assert Pictures(4).encode(name)[0, 0].tolist() == [250, 0, 0]
    with pytest.raises(ValueError, match=r"^what was sent: is not a picture"), _file(b"no picture") as name:
        Pictures(4).encode(name)


def test_bleu_by_length_is_the_figures() -> None:
    curves = json_of(get(make(Shelf()), "/api/length"))["curves"]
    longest = {one["translator"]: one["points"][-1][1] for one in curves if "phrase book" in one["data"]}
    assert longest["seq2seq"] < 0.5 * longest["bahdanau"]  # without attention, long sentences are lost
    assert all(len(point) == 3 for one in curves for point in one["points"])
