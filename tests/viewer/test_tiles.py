"""Tiles: any rectangle of a head at any zoom is what pooling the whole matrix gives, computed when it is asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import regard
from regard.viewer import tiles
from regard.viewer.responses import request
from regard.viewer.tiles import HIGH, Cache, Tile, TilePyramid, Worker
from tests.support.viewer_client import Model, answered, app_of, array_of, error_of, get, seen_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from regard.viewer.responses import ClientResponse


def pooled(w: torch.Tensor, edges: tuple[list[int], list[int]], pool: str) -> torch.Tensor:
    rows = [
        [
            (part.amax() if pool == "max" else part.mean())
            for left, right in zip(edges[1], edges[1][1:], strict=False)
            for part in [w[top:bottom, left:right]]
        ]
        for top, bottom in zip(edges[0], edges[0][1:], strict=False)
    ]
    return torch.tensor(rows)


def walked(head: TilePyramid) -> TilePyramid:
    for band in range(len(head.pooled)):
        head.pool_band(band)
    return head


def whole(app: FastAPI, path: str) -> ClientResponse:
    """Asked for until it is all there, as the page does: a busy machine takes longer than a request waits."""
    while (answer := get(app, path)).status == 202:
        pass
    return answer


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": regard.causal()},
    "window": {"mask": regard.causal() & regard.window(20)},
    "dense": {"mask": torch.rand(101, 101, generator=torch.Generator().manual_seed(1)) > 0.3},
    "blind": {"mask": torch.zeros(101, 101, dtype=torch.bool)},
    "temperature": {"normalize": regard.Softmax(0.3)},
    "sparsemax": {"normalize": regard.Sparsemax()},
    "sigmoid": {"normalize": regard.Sigmoid(-1.0)},
    "softpick": {"normalize": regard.Softpick()},
    "stick-breaking": {"normalize": regard.StickBreaking()},
    "additive": {"energy": regard.Additive(8, 8, 4)},
}


@pytest.fixture
def small_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small base level and small bands, so that 101 tokens go through all that 131,072 go through."""
    monkeypatch.setattr(tiles, "BASE", 32)
    monkeypatch.setattr(tiles, "BAND", 1200)


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_zoom_is_the_pooled_matrix(
    name: str, pool: Any, small_bands: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "CHUNK", 300)
    seen = seen_of(OPTIONS[name], length=101, heads=2, batch=1)
    w = seen[0].weights.dense()[0, 1]
    head = walked(TilePyramid(seen[0].head(1)))
    assert (head.block, head.band, len(head.pooled)) == (4, 8, 13)
    for tile in (
        Tile(0, 0, 101, 101, 1, 1),
        Tile(0, 0, 101, 101, 13, 13),  # cells of 8, the last of 5
        Tile(0, 64, 64, 101, 16, 10),  # cells of 4: whole blocks
        Tile(32, 32, 64, 64, 16, 16),  # cells of 2: finer than blocks
        Tile(7, 3, 30, 41, 23, 38),  # single weights
        Tile(0, 0, 50, 101, 30, 7),  # cells of no even size
    ):
        values = head.tile(tile, pool)
        torch.testing.assert_close(values, pooled(w, tile.edges, pool), atol=1e-6, rtol=1e-5)


def test_cells_of_a_power_of_two_where_that_gives_as_many() -> None:
    assert Tile(0, 0, 9, 9, 2, 3).edges == ([0, 8, 9], [0, 4, 8, 9])
    assert Tile(256, 0, 300, 10, 44, 10).edges == ([*range(256, 301)], [*range(11)])
    assert Tile(0, 0, 10, 10, 7, 7).edges[0] == [0, 1, 2, 4, 5, 7, 8, 10]  # none fits: as `Weights.map` cuts


def test_cells_of_a_large_tile_are_whole_blocks(small_bands: None) -> None:
    seen = seen_of(length=101, heads=1, batch=1)
    app, root = app_of(seen)
    path = f"{root}/calls/0/tile?top=0&left=0"
    assert "blocks of 4" in error_of(get(app, f"{path}&bottom=101&right=101&height=10&width=10"), 422)
    answer = whole(app, f"{path}&bottom=83&right=83&height=11&width=11")  # not large
    wanted = pooled(seen[0].weights.dense()[0, 0], Tile(0, 0, 83, 83, 11, 11).edges, "max")
    torch.testing.assert_close(array_of(answer), wanted, atol=1e-6, rtol=0)


def test_rows_of_nan_are_computed_once(small_bands: None) -> None:
    """A NaN in the queries makes the row state NaN; looking for it again would never end."""
    q, k, v = torch.randn(3, 1, 1, 101, 8, generator=torch.Generator().manual_seed(0)).unbind()
    q[..., 50, :] = torch.nan
    model = Model({})
    with torch.no_grad(), regard.watch(model) as seen:
        model(q, k, v)
    app, root = app_of(seen)
    head = walked(TilePyramid(seen[0].head(0)))
    assert head.missing_bands(Tile(0, 0, 101, 101, 13, 13)) == []
    values = head.weights.tile(slice(None), slice(None))
    torch.testing.assert_close(values[:50], seen[0].weights.dense()[0, 0, :50], atol=1e-6, rtol=0)
    for path in ("weights", "top"):
        assert get(app, f"{root}/calls/0/{path}").status == 200


def test_row_states_are_computed_without_a_cache(small_bands: None) -> None:
    """A trace may go, and a full cache drop its maps, while a request is on its way."""
    seen = seen_of(length=101, heads=1, batch=1)
    app, root = app_of(seen)
    app.state.jobs.cache.limit = 0
    values = array_of(answered(request(app, "GET", f"{root}/calls/0/weights"), 20))
    torch.testing.assert_close(values, seen[0].weights.dense()[0], atol=1e-6, rtol=0)


def test_a_tile_of_few_rows_needs_no_pass_over_the_others() -> None:
    torch.manual_seed(0)
    seen = seen_of(length=5000, heads=1, width=4, batch=1)
    head = TilePyramid(seen[0].head(0))
    tile = Tile(4000, 0, 4016, 16, 16, 16)
    assert head.missing_bands(tile) == []
    wanted = seen[0].head(0).tile(slice(4000, 4016), slice(0, 16))
    torch.testing.assert_close(head.tile(tile, "max"), wanted, atol=1e-6, rtol=1e-5)
    assert not bool(head.pooled.any())
    assert head.missing_bands(Tile(0, 0, 5000, 5000, 250, 250)) == list(range(len(head.pooled)))


def test_what_takes_long_is_given_as_far_as_it_is_computed(small_bands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE_SECONDS", -1.0)  # one band, then the answer
    seen = seen_of(length=101, heads=1, batch=1)
    app, root = app_of(seen)
    path = f"{root}/calls/0/tile?top=0&left=0&bottom=101&right=101&height=13&width=13"
    shares = []
    while (answer := get(app, path)).status == 202:
        assert answer.headers["cache-control"] == "no-store"
        shares.append(answer.array["computed"])  # type: ignore[index]
        done = round(shares[-1] * 13)  # rows of cells: each band is one of them here
        w = seen[0].weights.dense()[0, 0]
        wanted = pooled(w, Tile(0, 0, 101, 101, 13, 13).edges, "max")
        wanted[done:] = 0
        torch.testing.assert_close(array_of(answer), wanted, atol=1e-6, rtol=0)
    assert shares == pytest.approx([at / 13 for at in range(1, 13)], abs=1e-3)
    assert answer.status == 200


def test_a_tile_asked_for_again_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app, root = app_of(seen_of())
    path = f"{root}/calls/0/tile?top=0&left=0&bottom=13&right=13&height=4&width=4"
    first = get(app, path)
    monkeypatch.setattr(TilePyramid, "tile", lambda *_: pytest.fail("computed again"))
    assert get(app, path).body == first.body


def test_when_the_client_goes_the_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of many bands is asked for, and left after a few: no band is walked after that."""
    monkeypatch.setattr(tiles, "BASE", 64)
    monkeypatch.setattr(tiles, "BAND", 64_000)
    walk, count = TilePyramid.pool_band, 0

    def counted(self: TilePyramid, band: int) -> None:
        nonlocal count
        count += 1
        walk(self, band)

    monkeypatch.setattr(TilePyramid, "pool_band", counted)
    app, root = app_of(seen_of(length=4000, heads=1, batch=1))
    worker = app.state.jobs.worker

    async def leave() -> None:
        path = f"{root}/calls/0/tile?top=0&left=0&bottom=4000&right=4000&height=250&width=250"
        asked = asyncio.ensure_future(request(app, "GET", path))
        while count < 3:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.wait([asked])

    answered(leave())
    worker.submit(lambda: None).result(10)  # whatever was begun is over
    before = count
    worker.submit(lambda: None).result(10)
    assert count == before < 60  # there are 63 bands
    assert worker.waiting == 0


@pytest.mark.parametrize("normalize", [regard.Softmax(), regard.Sparsemax()], ids=repr)
def test_rows_of_large_energies(normalize: regard.Normalizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers times a power of two, whose products are exact at any size; and a row of finfo.min."""
    monkeypatch.setattr(tiles, "BASE", 32)
    q, k = (torch.randint(-3, 4, (1, 96, 16)).float() for _ in range(2))
    bias = torch.zeros(96, 96)
    bias[5] = torch.finfo(torch.float32).min
    energy = regard.Modified(regard.ScaledDot(), regard.Bias(bias))
    _, w = regard.attend(2.0**60 * q, k, k, energy=energy, mask=regard.causal(), normalize=normalize, weights=True)
    dense, head = w.dense()[0], walked(TilePyramid(w[0]))
    torch.testing.assert_close(head.weights.tile(slice(None), slice(3, 50)), dense[:, 3:50])
    tile = Tile(0, 0, 96, 96, 12, 12)
    for pool in ("max", "mean"):
        torch.testing.assert_close(head.tile(tile, pool), pooled(dense, tile.edges, pool))


# --- The cache and the worker ----------------------------------------------------------------------------------------


def test_the_least_recently_used_is_removed_beyond_the_limit() -> None:
    cache = Cache(10)
    cache.put(("a",), "A", 4)
    cache.put(("b",), "B", 4)
    assert cache.get(("a",)) == "A"  # the most recently used: b is evicted first
    cache.put(("c",), "C", 5)
    assert (cache.get(("a",)), cache.get(("b",)), cache.get(("c",)), cache.bytes) == ("A", None, "C", 9)
    cache.put(("d",), "D", 11)
    assert cache.get(("d",)) is None
    cache.put(("a",), "AA", 5)
    assert cache.bytes == 10
    cache.remove_trace("a")
    assert (cache.get(("a",)), cache.get(("c",)), cache.bytes) == (None, "C", 5)


def test_urgent_jobs_come_first_and_cancelled_ones_never() -> None:
    worker, go, order = Worker("test"), threading.Event(), list[str]()
    worker.submit(go.wait)
    worker.submit(lambda: order.append("a"))
    worker.submit(lambda: order.append("b"))
    worker.submit(lambda: order.append("urgent"), HIGH)
    left = worker.submit(lambda: order.append("left"))
    assert left.cancel()
    go.set()
    worker.submit(int).result(5)
    assert order == ["urgent", "a", "b"]
    assert worker.waiting == 0
    worker.close()
