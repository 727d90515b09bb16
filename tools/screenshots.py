"""Pictures of every view for docs/viewer.md, light and dark: `python -m tools.screenshots [VIEW …]`.

`--widths FOLDER` writes them into a folder instead, as on a phone, a tablet and two desktops, for looking at.

They are of real traces: MiniLM, SmolLM2 reading docs/tour.md and writing on, the translators, the captioner and the
classifier that ship, and a small listener that learns tones here. It takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from regard.viewer.library import Library

DOCS = Path(__file__).parent.parent / "docs"
FOLDER = DOCS / "viewer"
SIZES = {"": (1280, 800)}
"""What is added to the name of a picture, and its width and height: those of docs/viewer.md."""
WIDTHS = {"-390": (390, 844), "-1024": (1024, 768), "-1440": (1440, 900), "-1920": (1920, 1080)}
"""Those of `--widths`."""
PATIENCE = 180_000
"""Milliseconds for a model to answer."""
LARGEST = 150_000
"""Bytes of a picture."""
SENTENCE = "The cat sat on the mat because it was tired, and the dog let it sleep."
PROMPT = "Attention is a way to look things up. A query meets keys that carry values, and"
SCENE, TONE = "scene:test:0:3", "tone:rising:31"
POINTS = {
    "table": "points", "energy": "Gaussian", "normalize": "Softmax", "query": "4.2, 3.1",
    "parameters": {"sigma": 1.2, "temperature": 1, "alpha": 1.5},
    "rows": [
        {"key": "1.2, 1.4", "value": "8"}, {"key": "2.1, 4.6", "value": "14"}, {"key": "4.6, 2.2", "value": "21"},
        {"key": "5.4, 4.9", "value": "12"}, {"key": "7.6, 1.3", "value": "17"}, {"key": "8.3, 4.1", "value": "5"},
    ],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views", nargs="*", metavar="VIEW")
    parser.add_argument("--widths", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    folder, sizes = (arguments.widths, WIDTHS) if arguments.widths else (FOLDER, SIZES)
    folder.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        library, traces = library_for(place)
        scenes = views(traces, place)
        unknown = sorted(set(arguments.views) - {name for name, _, _ in scenes})
        if unknown:
            raise SystemExit(f"there is no view {', '.join(unknown)}; there are {', '.join(x for x, _, _ in scenes)}")
        chosen = [scene for scene in scenes if not arguments.views or scene[0] in arguments.views]
        for suffix, size in sizes.items():
            take(chosen, library, folder, suffix, size)


def library_for(place: Path) -> tuple[Library, dict[str, str]]:
    """What there is to look at, and the ids of the traces."""
    from regard.viewer.library import Library, installed_models, model_at
    from regard.viewer.trace_view import STATE, first_trace

    listener(place / "tones")
    models = [model for model in installed_models() if model.task != "listen"]  # digits are other people's voices
    library = Library([first_trace()], [*models, model_at(str(place / "tones"))])
    library.opening = dict(STATE)
    page = (DOCS / "tour.md").read_text(encoding="utf-8")[:9000]
    read = {
        "short": library.read("minilm", SENTENCE),
        "long": library.read("smollm2", page),
        "written": library.read("smollm2", PROMPT, generate=40),
        "asked": library.read("smollm2", "When Mary and John went to the store, John gave a drink to"),
    }
    for trace in read.values():
        trace.pinned = True
    return library, {name: trace.id for name, trace in read.items()}


def listener(folder: Path) -> None:
    """One that tells rising, falling and steady tones apart, learned here: the sounds are ours."""
    from regard.data import Batches, EncodedCorpus, TokenizerPair
    from regard.data.corpora import tones
    from regard.data.media import SoundReader
    from regard.data.tokenizer_pair import LabelSet
    from regard.models import Classifier, ClassifierConfig, ConvolutionEncoderConfig, HeadConfig

    torch.manual_seed(0)
    sides = TokenizerPair(SoundReader(), LabelSet(tones.SHAPES))
    encoded = EncodedCorpus.build(tones.pairs(600), sides)
    encoder = ConvolutionEncoderConfig(reads="sound")
    model = Classifier(ClassifierConfig(0, len(tones.SHAPES), encoder, HeadConfig())).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(10):
        for batch in Batches(encoded, tokens=32 * int(encoded.widths.max()), seed=0, epoch=epoch):
            loss = model.loss(batch)
            optimizer.zero_grad()
            (loss.total / loss.tokens).backward()
            optimizer.step()
    model.save_pretrained(folder)
    sides.save(folder)


def views(traces: dict[str, str], place: Path) -> list[tuple[str, dict[str, Any], Callable[[Page], None]]]:
    """Each picture's name, the state it opens, and what is done then."""
    import soundfile
    from PIL import Image

    from regard.data.corpora import scenes, tones
    from regard.data.media import SoundReader

    Image.fromarray(scenes.picture(SCENE)).resize((384, 384), Image.Resampling.NEAREST).save(place / "scene.png")
    soundfile.write(place / "tone.wav", SoundReader().encode(TONE), tones.RATE, subtype="PCM_16")

    def wait(page: Page) -> None:
        page.wait_for_timeout(2500)

    def tiles(page: Page) -> None:
        page.wait_for_function("() => regard.drawn()?.pending === 0")
        page.wait_for_timeout(400)

    def translated(page: Page) -> None:
        page.wait_for_function("() => regard.drawn()?.length === 2")
        page.locator(".sentence.target .word").nth(5).hover()

    def captioned(page: Page) -> None:
        page.set_input_files("input[type=file]", place / "scene.png")
        page.wait_for_selector(".strip-word canvas")
        page.locator(".strip-word").nth(2).click()
        page.mouse.move(2, 2)

    def classified(page: Page) -> None:
        page.set_input_files("input[type=file]", place / "tone.wav")
        page.wait_for_selector(".heard")

    def written_on(page: Page) -> None:
        page.locator(".next-token .barrow").first.wait_for()

    def step_by_step(page: Page) -> None:
        page.wait_for_function("() => regard.drawn()?.boxes.length")

    def pointing(page: Page) -> None:
        tiles(page)
        page.mouse.move(560, 480)

    def explained(page: Page) -> None:
        page.wait_for_function("() => regard.drawn()?.toward && regard.drawn().links.length")

    def silenced(page: Page) -> None:
        page.wait_for_function("() => regard.drawn()?.heads?.length && !regard.drawn().running")

    short, long, written, asked = (traces[name] for name in ("short", "long", "written", "asked"))
    it = {"pins": ["q8"], "mute": ["special"]}  # whom “it” means
    close = {"x": 1500, "y": 1508, "scale": 17}
    two = {"other": {"trace": long, "call": "18", "head": 6}}
    return [
        ("first", {}, wait),
        ("lookup", {"view": "lookup", "lookup": POINTS}, wait),
        ("translate", {"view": "translate"}, translated),
        ("heads", {"view": "heads", "trace": short, "call": "5", **it}, wait),
        ("model", {"view": "model", "trace": short}, wait),
        ("neuron", {"view": "neuron", "trace": short, "call": "2", "query": 8}, wait),
        ("map", {"view": "map", "trace": long, "call": "17", "head": 3}, tiles),  # it looks for what came before
        ("map-close", {"view": "map", "trace": long, "call": "0", "head": 4, "map": close}, pointing),
        ("map-two", {"view": "map", "trace": long, "call": "17", "head": 3, "map": two}, tiles),
        ("generation", {"view": "generation", "trace": written, "call": "17", "step": 20}, written_on),
        ("picture", {"view": "picture"}, captioned),
        ("sound", {"view": "sound"}, classified),
        ("read", {"view": "read"}, wait),
        ("inside", {"view": "inside", "inside": {"step": 5}}, step_by_step),
        ("contributions", {"view": "heads", "trace": asked, "call": "23", "toward": {}, "pins": ["q13"]}, explained),
        ("effects", {"view": "effects", "trace": asked}, silenced),
    ]


def take(
    scenes: list[tuple[str, dict[str, Any], Callable[[Page], None]]],
    library: Library,
    folder: Path,
    suffix: str,
    size: tuple[int, int],
) -> None:
    from playwright.sync_api import sync_playwright

    from regard.viewer.server import serving

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    viewport: Any = dict(zip(("width", "height"), size, strict=True))
    with sync_playwright() as playwright, serving(library) as server:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=viewport, color_scheme=scheme, has_touch=size[0] < 600)
            for name, state, act in scenes:
                page = context.new_page()
                page.set_default_timeout(PATIENCE)
                link = "&".join(f"{key}={quote(json.dumps(value))}" for key, value in state.items())
                page.goto(f"{server.url}#{link}" if link else server.url)
                page.wait_for_selector(".tabs [data-open]")
                act(page)
                page.wait_for_timeout(600)
                save(page.screenshot(), folder / f"{name}{suffix}-{scheme}.png")
                page.close()
        browser.close()


def save(screenshot: bytes, path: Path) -> None:
    """As few colours as it takes to be small; the eye sees no difference on a page like this."""
    from PIL import Image

    with Image.open(io.BytesIO(screenshot)) as image:
        whole = image.convert("RGB")
    for colours in (256, 128, 64, 32):
        packed = io.BytesIO()
        whole.quantize(colours, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
        if packed.tell() <= LARGEST:
            break
    path.write_bytes(packed.getvalue())
    print(f"{path.name}: {packed.tell():,} bytes, {colours} colours")


if __name__ == "__main__":
    main()
