"""A run over a corpus: each process adds its share of the texts, and saves sums and the numbers of finished texts.

    FOLDER/settings.json         what is summed over what; a run with other settings is refused
    FOLDER/part-*.safetensors    sums of one process, and the texts they hold, replaced every half minute and at Ctrl-C

A run that was killed is started again by the same command, with any number of processes: texts in a saved part are not
read again. Under torchrun every process has its part; the folder must be one that all of them can reach, and is locked
while a run uses it. Sums are in float64: how the texts were divided changes the last of its digits.

Sums of squares give the standard error of a mean over n texts,

    SE = √(Σ (x − x̄)² / (n (n − 1)))

`bootstrap_interval`, `sign_flip_p` and `benjamini_hochberg` say the same of numbers that are all at hand.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import torch

from ..files import locked_folder, make_folder, replacing_file, write_text
from .terminal import progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jaxtyping import Float
    from torch import Tensor, nn

SAVE_SECONDS = 30.0
DONE = "done"
"""Name of the tensor with the numbers of finished texts, in a part."""
LONGEST_WAIT = timedelta(days=30)
"""How long the first process waits for the last one. torchrun ends all of them if one fails."""
VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""The environment variables that torchrun sets, and their values without it."""


SEPARATOR = "\n"
"""Between the parts of a name in `state`; no module's name holds it."""


class Sums:
    """Sums, sums of squares and counts of tensors under names; a name is a tuple of strings."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Float[Tensor, "..."]] = {}
        self._squares: dict[tuple[str, ...], Float[Tensor, "..."]] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    @property
    def names(self) -> list[tuple[str, ...]]:
        return list(self._sums)

    def add(
        self,
        name: tuple[str, ...],
        values: Float[Tensor, "..."],
        count: int = 1,
        squares: Float[Tensor, "..."] | None = None,
    ) -> None:
        """Add one term, or a sum of several with the sum of their squares (NaN: not known)."""
        terms, former = values.detach().to("cpu", torch.float64), self._sums.get(name)
        if former is not None and former.shape != terms.shape:
            raise ValueError(f"{' '.join(name)} has the shape {tuple(terms.shape)}, and {tuple(former.shape)} before")
        squares = terms.square() if squares is None else squares
        self._sums[name] = terms if former is None else former + terms
        self._squares[name] = squares if former is None else self._squares[name] + squares
        self._counts[name] = self.count(name) + count

    def merge(self, other: Sums) -> None:
        """Add all sums and counts of another part."""
        for name, terms in other._sums.items():
            self.add(name, terms, other.count(name), other._squares[name])

    def count(self, name: tuple[str, ...]) -> int:
        """The number of terms."""
        return self._counts.get(name, 0)

    def sum(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        return self._sums[name]

    def mean(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        return self._sums[name] / self._counts[name]

    def standard_error(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        """Of the mean over texts; NaN for one text, and for states of versions that saved no squares."""
        n = self._counts[name]
        spread = (self._squares[name] - self._sums[name].square() / n).clamp_min(0)
        return (spread / (n * (n - 1))).sqrt() if n > 1 else torch.full_like(spread, torch.nan)

    def state(self) -> dict[str, Tensor]:
        """Tensors to save, by name."""
        state = {SEPARATOR.join(("total", *name)): terms.contiguous() for name, terms in self._sums.items()}
        state |= {SEPARATOR.join(("squares", *name)): terms.contiguous() for name, terms in self._squares.items()}
        return state | {SEPARATOR.join(("count", *name)): torch.tensor(n) for name, n in self._counts.items()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Sums:
        sums = cls()
        for key, count in state.items():
            kind, _, name = key.partition(SEPARATOR)
            if kind == "count":
                total = state[f"total{SEPARATOR}{name}"]
                squares = state.get(f"squares{SEPARATOR}{name}", torch.full_like(total, torch.nan))
                sums.add(tuple(name.split(SEPARATOR)), total, int(count), squares)
        return sums


RESAMPLES = 2000
EXACT_SIGNS = 12
"""Prompts up to which all 2ⁿ choices of signs are counted; of more, as many as of this number are drawn."""


def bootstrap_interval(
    values: Float[Tensor, "sites n"], coverage: float = 0.95, seed: int = 0
) -> tuple[Float[Tensor, " sites"], Float[Tensor, " sites"]]:
    """The percentile interval of the mean over n prompts: low and high; NaN for one prompt (Efron 1979)."""
    n = values.shape[-1]
    if n < 2:
        return (torch.full(values.shape[:-1], torch.nan, dtype=values.dtype),) * 2
    picks = torch.randint(n, (RESAMPLES, n), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(RESAMPLES, n).scatter_add_(1, picks, torch.ones(RESAMPLES, n)).to(values.dtype)
    tail = torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], dtype=values.dtype)
    low, high = torch.quantile(values @ counts.T / n, tail, dim=-1)
    return low, high


def sign_flip_p(values: Float[Tensor, "sites n"], seed: int = 0) -> Float[Tensor, " sites"]:
    """The two-sided p value of a mean of 0, by turning the signs of prompts round (Fisher 1935).

    Of up to 12 prompts it is exact, and at least 2 / 2ⁿ: the signs as they are, and all of them turned round.
    """
    n = values.shape[-1]
    if n <= EXACT_SIGNS:
        signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * n).reshape(-1, n)
    else:
        drawn = torch.randint(2, (2**EXACT_SIGNS - 1, n), generator=torch.Generator().manual_seed(seed))
        signs = torch.cat([torch.ones(1, n), 2.0 * drawn - 1])
    sums = (values @ signs.T.to(values.dtype)).abs()
    least = sums[..., :1] * (1 - 1e-9)  # sums of the same numbers in another order count as equal
    return (sums >= least).double().mean(-1).where(values.isfinite().all(-1), torch.nan)


def benjamini_hochberg(p: Float[Tensor, "*sites"]) -> Float[Tensor, "*sites"]:
    """q values: the least false discovery rate at which each of these tests counts (Benjamini & Hochberg 1995)."""
    flat = p.flatten().double()
    known = flat.isfinite()
    order = flat[known].argsort(descending=True)
    count = len(order)
    scaled = flat[known][order] * count / torch.arange(count, 0, -1, dtype=torch.float64)
    q = torch.full_like(flat, torch.nan)
    q[known] = torch.zeros(count, dtype=q.dtype).scatter_(0, order, scaled.cummin(0).values if count else scaled)
    return q.reshape(p.shape)


@dataclass(frozen=True, slots=True)
class Process:
    """Which of several processes this is."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Process:
        rank, count, local = (int(os.environ.get(name, x)) for name, x in VARIABLES.items())
        if not 0 <= rank < count:
            raise ValueError(f"RANK={rank} and WORLD_SIZE={count} do not fit; start several processes with torchrun")
        return cls(rank, count, local)


def run_corpus(
    texts: int,
    add: Callable[[Sums, int], None],
    folder: Path | None,
    settings: dict[str, Any],
    *,
    process: Process | None = None,
) -> Sums | None:
    """Call `add(sums, number)` for each of the texts that no saved part holds; the sums over all of them.

    Of several processes, the first one waits for the others and gets the result; the others get None. Without a folder
    there is nothing to resume, and only one process.
    """
    process = process or Process.from_environment()
    if folder is None:
        if process.count > 1:
            raise ValueError(f"{process.count} processes merge their results in a folder: give --state FOLDER")
        sums = Sums()
        for number in progress(range(texts), "texts"):
            add(sums, number)
        return sums
    if process.rank == 0:
        make_folder(folder)
    busy = f"another run over a corpus uses {folder}; wait for it, or give another --state folder"
    with locked_folder(folder, busy) if process.rank == 0 else nullcontext():
        if process.rank == 0:
            _check_settings(folder, settings)
        _wait(process)  # settings.json is written
        _check_settings(folder, settings)
        done = set().union(*(numbers for _, numbers in _parts(folder).values()))
        _wait(process)  # everybody has the same list of finished texts
        rest = [number for number in range(texts) if number not in done]
        _add_share(rest[process.rank :: process.count], add, folder, process)
        _wait(process)
        return _merged(folder, texts) if process.rank == 0 else None


def _add_share(
    share: list[int],
    add: Callable[[Sums, int], None],
    folder: Path,
    process: Process,
) -> None:
    path = folder / f"part-{process.rank}-{token_hex(4)}.safetensors"
    kept, unsaved = (Sums(), list[int]()), list[tuple[int, Sums]]()

    def save() -> None:
        nonlocal kept, unsaved
        sums, finished = Sums(), [*kept[1], *(number for number, _ in unsaved)]
        for part in (kept[0], *(one for _, one in unsaved)):
            sums.merge(part)
        if finished:
            _save(path, sums, finished)
        kept, unsaved = (sums, finished), []

    saved = time.monotonic()
    title = "texts" if process.count == 1 else f"texts (process 0 of {process.count})"
    try:
        for number in share if process.rank else progress(share, title):
            one = Sums()  # a text that is interrupted leaves nothing behind
            add(one, number)
            unsaved.append((number, one))
            if time.monotonic() - saved > SAVE_SECONDS:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        save()
        raise
    save()


def _save(path: Path, sums: Sums, finished: list[int]) -> None:
    from safetensors.torch import save_file

    with replacing_file(path) as unfinished:
        save_file(sums.state() | {DONE: torch.tensor(finished)}, unfinished)


def _parts(folder: Path) -> dict[Path, tuple[Sums, list[int]]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    parts = {}
    for path in sorted(folder.glob("part-*.safetensors")):
        try:
            state = load_file(path)
            numbers = state.pop(DONE).tolist()
            parts[path] = Sums.from_state(state), numbers
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, and its texts are read again") from None
    return parts


def _merged(folder: Path, texts: int) -> Sums:
    total, held = Sums(), list[int]()
    for sums, numbers in _parts(folder).values():
        held += numbers
        total.merge(sums)
    if len(held) != len(set(held)):
        raise ValueError(f"a text is in two files of {folder}: two runs used it at a time; delete it and start again")
    if len(held) != texts:
        raise ValueError(f"{folder} holds {len(held)} of {texts} texts; start again to add the others")
    return total


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder of another run; write the settings into an empty one."""
    path = folder / "settings.json"
    if path.exists():
        former = json.loads(path.read_text(encoding="utf-8"))
        different = sorted(name for name in former | settings if former.get(name) != settings.get(name))
        if different:
            name = different[0]
            raise ValueError(
                f"{folder} holds another run: {name} was {former.get(name)!r} and is {settings.get(name)!r}. Give "
                "another --state folder, or delete this one"
            )
    elif any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and no run over a corpus (it has no settings.json)")
    else:
        write_text(path, json.dumps(settings, indent=1, sort_keys=True) + "\n")


def _wait(process: Process) -> None:
    """Wait until every process has come here."""
    if process.count == 1:
        return
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
        leave_groups_at_exit()
    distributed.barrier()


@cache
def leave_groups_at_exit() -> None:
    """Destroy the process groups that exist when the interpreter ends, while it still runs.

    A thread of gloo drops the tensors of a collective after the call has returned, and needs Python's lock for that. If
    the interpreter is being taken down by then, Python ends the thread in the middle of C++, and the process dies of
    SIGABRT (github.com/pytorch/pytorch/issues/190489).

    gloo's threads end with the last reference to their group. Of FSDP on a CPU, caches of DTensor keep one.
    """
    atexit.register(_leave_groups)


def _leave_groups() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        time.sleep(
            0.05
        )  # gloo's thread may wait for Python's lock, and the group waits for the thread without giving it up
        distributed.destroy_process_group()


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of the names, shapes and bytes of all parameters and buffers."""
    total = sha256()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def corpus_settings(analysis: str, name: str, model: nn.Module, texts: list[str], **others: Any) -> dict[str, Any]:
    """What the sums of a run depend on: a run with other settings does not continue it."""
    from .. import __version__

    digest = sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    about = {"analysis": analysis, "model": name, "weights": weights_digest(model), "regard": __version__}
    return about | {"texts": digest.hexdigest()} | others
