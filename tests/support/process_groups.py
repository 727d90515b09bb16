"""Runs training in several processes at once, from one process that has imported everything: forks start at once.

    python -m tests.support.process_groups FOLDER

reads FOLDER/tiny.toml and writes runs and FOLDER/report.json: of each group of processes the exit status, the error and
the end of the output of each.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

# What FSDP imports at its first use, once for all forks: it takes a process seconds.
import torch.distributed.checkpoint.hf_storage
import torch.distributed.checkpoint.state_dict_loader
import torch.distributed.checkpoint.state_dict_saver
import torch.distributed.fsdp
import torch.export
import torch.utils.checkpoint
from safetensors.torch import save_model
from torch import nn
from torch.distributed import TCPStore

from regard.models import EncoderDecoder
from regard.training import fit, loop, recipe_files
from regard.training.checkpoint import Checkpoints
from regard.training.loop import Training
from tests.support.tiny_training import corpus, data_section

if TYPE_CHECKING:
    from collections.abc import Callable

SHARDED = ["training.strategy=fsdp"]
STREAMED = ["data.kind=stream", 'data.train=["train.tsv"]', 'data.valid=["valid.tsv"]', "data.tokenised=true"]
STREAMED += ["data.longest=50", "training.workers=1"]
TWO, ONE = ["training.devices=2"], ["training.accumulate=2"]  # the same batches per update


def leave_group() -> None:
    """Gloo's thread drops the tensors of the last collective after it has returned, and needs Python's lock for that;
    whoever drops the last reference to a group waits for the thread with that lock."""
    time.sleep(0.2)
    torch.distributed.destroy_process_group()


class Groups:
    """Starts groups of processes in `folder`, one after the other, and keeps what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.report, self.stores = folder, dict[str, Any](), dict[str, TCPStore]()

    def run(self, name: str, world: int, work: Callable[[int], None], *, again: str = "") -> None:
        """As torchrun, which keeps the store of a group for its next attempt: `again` names the group before."""
        store = self.stores[name] = self.stores.get(again) or TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                output = os.open(self._file(name, rank, "output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world))
                ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), **sizes, **ranks)
                attempt = "1" if again else "0"
                os.environ.update(
                    TORCHELASTIC_RUN_ID="tests", TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=attempt
                )
                os._exit(self._work(name, rank, work))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        errors = [self._read(name, rank, "error") for rank in range(world)]
        output = [self._read(name, rank, "output")[-20_000:] for rank in range(world)]
        self.report[name] = {"codes": codes, "errors": errors, "output": output}

    def _work(self, name: str, rank: int, work: Callable[[int], None]) -> int:
        try:
            work(rank)
            leave_group()
        except SystemExit as left:  # after a signal; the interpreter would leave the group at its end
            leave_group()
            return int(left.code or 0)
        except Exception as error:
            self._file(name, rank, "error").write_text(f"{type(error).__name__}: {error}")
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0

    def _read(self, name: str, rank: int, kind: str) -> str:
        file = self._file(name, rank, kind)
        return file.read_text(errors="replace") if file.exists() else ""

    def _file(self, name: str, rank: int, kind: str) -> Path:
        return self.folder / f"{name}-{rank}.{kind}"


class Line(nn.Module):
    """y = a x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return ((self.map(x) - y) ** 2).mean()


def main(folder: Path) -> None:
    _write_stacks_of_a_crash()
    torch.set_num_threads(1)
    groups, streamed = Groups(folder), ["training.strategy=ddp", *STREAMED, f"data.root={folder}"]

    def train(run: str, *settings: str, resume: bool = False) -> None:
        file = folder / run / "recipe.toml" if resume else folder / "tiny.toml"
        fit(recipe_files.load_recipe(file, list(settings)), folder / run, resume=resume)

    def together(rank: int) -> None:
        train("ddp", *TWO, "training.strategy=ddp")
        train("fsdp", *TWO, *SHARDED)
        train("from-two", *TWO, *SHARDED, "training.updates=3")
        train("streamed", *TWO, *streamed)
        torch.manual_seed(3)
        model = Line()
        x = torch.linspace(-1, 1, 8).reshape(4, 2, 1)
        batches = [[each, 3 * each + 1] for each in x]
        own = {"updates": 4, "rate": 3.0, "schedule": "constant", "accelerator": "cpu"}
        every = {"log_every": 1, "save_every": 1, "validate_every": 1}
        fit(model, folder / "own", train=batches, valid=batches, devices=2, strategy="ddp", **own, **every)
        save_model(model, str(folder / f"own-{rank}.safetensors"))

    def alone(rank: int) -> None:
        train("from-two", "training.devices=1", *ONE, "training.updates=6", resume=True)
        train("from-one", *ONE, *SHARDED, "training.updates=3", "training.activation_checkpointing=true")

    def end_in_update(run: str, *settings: str, rank: int) -> None:
        backward = Training.backward

        def ends(self: Training, batches: Any) -> Any:
            if rank == 1 and self.update == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return backward(self, batches)

        Training.backward = ends  # type: ignore[method-assign]
        train(run, *TWO, *settings)

    def end_while_saving(rank: int) -> None:
        import torch.distributed.checkpoint.state_dict_saver as saver

        save = saver.save

        def ends(tensors: Any, **options: Any) -> None:
            written = (folder / "killed-saving" / "checkpoints" / "last.ckpt").exists()
            if rank == 1 and written:
                os.kill(os.getpid(), signal.SIGKILL)
            save(tensors, **options)

        saver.save = ends
        train("killed-saving", *TWO, *SHARDED)

    def signalled(run: str, rank: int, number: signal.Signals, place: Any, step: str, update: int = 0) -> None:
        """Two processes train; that of `rank` has the signal after a call of `step`, in `update` where one is given."""
        call = getattr(place, step)

        def with_signal(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            if not update or arguments[0].update == update:
                signal.raise_signal(number)
            return result

        def work(this_rank: int) -> None:
            if this_rank == rank:
                setattr(place, step, with_signal)
            train(run, *TWO, "training.strategy=ddp")

        groups.run(run, 2, work)
        groups.report[run]["left"] = sorted(path.name for path in (folder / run).rglob("*"))

    def signalled_validation(rank: int) -> None:
        """The second process has a signal while the average is validated."""
        finish, measure = Training.save_final_model, loop.validate

        def validates(*arguments: Any) -> Any:
            result = measure(*arguments)
            signal.raise_signal(signal.SIGTERM)
            return result

        def finishes(self: Training) -> None:
            loop.validate = validates
            finish(self)

        if rank == 1:
            Training.save_final_model = finishes  # type: ignore[method-assign]
        train("signalled-validation", *TWO, "training.strategy=ddp")

    def old_listing(rank: int) -> None:
        """The second process sees the files of two updates ago, as on a network file system."""
        if rank == 1:
            newest = Checkpoints.updates.fget
            Checkpoints.updates = property(lambda self: [newest(self)[-1] - 2])  # type: ignore[assignment]
        train("old-listing", *TWO, "training.strategy=ddp", "training.average=1", "training.validate_every=2")

    def restart(rank: int) -> None:
        for name in ("signalled-update", "signalled-last-update", "signalled-validation"):
            train(name, *TWO, "training.strategy=ddp")
        train("killed", *TWO, *SHARDED)  # the same command; torchrun says that it is a restart
        train("killed-saving", *TWO, *SHARDED)
        train("killed-stream", *TWO, *streamed)
        train("from-one", *TWO, "training.accumulate=1", "training.updates=6", resume=True)

    def crash(rank: int) -> None:
        os.chdir(folder)  # for a core file
        signal.raise_signal(signal.SIGSEGV)

    groups.run("crashed", 1, crash)
    groups.run("together", 2, together)
    groups.run("alone", 1, alone)
    groups.run("killed", 2, lambda rank: end_in_update("killed", *SHARDED, rank=rank))
    groups.run("killed-saving", 2, end_while_saving)
    groups.run("killed-stream", 2, lambda rank: end_in_update("killed-stream", *streamed, rank=rank))
    for name in ("killed", "killed-saving", "killed-stream"):
        kept = folder / name / "checkpoints"
        groups.report[name]["left"] = sorted(file.name for file in kept.iterdir())
    signalled("signalled-update", 1, signal.SIGUSR1, Training, "step", update=2)
    signalled("signalled-last-update", 1, signal.SIGUSR1, Training, "step", update=6)
    groups.run("signalled-validation", 2, signalled_validation)
    groups.report["signalled-validation"]["left"] = sorted(
        path.name for path in (folder / "signalled-validation").rglob("*")
    )
    signalled("signalled-writing", 0, signal.SIGTERM, EncoderDecoder, "save_pretrained")
    signalled("signalled-end", 1, signal.SIGTERM, Training, "save_final_model")
    groups.run("old-listing", 2, old_listing)
    groups.run("restart", 2, restart, again="killed")
    (folder / "report.json").write_text(json.dumps(groups.report))


def _write_stacks_of_a_crash() -> None:
    """Of every thread in Python, then of the crashed one in C++: gloo's threads run no Python."""
    faulthandler.disable()  # the handler that is installed last is called first
    # PyTorch asks the other threads for their stacks by this signal. After a training Lightning puts back what Python
    # knows of, and not PyTorch's handler: by default, the signal would end the process.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    faulthandler.enable()


def tiny_transformer(folder: Path) -> Path:
    """A recipe of a Transformer that learns without dropout, and its corpora."""
    for name, rows, seed in (("train", 60, 1), ("valid", 12, 2)):
        corpus(folder / f"{name}.tsv", rows, seed, shortest=5, longest=5)
    layers = "width = 16\nheads = 2\nhidden = 32\nlayers = 2\ndropout = 0.0\n"
    file = folder / "tiny.toml"
    file.write_text(
        f"""
base = ["transformer-phrasebook"]
tied = "decoder"
{data_section(folder)}
[encoder]
{layers}
[decoder]
{layers}
[training]
updates = 6
tokens = 60
rate = 0.003
clip = 0.5
schedule = "constant"
warmup = 0
validate_every = 4
save_every = 2
log_every = 1
average = 2
accelerator = "cpu"
[search]
beams = 2
""",
        encoding="utf-8",
    )
    return file


if __name__ == "__main__":
    main(Path(sys.argv[1]))
