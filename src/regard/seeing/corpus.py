"""A run over a corpus: each process adds its share of the texts, and saves sums and the numbers of finished texts.

    FOLDER/settings.json         what is summed over what; a run with other settings is refused
    FOLDER/part-*.safetensors    sums of one process, and the texts they hold, replaced every half minute

A run that was killed is started again by the same command, with any number of processes: texts in a saved part are not
read again. Under torchrun every process has its part; the folder must be one that all of them can reach. Sums are in
float64: how the texts were divided changes the last of its digits.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import torch

from ..files import make_folder, replacing_file, write_text
from .effects import Effects
from .interventions import Site
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
BASE = ("metric",)
DIGITS = 6
"""Of numbers in names, which are sorted as text."""


class Sums:
    """Sums and counts of tensors under names; a name is a tuple of strings."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Float[Tensor, "..."]] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    @property
    def names(self) -> list[tuple[str, ...]]:
        return list(self._sums)

    def add(self, name: tuple[str, ...], values: Float[Tensor, "..."], count: int = 1) -> None:
        """Add one term, or a sum of several."""
        terms, former = values.detach().to("cpu", torch.float64), self._sums.get(name)
        if former is not None and former.shape != terms.shape:
            raise ValueError(f"{' '.join(name)} has the shape {tuple(terms.shape)}, and {tuple(former.shape)} before")
        self._sums[name] = terms if former is None else former + terms
        self._counts[name] = self.count(name) + count

    def merge(self, other: Sums) -> None:
        """Add all sums and counts of another part."""
        for name, terms in other._sums.items():
            self.add(name, terms, other.count(name))

    def count(self, name: tuple[str, ...]) -> int:
        """The number of terms."""
        return self._counts.get(name, 0)

    def sum(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        return self._sums[name]

    def mean(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        return self._sums[name] / self._counts[name]

    def state(self) -> dict[str, Tensor]:
        """Tensors to save, by name."""
        state = {SEPARATOR.join(("total", *name)): terms.contiguous() for name, terms in self._sums.items()}
        return state | {SEPARATOR.join(("count", *name)): torch.tensor(n) for name, n in self._counts.items()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Sums:
        sums = cls()
        for key, count in state.items():
            kind, _, name = key.partition(SEPARATOR)
            if kind == "count":
                sums.add(tuple(name.split(SEPARATOR)), state[f"total{SEPARATOR}{name}"], int(count))
        return sums


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
    sums, finished = Sums(), list[int]()
    path = folder / f"part-{process.rank}-{token_hex(4)}.safetensors"
    saved = time.monotonic()
    title = "texts" if process.count == 1 else f"texts (process 0 of {process.count})"
    for number in share if process.rank else progress(share, title):
        add(sums, number)
        finished.append(number)
        if time.monotonic() - saved > SAVE_SECONDS:
            _save(path, sums, finished)
            saved = time.monotonic()
    if finished:
        _save(path, sums, finished)


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


def add_effects(sums: Sums, effects: Effects) -> None:
    """Add the effects of one text, its mean over the batch."""
    sums.add(BASE, effects.base.mean())
    for site, value in zip(effects.sites, effects.values.mean(1), strict=True):
        if site.layer is None:
            raise ValueError("effects of tokens have no mean over texts: a token's place means something else in each")
        head = "" if site.head is None else f"{site.head:0{DIGITS}d}"
        sums.add(("site", f"{site.layer:0{DIGITS}d}", head, site.module), value)


def mean_effects(sums: Sums, by: str) -> Effects:
    """The mean of each site's metric over the texts, as the effects of one entry."""
    names = sorted(name for name in sums.names if name[0] == "site")
    sites = [Site(int(layer), int(head) if head else None, None, module) for _, layer, head, module in names]
    values = torch.stack([sums.mean(name) for name in names])
    of = "layers" if sites[0].head is None else "heads"
    return Effects(of, by, sites, sums.mean(BASE)[None], values[:, None])
