"""Inside one layer: each matrix follows from those before it, and the last is what the model computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard.decoding import model_folders
from regard.viewer.guard import RequestError
from regard.viewer.inside import inside_view
from regard.viewer.library import Library, model_at
from regard.viewer.server import create_app
from tests.support.viewer_client import error_of, post

TEXT = "My lord, the night"


def matrix(content: dict[str, Any], name: str) -> torch.Tensor:
    rows = content["matrices"][name]
    return torch.tensor([[-math.inf if x is None else x for x in row] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("name", ["shakespeare-transformer", "tatoeba-transformer-en-fr"])
def test_every_step_follows_from_those_before(name: str) -> None:
    loaded = model_folders.load(name)
    content = inside_view(loaded, TEXT, 1, 2)
    near: dict[str, Any] = {"atol": 2e-3, "rtol": 1e-3}  # five digits are sent
    q, k = (matrix(content, x) for x in (("Q turned", "K turned") if "Q turned" in content["matrices"] else ("Q", "K")))
    torch.testing.assert_close(q @ k.mT, matrix(content, "QKᵀ"), **near)
    torch.testing.assert_close(matrix(content, "Kᵀ"), k.mT)
    torch.testing.assert_close(
        matrix(content, "QKᵀ") / math.sqrt(content["width"]), matrix(content, "QKᵀ / √d"), **near
    )
    open_ = matrix(content, "masked").isfinite()
    assert open_.all() or torch.equal(open_, torch.ones_like(open_).tril())
    torch.testing.assert_close(matrix(content, "masked")[open_], matrix(content, "QKᵀ / √d")[open_], **near)
    torch.testing.assert_close(matrix(content, "masked").softmax(-1), matrix(content, "W"), **near)
    torch.testing.assert_close(matrix(content, "W") @ matrix(content, "V"), matrix(content, "Z"), **near)
    width = content["width"]
    torch.testing.assert_close(matrix(content, "concat")[:, 2 * width : 3 * width], matrix(content, "Z"))
    torch.testing.assert_close(
        matrix(content, "X") + matrix(content, "concat · W_O"), matrix(content, "after attention"), **near
    )
    torch.testing.assert_close(
        matrix(content, "after attention") + matrix(content, "feed-forward"), matrix(content, "out"), **near
    )
    shown = {x for step in content["steps"] for x in step.get("shows", step.get("product", ()))}
    assert {"X", "Q", "K", "V", "QKᵀ", "W", "Z", "concat", "hidden", "out"} <= shown <= set(content["matrices"])
    assert ("next" in content) == (name == "shakespeare-transformer")


def test_what_is_not_there_is_refused() -> None:
    loaded = model_folders.load("shakespeare-transformer")
    with pytest.raises(RequestError, match="no layer 9"):
        inside_view(loaded, TEXT, 9, 0)
    with pytest.raises(RequestError, match="no head 4"):
        inside_view(loaded, TEXT, 0, 4)
    with pytest.raises(RequestError, match="does not know"):
        inside_view(loaded, "é", 0, 0)
    app = create_app(Library(models=[model_at("tatoeba-bahdanau-en-fr")]))
    body = {"model": "tatoeba-bahdanau-en-fr", "text": TEXT}
    assert "no Transformer of regard" in error_of(post(app, "/api/inside", body), 422)
