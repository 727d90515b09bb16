"""Many tabs: two hundred tiles asked for at once are all answered, and memory stays bounded."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from pathlib import Path

import httpx
import pytest

from regard.viewer.library import Library
from regard.viewer.server import Server, serving
from regard.viewer.trace_view import TraceView
from tests.support.viewer_client import answered, array_of, get, seen_of

LENGTH = 2500
STATUS = Path("/proc/self/status")


def tiles(root: str) -> list[str]:
    """Two hundred different ones, at every zoom of two heads, in no order."""
    results = []
    for level, head, pool in itertools.product(range(5), range(2), ("max", "mean")):
        reach = 256 << level
        for top, left in itertools.product(range(0, LENGTH, reach), repeat=2):
            bottom, right = min(top + reach, LENGTH), min(left + reach, LENGTH)
            size = -(-(bottom - top) >> level), -(-(right - left) >> level)
            place = f"top={top}&left={left}&bottom={bottom}&right={right}&height={size[0]}&width={size[1]}"
            results.append(f"{root}/calls/1/tile?head={head}&pool={pool}&{place}")
    random.Random(0).shuffle(results)
    return results[:200]


async def asked(server: Server, paths: list[str]) -> list[tuple[int, str]]:
    limits = httpx.Limits(max_connections=200)
    client = httpx.AsyncClient(base_url=server.address, headers=server.headers, timeout=120, limits=limits)
    async with client:

        async def whole(path: str) -> tuple[int, str]:
            while (answer := await client.get(path)).status_code == 202:
                pass
            return answer.status_code, digest(answer.content)

        return await asyncio.gather(*map(whole, paths))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def megabytes() -> float:
    with STATUS.open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from Linux's /proc")
def test_two_hundred_tiles_at_once() -> None:
    shown = TraceView.of(seen_of(length=LENGTH, heads=2, batch=1))
    paths = tiles(f"/api/traces/{shown.id}")
    with serving(Library([shown]), token=False) as server:
        answered(asked(server, paths[:4]))  # what the first requests load is not their memory
        before = megabytes()
        results = answered(asked(server, paths))
        after = megabytes()
        assert {status for status, _ in results} == {200}
        again = answered(asked(server, paths))
        assert again == results
        jobs = server.app.state.jobs
        assert (jobs.worker.waiting, jobs.models.waiting) == (0, 0)
        # Two maps of 1,250² cells twice over are 25 MB, two hundred tiles at most 52; the matrices would be 50 more.
        assert jobs.cache.bytes < 80e6
        assert after - before < 160
        # The second time nothing new is kept; what else a process holds by then moves by tens of megabytes.
        assert megabytes() - after < 160
        alone = array_of(get(server.app, paths[7]))
    assert digest(alone.numpy().tobytes()) == results[7][1]
