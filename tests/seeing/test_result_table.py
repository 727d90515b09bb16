"""Tables as data frames, CSV and Parquet."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.seeing.analysis import Patterns, TokenizedText
from regard.seeing.result_table import ResultTable

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
    monkeypatch.setattr("regard.seeing.result_table.find_spec", lambda name: None)
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


def test_what_was_seen_is_a_table() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(torch.randn(1, 5, 8))
    columns = seen.table().columns
    assert columns["layer"] == [0, 1]
    assert columns["queries"] == [5, 5]
    assert columns["faithful"] == [True, True]
    assert columns["fidelity"] == [call.fidelity().error for call in seen]


def test_patterns_are_a_table() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(torch.randn(1, 5, 8))
    patterns = Patterns()
    patterns.add(seen, TokenizedText.from_ids([3, 1, 4, 1, 5]))
    columns = patterns.table().columns
    assert columns["head"] == [0, 1, 0, 1]
    assert columns["previous"] == [head.scores["previous"] for head in patterns.heads()]
    assert columns["p of previous"] == [head.p["previous"] for head in patterns.heads()]
