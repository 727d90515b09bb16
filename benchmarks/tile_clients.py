"""python -m benchmarks.tile_clients: 200 clients ask `regard view` for tiles for ten minutes; counts errors and memory.

`regard see` makes a trace of MiniLM over the beginning of this repository's license. `regard
view` serves it in a process of its own. Each client asks for a random tile of a random head, waits for the answer, and
asks for the next. An answer that is not a tile, or differs from an earlier answer for the same tile, is an error. The
exit status is 1 after an error, or where the server's memory grew by more than `FLAT` after the first minute.
With --write the figures go into docs/promises.md.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "promises.md"
BEGIN, END = "<!-- tiles: written by python -m benchmarks.tile_clients -->", "<!-- end of tiles -->"
FLAT = 32
"""Megabytes that the server may grow after the first minute."""
SIDE = 256
"""Cells along a tile, as the page asks for them."""
WAIT = 300
"""Seconds that an answer may take, on a busy machine."""
CHARACTERS = 2400
"""Of the license: 485 tokens of MiniLM, which reads 512."""


@dataclass
class Counts:
    """What the clients received."""

    answers: int = 0
    unfinished: int = 0
    """Answers of status 202: a part was not computed yet, and the tile was asked for again."""
    sent_again: int = 0
    """Requests on a connection that the server had closed meanwhile, since it was idle for 5 seconds."""
    errors: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    """Megabytes of the server, at the start and after each tenth of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--trace", type=Path, help="a folder that `regard see --save` wrote; default: one of MiniLM")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/promises.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="regard-tiles-") as folder:
        trace = options.trace or _trace(Path(folder) / "trace")
        command = [sys.executable, "-m", "regard", "view", str(trace), "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            counts = asyncio.run(_measure(url, server.pid, options.clients, options.seconds))
        finally:
            server.terminate()
            server.wait()
    lines, failed = _report(counts, options.clients, options.seconds)
    print("\n".join(lines))
    for error in counts.errors[:20]:
        print(error, file=sys.stderr)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
    return int(failed)


def _report(counts: Counts, clients: int, seconds: float) -> tuple[list[str], bool]:
    first = counts.memory[1]
    growth = max(counts.memory[1:]) - first
    step = seconds / (len(counts.memory) - 1)
    lines = [
        f"{clients} clients, {seconds:,.0f} seconds: {counts.answers:,} tiles ({len(counts.digests):,} different), "
        f"{len(counts.errors)} errors; {counts.sent_again} requests were sent again, on a new connection, since the "
        "server had closed an idle one.",
        f"The server's memory every {step:.0f} seconds, in MB: "
        + ", ".join(f"{megabytes:.0f}" for megabytes in counts.memory)
        + f". After the first {step:.0f} seconds it grew by at most {growth:.0f}.",
    ]
    return lines, bool(counts.errors) or growth > FLAT


def _trace(folder: Path) -> Path:
    text = " ".join((ROOT / "LICENSE").read_text(encoding="utf-8").split())[:CHARACTERS]
    command = [sys.executable, "-m", "regard", "see", "minilm", text, "--save", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


async def _measure(url: str, process: int, clients: int, seconds: float) -> Counts:
    counts = Counts()
    address = re.sub(r"/\?.*", "", url)
    headers = {"Authorization": f"Bearer {url.split('token=')[1].split('#')[0]}"}
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients, keepalive_expiry=1)
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=WAIT, limits=limits) as client:
        about = (await _first(client, "/api/traces")).json()[0]
        trace = (await client.get(f"/api/traces/{about['id']}")).json()
        paths = _tiles(f"/api/traces/{about['id']}", trace)
        ending = time.monotonic() + seconds
        tasks = [asyncio.create_task(_ask(client, paths, random.Random(n), ending, counts)) for n in range(clients)]
        for tick in range(11):
            await asyncio.sleep(max(0.0, ending - seconds + tick * seconds / 10 - time.monotonic()))
            counts.memory.append(_megabytes(process))
            print(
                f"{tick * seconds / 10:5.0f} s: {counts.answers:,} tiles, {len(counts.errors)} errors, "
                f"{counts.memory[-1]:.0f} MB, load {os.getloadavg()[0]:.0f}",
                flush=True,
            )
        await asyncio.gather(*tasks)
    return counts


async def _first(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """The answer to the first request, once the server has started."""
    for _ in range(600):
        try:
            return await client.get(path)
        except httpx.ConnectError:
            await asyncio.sleep(0.1)
    raise OSError("the server did not start within a minute")


def _tiles(root: str, trace: dict[str, Any]) -> list[str]:
    """The tiles of every head of every call: whole, and in parts of 256 × 256 weights."""
    paths = []
    for number, call in enumerate(trace["calls"]):
        heads, queries, keys = call["heads"], call["queries"], call["keys"]
        whole = (0, 0, queries, keys)
        parts = [
            (i, j, min(i + SIDE, queries), min(j + SIDE, keys))
            for i, j in product(range(0, queries, SIDE), range(0, keys, SIDE))
        ]
        for head, (top, left, bottom, right), pool, kind in product(
            range(heads), [whole, *parts], ("max", "mean"), ("uint8", "float32")
        ):
            size = min(SIDE, bottom - top), min(SIDE, right - left)
            paths.append(
                f"{root}/calls/{number}/tile?head={head}&top={top}&left={left}&bottom={bottom}&right={right}"
                f"&height={size[0]}&width={size[1]}&pool={pool}&type={kind}"
            )
    return paths


async def _ask(
    client: httpx.AsyncClient, paths: list[str], chance: random.Random, ending: float, counts: Counts
) -> None:
    while time.monotonic() < ending:
        path = chance.choice(paths)
        try:
            while (answer := await _get(client, path, counts)).status_code == 202:
                counts.unfinished += 1
        except httpx.HTTPError as error:
            counts.errors.append(f"{path}: {error!r}")
            continue
        digest = hashlib.blake2b(answer.content, digest_size=12).hexdigest()
        if answer.status_code != 200:
            counts.errors.append(f"{path}: {answer.status_code} {json.dumps(answer.text[:200])}")
        elif counts.digests.setdefault(path, digest) != digest:
            counts.errors.append(f"{path}: the answer differs from the first one")
        else:
            counts.answers += 1


async def _get(client: httpx.AsyncClient, path: str, counts: Counts) -> httpx.Response:
    """Send a request, and once more where a connection that was idle turns out to be closed, as browsers do.

    A server may close an idle connection just when a request is on its way (RFC 9112, section 9.3.1). On a new
    connection, or after the first byte of an answer, it is an error.
    """
    events: set[str] = set()

    async def note(event: str, _: object) -> None:
        events.add(event)

    try:
        return await client.get(path, extensions={"trace": note})
    except httpx.TransportError:
        if events & {"connection.connect_tcp.started", "http11.receive_response_headers.complete"}:
            raise
    counts.sent_again += 1
    return await client.get(path)


def _megabytes(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    sys.exit(main())
