"""What the viewer's tests share: small traces of known weights, and a way to ask the API without a network."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import numpy as np
import pytest
import torch
from torch import nn

import regard

pytest.importorskip("fastapi", reason="needs the extra `view`")

from regard.viewer.library import Library
from regard.viewer.responses import request
from regard.viewer.server import create_app
from regard.viewer.trace_view import TraceView

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fastapi import FastAPI

    from regard.seeing import Seen
    from regard.viewer.responses import ClientResponse
    from regard.viewer.server import Server

T = TypeVar("T")
WORDS = ["[CLS]", "the", "red", "car", "and", "the", "blue", "car", "stand", "still", "##ness", ".", "[SEP]"]


class Layer(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, v, **self.options)


class Model(nn.Module):
    """Layers that all attend with the same queries, keys and values, each in its own way."""

    def __init__(self, *options: dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(one) for one in options)

    def forward(self, *inputs: torch.Tensor) -> None:
        for layer in self.layers:
            layer(*inputs)


def seen_of(*options: dict[str, Any], length: int = len(WORDS), heads: int = 3, width: int = 8, batch: int = 2) -> Seen:
    """One call for each of these options of `attend`; unless given, one plain and one causal."""
    torch.manual_seed(0)
    model = Model(*(options or ({}, {"mask": regard.causal()})))
    with torch.no_grad(), regard.watch(model) as seen:
        model(*(torch.randn(batch, heads, length, width) for _ in range(3)))
    if length == len(WORDS):
        seen.tokens = [WORDS for _ in range(batch)]
    return seen


def app_of(*seen: Seen) -> tuple[FastAPI, str]:
    """The application with these traces, and the path of the first."""
    shown = [TraceView.of(one) for one in seen]
    return create_app(Library(shown)), f"/api/traces/{shown[0].id}"


def answered(question: Coroutine[Any, Any, T], seconds: float = 60) -> T:
    """What a coroutine gives, in a thread of its own: in this one Playwright's loop may be running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(question, seconds)).result()


def client_of(server: Server) -> httpx.Client:
    """A client that sends the server's token."""
    return httpx.Client(base_url=server.address, headers=server.headers)


def get(app: FastAPI, path: str) -> ClientResponse:
    return answered(request(app, "GET", path))


def post(app: FastAPI, path: str, body: Any) -> ClientResponse:
    return answered(request(app, "POST", path, json.dumps(body).encode()))


def json_of(answer: ClientResponse) -> Any:
    assert answer.status in (200, 201), answer.body
    return json.loads(answer.body)


def array_of(answer: ClientResponse) -> torch.Tensor:
    """The numbers of an answer; weights, where they came as bytes."""
    assert answer.status in (200, 202), answer.body
    metadata = answer.array
    assert metadata is not None
    numbers = torch.from_numpy(np.frombuffer(answer.body, dtype=f"<{np.dtype(metadata['type']).str[1:]}").copy())
    numbers = numbers.view(metadata["shape"]).float()
    if metadata["type"] == "uint8":
        peaks = torch.tensor(metadata["peaks"]).view(-1, *[1] * (max(numbers.dim(), 3) - 1))
        numbers = (peaks * (numbers.view(-1, *numbers.shape[-2:]) / 255).square()).view(numbers.shape)
    return numbers


def error_of(answer: ClientResponse, status: int) -> str:
    assert answer.status == status, (answer.status, answer.body)
    return str(json.loads(answer.body)["error"])
