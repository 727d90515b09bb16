"""Models behind the page: what the API says of a translation, a text or a picture is what the library says."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from regard.data.media import PictureReader
from regard.decoding import model_folders
from regard.decoding.beam import beam_history
from regard.decoding.classification import classify
from regard.decoding.translation import translate
from regard.viewer import guard
from regard.viewer.library import SAMPLES, Library, ModelEntry, installed_models, model_at
from regard.viewer.responses import request
from regard.viewer.server import create_app, serving
from regard.viewer.trace_view import TraceView
from tests.support.viewer_client import answered, client_of, error_of, get, json_of, post, seen_of

if TYPE_CHECKING:
    from pathlib import Path

    from regard.viewer.responses import ClientResponse

SENTENCE = "My sister has a small black dog."
NAMES = [name for name in model_folders.shipped() if name.startswith("tatoeba-")]


@pytest.mark.parametrize("name", NAMES)
def test_a_translation_with_its_alignment_and_its_search(name: str) -> None:
    app = create_app(Library(models=installed_models()))
    (reply,) = json_of(post(app, "/api/translate", {"text": SENTENCE, "models": [name], "beams": 3}))["translations"]
    loaded = model_folders.load(name)
    (expected,) = translate(
        loaded.model, loaded.tokenizers, [SENTENCE], **{**loaded.search, "beams": 3, "weights": True}
    )
    assert reply["translation"] == expected.text
    assert (reply["source"], reply["target"]) == (expected.source_pieces, expected.pieces)
    assert expected.weights is not None
    torch.testing.assert_close(torch.tensor(reply["weights"]), expected.weights.mean(0), atol=1e-4, rtol=0)
    assert reply["fidelity"]["kept"] is True
    assert len(reply["steps"]) == len(expected.tokens)
    # Along the translation the alternatives' log-probabilities add up to that of the whole.
    total = 0.0
    for step, piece in zip(reply["steps"], expected.pieces, strict=True):
        total += next(x["logprob"] for x in step["alternatives"] if x["piece"] == piece)
    assert total == pytest.approx(expected.hypotheses[0].logprob, abs=1e-3)
    # Greedily, each step's beam is what has been written.
    (greedy,) = json_of(post(app, "/api/translate", {"text": SENTENCE, "models": [name], "beams": 1}))["translations"]
    ends = [step["beam"][0]["text"] for step in greedy["steps"]]
    assert ends[-1] == greedy["translation"]
    assert [step["prefix"] for step in greedy["steps"][1:]] == ends[:-1]


def test_a_trail_ends_in_what_the_search_finds() -> None:
    loaded = model_folders.load(NAMES[0])
    (expected,) = translate(loaded.model, loaded.tokenizers, [SENTENCE], beams=4)
    source = torch.tensor([expected.source_tokens])
    with torch.no_grad():
        annotations = loaded.model.encode(source, torch.tensor([source.shape[1]]))
    steps = beam_history(loaded.model.decoder, annotations, beams=4)
    assert all(1 <= len(step) <= 4 for step in steps)
    assert all(len(held.tokens) == at + 1 for at, step in enumerate(steps) for held in step)
    ended = [held for step in steps for held in step if held.tokens == expected.tokens]
    assert [held.score for held in ended] == pytest.approx([expected.hypotheses[0].score], abs=1e-5)
    with pytest.raises(ValueError, match="of one sentence, got 2"):
        beam_history(loaded.model.decoder, annotations.select(torch.tensor([0, 0])), beams=1)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/api/translate", {"text": "a", "models": []}, 422, "models"),
        ("/api/translate", {"text": "a", "models": ["nobody"]}, 404, "nobody"),
        ("/api/translate", {"text": " ", "models": ["x"]}, 422, "text"),
        ("/api/translate", {"text": "a", "models": ["x"], "beams": 17}, 422, "beams"),
        ("/api/classify", {"text": "a", "models": ["x"]}, 404, "none is installed"),
        ("/api/caption", {}, 404, "no model for 'caption'"),
        ("/api/listen", {}, 404, "no model for 'listen'"),
    ],
)
def test_what_no_model_can_do_is_refused(path: str, body: object, status: int, word: str) -> None:
    app = create_app(Library(models=[ModelEntry("tatoeba", "read", "t", "t")]))
    assert word in error_of(post(app, path, body), status)


def test_a_model_is_known_by_its_configuration(tmp_path: Path) -> None:
    assert {model.task for model in installed_models() if model.ours} <= {
        "translate",
        "classify",
        "caption",
        "listen",
        "generate",
    }
    with pytest.raises(ValueError, match="neither a trace nor a model"):
        model_at(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert model_at(str(tmp_path)) == ModelEntry(tmp_path.name, "read", tmp_path.name, str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="should be a JSON object"):
        model_at(str(tmp_path))


def shipped(task: str) -> ModelEntry:
    return next(model for model in installed_models() if model.ours and model.task == task)


def upload(model: ModelEntry, path: str, content: bytes) -> ClientResponse:
    app = create_app(Library(models=[model]))
    return answered(request(app, "POST", path, content, "application/octet-stream"))


def test_a_text_is_named_as_the_library_names_it() -> None:
    model, text = shipped("classify"), "the soup was cold but the waiter was kind"
    app = create_app(Library(models=[model]))
    (reply,) = json_of(post(app, "/api/classify", {"text": text, "models": [model.name]}))["classifications"]
    loaded = model_folders.load(model.name)
    (expected,) = classify(loaded.model, loaded.tokenizers, [text], weights=True)
    assert (reply["label"], reply["probabilities"]) == (expected.label, pytest.approx(expected.probabilities))
    assert reply["words"] == loaded.tokenizers.source.pieces([int(x) for x in expected.numbers])
    assert expected.weights is not None
    assert reply["weights"] == pytest.approx(expected.weights.tolist(), rel=1e-4)


def test_a_caption_is_that_of_the_library() -> None:
    image, model, scene = pytest.importorskip("PIL.Image"), shipped("caption"), "scene:test:0:7"
    packed = io.BytesIO()
    image.fromarray(PictureReader(256).encode(scene)).save(packed, "PNG")
    reply = json_of(upload(model, "/api/caption", packed.getvalue()))
    loaded = model_folders.load(model.name)
    (expected,) = translate(loaded.model, loaded.tokenizers, [scene], **loaded.search)
    assert reply["text"] == expected.text  # though it was enlarged on its way
    assert reply["text"].split() == reply["words"]
    assert all(len(row) == reply["grid"][0] * reply["grid"][1] for row in reply["weights"])
    assert reply["picture"].startswith("data:image/png;base64,")
    sample = next(path for path in sorted(SAMPLES.iterdir()) if path.suffix == ".png")
    assert json_of(upload(model, "/api/caption", sample.read_bytes()))["remarks"] == []
    packed = io.BytesIO()
    image.fromarray(np.full((64, 64, 3), 200, np.uint8)).save(packed, "PNG")
    (remark,) = json_of(upload(model, "/api/caption", packed.getvalue()))["remarks"]
    assert remark.startswith("nothing is seen in this picture")
    said = error_of(upload(model, "/api/caption", b"no picture"), 422)
    assert said.startswith("the uploaded file: not a picture")


def test_a_sound_is_classified_as_by_the_library() -> None:
    soundfile, model = pytest.importorskip("soundfile"), shipped("listen")
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    packed = io.BytesIO()
    soundfile.write(packed, tone, 8000, format="WAV")
    reply = json_of(upload(model, "/api/listen", packed.getvalue()))
    assert reply["seconds"] == pytest.approx(1.0, abs=0.01)
    assert max(most for _, most in reply["waveform"]) == pytest.approx(0.3, abs=0.01)
    assert sum(reply["probabilities"].values()) == pytest.approx(1.0)
    assert reply["label"] == max(reply["probabilities"], key=reply["probabilities"].__getitem__)
    assert sum(reply["weights"]) == pytest.approx(1.0, abs=1e-3)
    assert "the uploaded file" in error_of(upload(model, "/api/listen", b"no sound"), 422)


def test_a_language_model_of_ours_goes_on_with_a_text() -> None:
    model = shipped("generate")
    app = create_app(Library(models=[model]))
    made = json_of(post(app, "/api/traces", {"model": model.name, "text": "To be", "generate": 6}))
    reply = json_of(get(app, f"/api/traces/{made['id']}"))
    given = model_folders.load(model.name).tokenizers.target.pieces(
        model_folders.load(model.name).tokenizers.target.continued("To be")
    )
    assert reply["tokens"][0][: reply["prompt"]] == given
    assert len(reply["tokens"][0]) == len(given) + 6
    assert {(call["queries"], call["keys"]) for call in reply["calls"]} == {(len(given) + 6,) * 2}
    assert reply["faithful"] is True


def test_when_the_client_goes_the_model_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the third step of a search the client is gone; that step is the last."""
    model = shipped("translate")
    library = Library(models=[model])
    app, decoder = create_app(library), library.loaded(model).model.decoder
    step, count, third, gone = decoder.step, 0, threading.Event(), threading.Event()

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            third.set()
            assert gone.wait(20)
        return step(*given, **more)

    monkeypatch.setattr(decoder, "step", counted)

    async def leave() -> None:
        body = json.dumps({"text": SENTENCE, "models": [model.name]}).encode()
        asked = asyncio.ensure_future(request(app, "POST", "/api/translate", body))
        assert await asyncio.to_thread(third.wait, 20)
        asked.cancel()
        await asyncio.wait([asked])
        gone.set()

    answered(leave())
    app.state.jobs.models.submit(lambda: None).result(20)  # whatever was begun is over
    assert count == 3
    monkeypatch.undo()
    reply = post(app, "/api/translate", {"text": SENTENCE, "models": [model.name]})
    assert json_of(reply)["translations"][0]["translation"]  # the next is not stopped


def test_a_trace_that_goes_takes_with_it_what_was_computed_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "TRACES", 1)
    library = Library([TraceView.of(seen_of(), "pinned")])
    app = create_app(library)
    jobs = app.state.jobs
    first, second = TraceView.of(seen_of(), "first"), TraceView.of(seen_of(), "second")
    library.add(first)
    kept = weakref.ref(first.seen[0].weights.detached.a)
    for trace in list(library.traces):
        for path in ("weights", "tile?top=0&left=0&bottom=13&right=13&height=4&width=4"):
            assert get(app, f"/api/traces/{trace}/calls/0/{path}").status == 200
        assert get(app, f"/api/traces/{trace}/thumbs").status == 200
    assert len(jobs.cache) == 2 + 4  # maps and answers
    library.add(second)
    assert list(library.traces.values())[1:] == [second]
    assert len(jobs.cache) == 1 + 2
    jobs.pyramid(first, 0, 0, 0)  # one that was computed while it went
    assert len(jobs.cache) == 1 + 2
    del first
    for worker in (jobs.worker, jobs.models):
        worker.submit(int).result()  # a worker drops its last job a moment after it has set its result
    gc.collect()
    assert kept() is None


def test_an_example_read_again_stays() -> None:
    example, other = TraceView.of(seen_of(), "example"), TraceView.of(seen_of(), "other")
    library = Library([example, other])
    again = TraceView.of(seen_of(), "example")
    library.add(again)
    assert again.pinned
    assert list(library.traces.values()) == [other, again]


def test_examples_come_while_the_page_is_there_already() -> None:
    model = shipped("translate")
    library = Library(models=[model])
    library.pending = [("no such model", "", 0), (model.name, SENTENCE, 0)]
    with serving(library) as server, client_of(server) as client:
        until = time.monotonic() + 30
        while (about := client.get("/api/about").json())["coming"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert [trace["model"] for trace in about["traces"]] == [model.name]
        assert client.get("/").status_code == 200
