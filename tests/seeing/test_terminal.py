"""What the terminal shows: heatmaps and sparklines; and tables of results."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Literal

import pytest
import torch
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from torch import nn

import regard
from regard.seeing import terminal
from regard.seeing.analysis import Patterns, TokenizedText
from regard.seeing.terminal import ResultTable, heatmap, luminance, sparkline

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    Colours = Literal["standard", "256", "truecolor"]

WEIGHTS = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 1.0]])
ROWS, COLS = ["a", "long"], ["x", "y", "z"]


def console(width: int, colours: Colours | None, *, no_color: bool = False) -> Console:
    return Console(
        width=width, file=io.StringIO(), color_system=colours, force_terminal=colours is not None, no_color=no_color
    )


def drawn(picture: RenderableType, width: int = 80, colours: Colours | None = None, *, no_color: bool = False) -> str:
    screen = console(width, colours, no_color=no_color)
    screen.print(picture)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_without_colour_it_is_shaded_and_numbered() -> None:
    assert drawn(heatmap(WEIGHTS, ROWS, COLS)).splitlines() == [
        "        x      y      z   ",
        "   a ▒ 0.50 ▒ 0.50    ·   ",
        "long   0.10 ░ 0.20 █ 1.00 ",
    ]


def test_narrow_it_is_shaded_under_upright_labels() -> None:
    assert drawn(heatmap(WEIGHTS, ROWS, ["x", "yes", "no"]), width=12).splitlines() == [
        "       y   ",
        "       e n ",
        "     x s o ",
        "   a ▒▒▒▒· ",
        "long   ░░██",
    ]


@pytest.mark.parametrize("colours", ["256", "truecolor"])
def test_colours_paint_the_ground(colours: Colours) -> None:
    text = drawn(heatmap(WEIGHTS, ROWS, COLS), colours=colours)
    assert text.count("\x1b[") >= 5
    assert "48;5;" in text if colours == "256" else "48;2;" in text
    assert not set(text) & set("░▒▓█")
    assert all(number in text for number in ("0.50", "0.10", "0.20", "1.00"))


@pytest.mark.parametrize(("colours", "no_color"), [("truecolor", True), ("standard", False)])
def test_no_color_and_few_colours_are_shaded(colours: Colours, no_color: bool) -> None:
    text = drawn(heatmap(WEIGHTS, ROWS, COLS), colours=colours, no_color=no_color)
    assert "48;" not in text
    assert "█ 1.00" in text


def test_brightness_rises_along_the_ramp() -> None:
    ramp = [luminance(Color.from_rgb(*stop)) for stop in terminal.RAMP]
    steps = [luminance(Color.from_ansi(stop)) for stop in terminal.ANSI_RAMP]
    for brightness in (ramp, steps):
        assert brightness == sorted(set(brightness))


def test_the_letters_stand_out_from_the_ground() -> None:
    weights = torch.linspace(0.01, 1, 50)[None]
    labels = [""] * 50
    for colours in ("256", "truecolor"):
        screen = console(400, colours)
        for segment in screen.render(heatmap(weights, [""], labels)):
            if segment.style is None or segment.style.bgcolor is None:
                continue
            assert segment.style.color is not None
            dark, light = sorted(luminance(colour) for colour in (segment.style.color, segment.style.bgcolor))
            assert (light + 0.05) / (dark + 0.05) > 3.0


def test_the_scale_is_the_largest_weight() -> None:
    small, large = (drawn(heatmap(WEIGHTS * scale, ROWS, COLS), width=12) for scale in (1e-6, 1.0))
    assert small == large


def test_all_zeros_are_dots() -> None:
    text = drawn(heatmap(torch.zeros(2, 3), ROWS, COLS), colours="truecolor")
    assert text.count("·") == 6


@pytest.mark.parametrize("width", [80, 24])
def test_every_line_is_equally_long_whatever_the_labels(width: int) -> None:
    labels = ["[bold]", "two\nlines", "漢字", "internationalization"]
    lines = drawn(heatmap(torch.rand(4, 4), labels, labels), width).splitlines()
    assert len(set(map(cell_len, lines))) == 1


def test_labels_are_cut_and_never_break_the_line() -> None:
    labels = ["[bold]", "two\nlines", "漢字", "internationalization"]
    lines = drawn(heatmap(torch.rand(4, 4), labels, labels)).splitlines()
    assert len(lines) == 5
    assert lines[0].split() == ["[bold]", "two·lin…", "漢字", "interna…"]
    assert lines[4].startswith("international…")


def test_too_wide_a_matrix_is_cut_with_a_sign() -> None:
    lines = drawn(heatmap(torch.rand(1, 40), ["row"], [""] * 40), width=30).splitlines()
    assert all(len(line) <= 30 for line in lines)
    assert lines[-1].endswith("…")


def test_large_numbers_keep_their_columns() -> None:
    header, row = drawn(heatmap(torch.tensor([[123.0, 0.5]]), ["r"], ["a", "b"])).splitlines()
    assert len(header) == len(row)


@pytest.mark.parametrize(
    ("weights", "rows", "message"),
    [
        (WEIGHTS, ["only one"], r"weights are \[2, 3\], with 1 and 3 labels"),
        (WEIGHTS[None], ROWS, r"\[1, 2, 3\]"),
        (torch.zeros(0, 3), [], r"\[0, 3\]"),
        (WEIGHTS - 1, ROWS, "finite weights ≥ 0, got -0.5"),
        (WEIGHTS * torch.nan, ROWS, "got nan"),
        (WEIGHTS / 0, ROWS, "got inf"),
    ],
)
def test_what_cannot_be_drawn_is_refused(weights: torch.Tensor, rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heatmap(weights, rows, COLS)


TABLE = {"layer": [0, 1], "score": [0.1, -2.5], "name": ["a, b", 'c "d"']}


def test_csv_reads_back(tmp_path: Path) -> None:
    ResultTable(TABLE).save(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["layer", "score", "name"], ["0", "0.1", "a, b"], ["1", "-2.5", 'c "d"']]


def test_parquet_reads_back(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    ResultTable(TABLE).save(tmp_path / "table.parquet")
    assert parquet.read_table(tmp_path / "table.parquet").to_pydict() == TABLE


def test_a_frame_has_the_columns() -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    frame = ResultTable(TABLE).to_frame()
    assert list(frame.columns) == list(TABLE)
    assert frame["score"].tolist() == TABLE["score"]


def test_without_pandas_and_polars_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.seeing.terminal.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install pandas"):
        ResultTable(TABLE).to_frame()
    with pytest.raises(ImportError, match="pip install pyarrow"):
        ResultTable(TABLE).save("table.parquet")


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        ResultTable({"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        ResultTable(TABLE).save("table.xlsx")
    with pytest.raises(ValueError, match="there is no folder"):
        ResultTable(TABLE).save("nowhere/table.csv")


def test_what_was_seen_and_its_patterns_are_tables() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(torch.randn(1, 5, 8))
    columns = seen.table().columns
    assert columns["layer"] == [0, 1]
    assert columns["queries"] == [5, 5]
    assert columns["faithful"] == [True, True]
    assert columns["fidelity"] == [call.fidelity().error for call in seen]
    patterns = Patterns()
    patterns.add(seen, TokenizedText.from_ids([3, 1, 4, 1, 5]))
    columns = patterns.table().columns
    assert columns["head"] == [0, 1, 0, 1]
    assert columns["previous"] == [head.scores["previous"] for head in patterns.heads()]
    assert columns["p of previous"] == [head.p["previous"] for head in patterns.heads()]


def test_bars_are_means_scaled_to_the_largest() -> None:
    assert sparkline(torch.tensor([0.0, 1.0]), 4) == "  ██"
    assert sparkline(torch.arange(120.0), 3) == "▂▅█"
    assert sparkline(torch.zeros(5), 2) == "  "
