"""The API keeps to its OpenAPI description: whatever is asked, no answer is other than it says, and none is a 500."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("schemathesis", reason="needs the extra `dev`")

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from regard.viewer.library import Library
from regard.viewer.server import serving
from regard.viewer.trace_view import TraceView
from tests.support.viewer_client import app_of, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = TraceView.of(seen_of())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
schema = schemathesis.openapi.from_dict(app_of(seen_of())[0].openapi())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Library([TRACE]), token=False) as server:
        yield server.address


@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_route(case: schemathesis.Case, address: str) -> None:
    path = case.path_parameters or {}
    if len(str(path.get("trace", "x"))) % 2 == 0:  # a random id is never one that exists
        path["trace"] = TRACE.id
        if isinstance(path.get("call"), int):
            path["call"] %= 3
    case.call_and_validate(base_url=address, checks=CHECKS)
