"""A process that encodes shards: tasks come as lines of JSON, and what was done is printed as lines of JSON.

`multiprocessing` would import the main module again, which starts a training in a script without a guard, or fork a
process that has threads.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

from ..label_set import UnknownLabelError
from ..pair_reader import BadRowError
from .encode_shards import ShardTask, run_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ERRORS: dict[str, type[Exception]] = {each.__name__: each for each in (BadRowError, UnknownLabelError, ValueError)}
"""Errors about the data, which the first process raises again. Others say that something is wrong with the program."""
VARIABLE = "REGARD_PROCESSES"
MOST_PROCESSES = 32  # unless the variable says more: each takes some hundred megabytes
CONTROL_GROUP = Path("/sys/fs/cgroup")


class WorkerError(RuntimeError):
    """A worker process failed, or ended before its task."""


def process_count() -> int:
    """The environment variable REGARD_PROCESSES, or the number of cores that this process may use, at most 32."""
    setting = os.environ.get(VARIABLE, "")
    if not setting:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        return max(1, min(cores, _quota(), MOST_PROCESSES))
    if not setting.isdecimal() or int(setting) < 1:
        raise ValueError(f"{VARIABLE} is {setting!r:.40}; it should be the number of processes that prepare data")
    return int(setting)


def _quota() -> int:
    """The cores that the control group of a container allows (Linux), or MOST_PROCESSES where nothing limits them."""
    files = [["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]]  # of version 2, and of version 1
    for names in files:
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((CONTROL_GROUP / name).read_text() for name in names).split())
            if quota > 0 and period > 0:  # -1: no limit
                return math.ceil(quota / period)
    return MOST_PROCESSES


def run_tasks(tasks: Sequence[ShardTask], processes: int) -> Iterator[tuple[int, int]]:
    """Do the tasks; (index of the task, pairs of a block) for each block, in the order in which blocks are done.

    An error about the data is that of the earliest block, whatever the number of processes.
    """
    if processes <= 1 or len(tasks) <= 1:
        for index, task in enumerate(tasks):
            yield from ((index, rows) for rows in run_task(task))
        return
    pool = _Pool(tasks, min(processes, len(tasks)))
    try:
        yield from pool.results()
    finally:
        pool.stop()


class _Pool:
    """Worker processes, each with a thread here that gives it tasks."""

    def __init__(self, tasks: Sequence[ShardTask], processes: int) -> None:
        self._tasks = list(enumerate(tasks))[::-1]
        self._lock = threading.Lock()
        self._queue: Queue[tuple[int, dict[str, Any]] | None] = Queue()
        self._failed = False
        start = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        start += f"from {__name__} import main; main()"
        command = [sys.executable, "-c", start, json.dumps(sys.path)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(processes)
        ]
        self._threads = [threading.Thread(target=self._serve, args=(each,), daemon=True) for each in self._processes]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[tuple[int, int]]:
        errors: dict[int, dict[str, Any]] = {}
        running = len(self._threads)
        while running:
            item = self._queue.get()
            if item is None:
                running -= 1
            elif "error" in item[1]:
                errors[item[0]] = item[1]
            elif not errors:
                yield item[0], item[1]["rows"]
        if errors:
            self._raise(errors[min(errors)])

    def _raise(self, message: dict[str, Any]) -> None:
        error = ERRORS.get(message["error"], WorkerError)(message["text"])
        for note in message.get("notes", []):
            error.add_note(note)
        raise error

    def _serve(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        while True:
            with self._lock:
                if self._failed or not self._tasks:
                    break
                index, task = self._tasks.pop()
            with suppress(BrokenPipeError):  # it has ended, so there is nothing to read either
                print(json.dumps(task.to_dict()), file=process.stdin, flush=True)
            while True:
                line = process.stdout.readline()
                message = json.loads(line) if line else {"error": "WorkerError", "text": "a worker process was killed"}
                if "done" in message:
                    break
                self._queue.put((index, message))
                if "error" in message:
                    self._failed = True
                    break
            if "error" in message:
                break
        self._queue.put(None)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for process, thread in zip(self._processes, self._threads, strict=True):
            thread.join()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()


def main() -> None:
    """Do the tasks that come, one after the other; the end of the input ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no message
    for line in sys.stdin:
        task = json.loads(line)
        try:
            for rows in run_task(ShardTask(**{**task, "cuts": tuple(task["cuts"])})):
                print(json.dumps({"rows": rows}), file=output, flush=True)
            message: dict[str, Any] = {"done": True}
        except Exception as error:
            name = type(error).__name__
            text = str(error) if name in ERRORS else traceback.format_exc()
            message = {"error": name, "text": text, "notes": getattr(error, "__notes__", [])}
        print(json.dumps(message), file=output, flush=True)
