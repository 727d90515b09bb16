"""The site's viewer: without a server, models run in the browser and give what Python gives."""

from __future__ import annotations

import base64
import functools
import http.server
import io
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from regard.data.corpora import phrasebook, scenes, tones
from regard.data.media import SoundReader
from regard.decoding import model_folders
from regard.viewer import model_routes as outputs
from regard.viewer.answer_contributions import next_tokens
from regard.viewer.inside import inside_view, neuron_view
from regard.viewer.library import Library, installed_models
from regard.viewer.trace_view import first_trace
from tests.support.browser_page import drawn, open_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytest.importorskip("onnx", reason="needs the extra `export`")
site_viewer = pytest.importorskip("tools.site_viewer")

CLOSE = 1e-3
HERE = ("http://127.0.0.1:", "data:", "blob:")
TRANSLATORS = ["tatoeba-bahdanau-en-fr", "tatoeba-transformer-en-fr"]
SENTENCE = "My sister has a small black dog."
ODD = [
    "  two  spaces ",
    "l'été à Noël, 12%",
    "Ωμέγα 漢字 </s> <unk>",
    "It's «quoted»… & &apos; –",
    "a\nb\tc",
    "ﬁ e\u0301",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the viewer, under a sub-path of a host that serves files and nothing else."""
    if not (site_viewer.RUNTIME / site_viewer.SCRIPT).is_file():
        pytest.skip("onnxruntime-web is not installed: npm ci --ignore-scripts")
    folder = tmp_path_factory.mktemp("site")
    texts = [(TRANSLATORS[1], SENTENCE, 0)]
    site_viewer.write(folder / "some" / "path", texts=texts)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/path/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def models() -> Library:
    return Library([], [model for model in installed_models() if model.ours])


@pytest.fixture(scope="module")
def opened(browser: Browser, site: str) -> Iterator[tuple[Page, list[str]]]:
    """One page for all tests, since loading the models takes longer than running them; and what it complained of."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.add_init_script("try { localStorage.setItem('regard-tour', 'done') } catch {}")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(HERE) else None)
    page.set_default_timeout(60_000)
    page.goto(site)
    drawn(page)
    yield page, complaints
    context.close()


@pytest.fixture
def viewer(opened: tuple[Page, list[str]]) -> Iterator[Page]:
    page, complaints = opened
    yield page
    assert complaints == []


def post(page: Page, path: str, body: dict[str, Any]) -> Any:
    return page.evaluate("([path, body]) => regard.source.post(path, body)", [path, body])


def post_file(page: Page, path: str, content: bytes) -> Any:
    code = """async ([path, text]) => {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      return regard.source.post(path, new Blob([bytes]));
    }"""
    return page.evaluate(code, [path, base64.b64encode(content).decode()])


def same(ours: Any, theirs: Any, where: str = "answer") -> None:
    """Equal texts and structures, numbers to 1e-3; nothing of what the browser does not compute."""
    if isinstance(ours, dict):
        missing = {key for key in ours if key.startswith("contribution")}  # they need a backward pass
        assert set(theirs) >= set(ours) - missing, where
        for key in ours.keys() - {"fidelity", "picture", "remarks"} - missing:
            same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            same(a, b, f"{where}[{at}]")
    elif isinstance(ours, float):
        assert theirs == pytest.approx(ours, abs=CLOSE, rel=CLOSE), where
    else:
        assert theirs == ours, where


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations(viewer: Page, models: Library, name: str) -> None:
    """Text, score, weights, alternatives, and the beam of every step."""
    for text, beams in ((SENTENCE, 5), ("Where is the library?", 1), ("I don't know what 3 Ωmegas cost.", 3)):
        expected = outputs.translation(models, models.model(name), text, beams)
        (result,) = post(viewer, "/api/translate", {"text": text, "models": [name], "beams": beams})["translations"]
        same(expected, result)


def test_tokenizers(viewer: Page) -> None:
    texts = [pair.source for pair in phrasebook.pairs(100)] + ODD
    for name in (TRANSLATORS[0], "opinions-lstm"):
        tokenizer = model_folders.load(name).tokenizers.source
        code = """async ([name, texts]) => {
          const { source } = await regard.source.live.model(name);
          return texts.map((text) => { const ids = source.encode(text); return [ids, source.decode(ids)]; });
        }"""
        for text, (ids, decoded) in zip(texts, viewer.evaluate(code, [name, texts]), strict=True):
            assert ids == tokenizer.encode(text), text
            assert decoded == tokenizer.decode(ids), text


def test_classes_of_texts(viewer: Page, models: Library) -> None:
    text = "The soup was not bad, but I would not call the waiter friendly."
    expected = outputs.text_classification(models, models.model("opinions-lstm"), text)
    (result,) = post(viewer, "/api/classify", {"text": text, "models": ["opinions-lstm"]})["classifications"]
    same(expected, result)


def test_a_classifier_is_watched(viewer: Page) -> None:
    text = "The soup was not bad."
    trace = Library([], installed_models()).read("opinions-lstm", text)
    check_weights(viewer, post(viewer, "/api/traces", {"model": "opinions-lstm", "text": text})["id"], trace)


def test_a_sentence_typed_on_the_page(viewer: Page) -> None:
    """Every view of the new trace has something to show, and its link makes it again."""
    viewer.get_by_role("textbox", name="Type a sentence").fill("I like apples.")
    viewer.get_by_role("button", name="Run").click()
    viewer.wait_for_function("() => regard.state.get().trace?.startsWith('live-')")
    for view in ("Heads", "Model", "Map", "Generation"):
        open_view(viewer, view)
        drawn(viewer)
        assert not viewer.get_by_role("alert").is_visible(), view
    assert viewer.locator("nav [data-name=neuron]").get_attribute("hidden") is not None  # it takes queries and keys
    link = viewer.evaluate("regard.state.link()")
    second = viewer.context.new_page()
    second.goto(link)
    second.wait_for_function("() => window.regard?.state.get().trace?.startsWith('live-')")
    second.close()


def test_next_tokens_and_the_inside_view(viewer: Page, models: Library) -> None:
    name, text = site_viewer.INSIDE
    expected = next_tokens(models, models.model(name), text, 0.7)
    same(expected, post(viewer, "/api/next", {"model": name, "text": text, "temperature": 0.7})["next"])
    body = {"model": name, "text": text, "layer": 2, "head": 1}
    same(inside_view(models.loaded(models.model(name)), text, 2, 1), post(viewer, "/api/inside", body))
    say = "(body) => regard.source.post('/api/inside', body).catch((error) => error.message)"
    assert "regard view" in viewer.evaluate(say, {**body, "text": "another text"})
    open_view(viewer, "Inside")
    viewer.wait_for_function("() => regard.drawn()")
    assert not viewer.get_by_role("alert").is_visible()
    assert not viewer.get_by_role("textbox", name="Text").is_editable()
    open_view(viewer, "Heads")  # what takes an installation is not offered as a button
    panel = viewer.get_by_role("region", name="What if")
    panel.get_by_text("regard view").wait_for()
    assert panel.get_by_role("button").count() == 0


def test_samples_and_the_neuron_view(viewer: Page) -> None:
    samples = viewer.evaluate("regard.source.get('/api/samples')")
    assert samples["pictures"]
    assert samples["sounds"]
    trace = first_trace()
    path = f"/api/traces/{trace.id}/calls/2/neuron"
    code = "([path, params]) => regard.source.get(path, params)"
    theirs = viewer.evaluate(code, [path, {"head": 9, "entry": 0, "query": 3, "cols": "0:8"}])
    same(neuron_view(trace.weights(2, 0)[9], 3, range(8)), theirs)


def test_the_character_model(viewer: Page) -> None:
    """The likeliest characters, and the weights of every layer and head."""
    name, prompt = "shakespeare-transformer", "ROMEO:\nBut soft, what"
    trace = Library([], installed_models()).read(name, prompt, generate=30)
    made = post(viewer, "/api/traces", {"model": name, "text": prompt, "generate": 30})["id"]
    check_weights(viewer, made, trace)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_trace_made_in_the_browser(viewer: Page, name: str) -> None:
    trace = Library([], installed_models()).read(name, "I like apples.")
    made = post(viewer, "/api/traces", {"model": name, "text": "I like apples."})["id"]
    check_weights(viewer, made, trace)


def check_weights(page: Page, made: str, trace: Any) -> None:
    """The same tokens along the sides, and in some call of the browser's trace the weights of each of Python's."""
    ours = trace.describe()
    theirs = page.evaluate("(id) => regard.source.get(`/api/traces/${id}`)", made)
    assert theirs["sides"] == ours["sides"]
    assert theirs["side_words"] == ours["side_words"]
    code = """async ([id, calls]) => Promise.all(calls.map(async (call) => [
      ...(await regard.source.array(`/api/traces/${id}/calls/${call}/weights`, { entry: 0 })).data,
    ]))"""
    arrays = page.evaluate(code, [made, list(range(len(theirs["calls"])))])
    matched = 0
    for call in ours["calls"]:
        expected = trace.weights(int(call["id"]), 0).dense().flatten().numpy()
        close = [np.shape(x) == expected.shape and np.abs(x - expected).max() < CLOSE for x in map(np.array, arrays)]
        matched += any(close)
    assert matched == len(ours["calls"])


def test_captions(viewer: Page, models: Library) -> None:
    from PIL import Image

    for size in (64, 150):
        file = io.BytesIO()
        picture = Image.fromarray(scenes.picture("scene:test:0:3", 64)).resize((size, size + size // 3))
        picture.save(file, "PNG")
        expected = outputs.caption(models, models.models_for("caption")[0], file.getvalue())
        same(expected, post_file(viewer, "/api/caption", file.getvalue()))


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(viewer: Page) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")
    with pytest.raises(Exception, match="8,000 × 8,000 pixels; at most 32,000,000 in all"):
        post_file(viewer, "/api/caption", file.getvalue())


def test_sounds(viewer: Page, models: Library, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="needs the extra `sound`")
    samples = SoundReader().encode("tone:rising:31")
    for rate in (tones.RATE, 11025):
        path = tmp_path / f"{rate}.wav"
        soundfile.write(path, samples, rate, subtype="PCM_16")
        expected = outputs.sound_classification(models, models.models_for("listen"), path.read_bytes())
        same(expected, post_file(viewer, "/api/listen", path.read_bytes()))


def test_what_it_cannot_do_it_says(viewer: Page) -> None:
    say = "(text) => regard.source.post('/api/other', { text }).catch((error) => error.message)"
    assert "regard view" in viewer.evaluate(say, "x")
    unknown = "() => regard.source.get('/api/traces/none').catch((error) => error.message)"
    assert "choose another" in viewer.evaluate(unknown)


def test_the_first_view_is_small_and_loads_no_model(page: Page, site: str) -> None:
    received: dict[str, int] = {}
    page.on("response", lambda answer: received.update({answer.url: len(answer.body())}))
    page.goto(site)
    drawn(page)
    page.wait_for_load_state("networkidle")
    assert sum(received.values()) <= 1_500_000, received
    assert not [url for url in received if "/ort/" in url or "/models/" in url]
