"""Picture: a captioner's weights word by word, and a vision model's, over the picture's grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import regard
from tests.support.browser_page import drawn, look, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from regard.seeing import Seen
    from regard.viewer.server import Server

pytest.importorskip("PIL", reason="Pillow is not installed (regard[pictures])")
GRID = 4


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has learned a scene by heart."""
    from regard.data import Batches, EncodedCorpus, Tokenizer, TokenizerPair
    from regard.data.corpora import scenes
    from regard.data.media import PictureReader
    from regard.models import (
        EncoderDecoder,
        EncoderDecoderConfig,
        GridEncoderConfig,
        ShowAttendTellDecoderConfig,
    )

    folder = tmp_path_factory.mktemp("models") / "captioner"
    torch.set_num_threads(1)
    pairs = list(scenes.pairs(1))
    sides = TokenizerPair(PictureReader(64), Tokenizer.train("word", 100, (pair.target for pair in pairs)))
    (batch,) = Batches(EncodedCorpus.build(pairs, sides), tokens=10_000)
    torch.manual_seed(0)
    decoder = ShowAttendTellDecoderConfig(attention="soft", hidden=32, embedding=16, width=16, dropout=0)
    model = EncoderDecoder(EncoderDecoderConfig(0, len(sides.target), GridEncoderConfig(width=8, dropout=0), decoder))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        loss = model.loss(batch)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    model.save_pretrained(folder)
    sides.save(folder)
    return folder


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    from regard.data.corpora import scenes

    path = tmp_path_factory.mktemp("pictures") / "scene.png"
    Image.fromarray(scenes.picture("scene:train:0:0")).save(path)
    return path


@pytest.fixture(scope="module")
def vision() -> Seen:
    """A vision Transformer of random weights reading noise: [CLS] and 4 × 4 patches."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (regard[see])")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    model = transformers.ViTModel(config).eval()
    for parameter in model.parameters():  # as they start out, all weights are alike
        parameter.data *= 8
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, 3, 32, 32))
    return seen


@pytest.fixture(scope="module")
def own(captioner: Path, vision: Seen) -> Iterator[tuple[Server, str]]:
    from regard.viewer.library import Library, model_at
    from regard.viewer.server import serving
    from regard.viewer.trace_view import TraceView

    trace = TraceView.of(vision, "ViT", grid=(GRID, GRID))
    with serving(Library([trace], [model_at(str(captioner))])) as server:
        yield server, trace.id


def test_a_caption_appears_word_by_word(page: Page, own: tuple[Server, str], captioner: Path, scene: Path) -> None:
    from regard.data.corpora import scenes
    from regard.decoding import model_folders, translate
    from regard.seeing.align import caption_word_weights

    look(page, own[0], view="picture")
    page.set_input_files("input[type=file]", scene)
    drawing = drawn(page, "drawn.grid[0] === 8 && regard.state.get().picture?.sample === null")
    loaded = model_folders.load(captioner)
    (caption,) = translate(loaded.model, loaded.tokenizers, [str(scene)], **{**loaded.search, "weights": True})
    weights, words = caption_word_weights(caption)
    assert caption.text == next(iter(scenes.pairs(1))).target  # it learned, so it has something to say
    assert page.locator(".strip-word").all_inner_texts() == words
    assert drawing["name"] == words[0]
    last = len(words) - 1
    page.locator(".strip-word").nth(last).click()
    drawing = drawn(page)
    assert drawing["name"] == words[last]
    assert drawing["weights"] == pytest.approx(weights[last].flatten().tolist(), rel=1e-4, abs=1e-7)
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("regard.state.get().picture.word") == max(0, last - 1)
    table = page.evaluate("regard.table()")
    assert [row[0] for row in table[1:]] == words
    assert "<image" in page.evaluate("regard.picture()")


def test_a_picture_keeps_its_proportions(page: Page, own: tuple[Server, str], tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (240, 160), "teal").save(tmp_path / "wide.png")
    look(page, own[0], view="picture")
    page.set_input_files("input[type=file]", tmp_path / "wide.png")
    box = drawn(page, "drawn.grid[0] === 8 && drawn.box.width > drawn.box.height")["box"]
    assert box["width"] / box["height"] == pytest.approx(1.5, abs=0.01)


def test_the_brightest_cell_is_where_it_looked_most(page: Page, own: tuple[Server, str], scene: Path) -> None:
    look(page, own[0], view="picture", picture={"smooth": False})
    page.set_input_files("input[type=file]", scene)
    drawing = drawn(page, "drawn.grid[0] === 8 && regard.state.get().picture?.sample === null")
    cell = max(range(64), key=drawing["weights"].__getitem__)
    darkest = min(range(64), key=drawing["weights"].__getitem__)
    box, settled = drawing["box"], page.locator(".picture .drawing canvas")
    settle(page)
    place = settled.bounding_box()
    assert place is not None
    x, y = (box["x"] + (cell % 8 + 0.5) * box["width"] / 8, box["y"] + (cell // 8 + 0.5) * box["height"] / 8)
    page.mouse.move(place["x"] + x, place["y"] + y)
    assert drawn(page)["hovered"] == cell
    page.mouse.move(2, 2)
    settle(page)
    # The picture is as bright as it is where the weight is largest, and nearly black where it is least of all.
    shade = """([cell, box]) => {
        const canvas = document.querySelector(".picture .drawing canvas");
        const scale = canvas.width / canvas.clientWidth;
        const [column, row] = [cell % 8, Math.floor(cell / 8)];
        const [x, y] = [box.x + (column + 0.5) * box.width / 8, box.y + (row + 0.5) * box.height / 8];
        return [...canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data].slice(0, 3);
    }"""
    from PIL import Image

    with Image.open(scene) as image:
        pixels = image.convert("RGB").resize((512, 512), Image.Resampling.BILINEAR)
        at = [round((part + 0.5) * 64) for part in (cell % 8, cell // 8)]
        expected = pixels.getpixel((at[0], at[1]))
    assert page.evaluate(shade, [cell, box]) == pytest.approx(expected, abs=12)
    assert sum(page.evaluate(shade, [darkest, box])) < sum(page.evaluate(shade, [cell, box])) or drawing["weights"][
        cell
    ] == pytest.approx(drawing["weights"][darkest], rel=0.3)


def test_what_is_no_picture_is_reported(browser: Browser, own: tuple[Server, str], tmp_path: Path) -> None:
    page = browser.new_page()  # one of its own: a refused request is told in the console too
    (tmp_path / "no.png").write_text("no picture")
    look(page, own[0], view="picture")
    page.set_input_files("input[type=file]", tmp_path / "no.png")
    page.wait_for_selector(".alert:not([hidden])")
    assert "not a picture that can be read" in page.inner_text(".alert")
    page.close()


def test_a_vision_model_over_its_patches(page: Page, own: tuple[Server, str], vision: Seen) -> None:
    server, trace = own
    drawing = look(page, server, view="picture", trace=trace, call="1", head=1)
    weights = vision[1].weights[0, 1].dense()
    assert drawing["grid"] == [GRID, GRID]
    assert drawing["weights"] == pytest.approx(weights[0, 1:].tolist(), abs=2e-5)
    canvas = page.locator(".picture .drawing canvas").bounding_box()
    assert canvas is not None
    box = drawing["box"]
    cell = 6  # a click makes this patch the one that asks
    x, y = (
        box["x"] + (cell % GRID + 0.5) * box["width"] / GRID,
        box["y"] + (cell // GRID + 0.5) * box["height"] / GRID,
    )
    page.mouse.move(canvas["x"] + x, canvas["y"] + y)
    page.mouse.down()
    page.mouse.up()
    drawing = drawn(page, "drawn.name === 'cell 2, 3'")
    assert drawing["weights"] == pytest.approx(weights[cell + 1, 1:].tolist(), abs=2e-5)
