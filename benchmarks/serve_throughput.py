"""Sentences a second of `regard serve`: requests one after the other, and from many clients at once.

    python -m benchmarks.serve_throughput [--model tatoeba-transformer-en-fr] [--sentences 256] [--clients 1 8 32]
    python -m benchmarks.serve_throughput --beside 200 [--words 900] [--model tatoeba-bahdanau-en-fr]

The server runs in a process of its own, on one thread; every request has one sentence. "One by one" is one client that
waits for each answer, with no waiting for others on the server. Latencies are those the clients see. Sentences per CPU
second are of the server's process (Linux): they do not depend on what else the machine does.

With `--beside N` a first client sends one request of N texts of `--words` words each. For as long as it waits, a second
one sends sentences one after the other: their latencies are printed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

SENTENCES = [
    "Where is the library?",
    "I have never seen such a beautiful garden in my life.",
    "She asked me whether I wanted to go to the cinema with her.",
    "It is raining.",
    "Could you please tell me what time the next train leaves?",
    "My brother works for a company that makes small machines.",
    "He did not say anything because he was tired.",
    "We will have to wait until tomorrow morning.",
]
TOKEN = "benchmark"


def start(model: str, batch: int, wait: float, beams: int) -> tuple[subprocess.Popen[str], str]:
    """A server and its address; it has answered a first request."""
    command = [sys.executable, "-m", "regard", "serve", model, "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "REGARD_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [*command, "--batch", str(batch), "--wait", str(wait)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    for _ in range(100):
        try:
            translate(address, SENTENCES[:1] * 4, beams)
            break
        except ConnectionError:
            time.sleep(0.1)
    return server, address


def translate(address: str, sentences: list[str], beams: int) -> list[float]:
    """One client: each sentence as a request of its own; the seconds of each."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    times = []
    for sentence in sentences:
        began = time.perf_counter()
        status, content = answer(connection, parts.path, [sentence], beams)
        assert status == 200, content
        times.append(time.perf_counter() - began)
    connection.close()
    return times


def answer(connection: http.client.HTTPConnection, path: str, texts: list[str], beams: int) -> tuple[int, str]:
    """The status and the body of the answer to one request."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps({"texts": texts, "beams": beams}), headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def measure_beside(address: str, texts: int, words: int, beams: int) -> None:
    """Print the latencies of single sentences while one large request is computed."""
    parts = urlsplit(address)
    large, short = (http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600) for _ in range(2))
    text = " ".join((" ".join(SENTENCES).split() * words)[:words])
    times: list[float] = []
    refusals: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(answer, large, parts.path, [text] * texts, beams)
        time.sleep(1)
        while not request.done():
            began = time.perf_counter()
            status, content = answer(short, parts.path, SENTENCES[:1], beams)
            times.append(time.perf_counter() - began)
            refusals += [] if status == 200 else [content]
    status, content = request.result()
    print(f"the request of {texts} texts of {words} words: {status} {content if status != 200 else ''}")
    print(
        f"{len(times)} requests of one sentence meanwhile: latency {statistics.median(times):.2f} s median, "
        f"{max(times):.2f} s longest; {len(refusals)} refused {refusals[:1] or ''}"
    )


def measure(address: str, sentences: list[str], clients: int, beams: int) -> tuple[float, list[float]]:
    """Sentences a second, and the latencies, with so many clients at once."""
    shares = [sentences[n::clients] for n in range(clients)]
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = [each for share in pool.map(lambda part: translate(address, part, beams), shares) for each in share]
    return len(sentences) / (time.perf_counter() - began), times


def cpu_seconds(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tatoeba-transformer-en-fr")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--beside", type=int, metavar="N", help="texts of a large request that is computed meanwhile")
    parser.add_argument("--words", type=int, default=900, help="of each of its texts")
    options = parser.parse_args()
    if options.beside:
        print(f"{options.model}, beam {options.beams}, one CPU thread")
        server, address = start(options.model, 64, 5.0, options.beams)
        try:
            measure_beside(address, options.beside, options.words, options.beams)
        finally:
            server.kill()  # it would compute what is in its queue first
            server.wait()
        return
    sentences = [SENTENCES[n % len(SENTENCES)] for n in range(options.sentences)]
    plain = plain_per_cpu = 0.0
    print(f"{options.model}, beam {options.beams}, {options.sentences} requests of one sentence, one CPU thread")
    for name, batch, wait, clients in [("one by one", 1, 0.0, 1), *(("batched", 64, 5.0, n) for n in options.clients)]:
        server, address = start(options.model, batch, wait, options.beams)
        try:
            before = cpu_seconds(server.pid)
            rate, times = measure(address, sentences, clients, options.beams)
            per_cpu = len(sentences) / (cpu_seconds(server.pid) - before)
        finally:
            server.terminate()
            server.wait()
        plain, plain_per_cpu = plain or rate, plain_per_cpu or per_cpu
        high = statistics.quantiles(times, n=20)[-1]
        print(
            f"{name}, {clients} clients: {rate:.1f} sentences/s ({rate / plain:.1f} ×), latency "
            f"{1000 * statistics.median(times):.0f} ms median, {1000 * high:.0f} ms 95 %; {per_cpu:.1f} sentences per "
            f"CPU second ({per_cpu / plain_per_cpu:.1f} ×)",
            flush=True,
        )


if __name__ == "__main__":
    main()
