"""The training loop, in the order in which things happen.

    batch → loss → backward → clip → step → log → validate → save

Everything that decides an update is in its number, the seed and the checkpoint before, so that a run which was killed
goes on to the bit as if it had not been.
"""

from __future__ import annotations

import copy
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..decoding.model_folders import outdated_exports
from ..decoding.search_cuda_graphs import release_graphs
from ..files import replacing_folder
from ..models.encoder_decoder import EncoderDecoder
from ..models.saved_weights import PretrainedModel
from ..wording import redacted
from .checkpoint import (
    CheckpointEntry,
    Checkpoints,
    MetricsFile,
    copy_whole,
    load_shards,
    on_cpu,
    random_states,
    read_checkpoint,
    restore_random_states,
    save_shards,
    seed_everything,
    whole_weights,
)
from .devices import (
    CudaGraphs,
    Precision,
    Processes,
    Signals,
    checkpoint_activations,
    first_signal,
    local_tensors,
    shard_model,
)
from .own_model import ModelLoss, as_loss
from .parameters import (
    MovingAverage,
    WarmStart,
    in_parts,
    make_optimizer,
    optimizer_settings,
    rate,
    require_parts,
)
from .run_folder import Provenance, changed_settings
from .tasks import recipe_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from signal import Signals as Signal

    from torch import Tensor

    from ..data.batches import Batch
    from ..models.decoder import Loss
    from ..models.saved_weights import Kind
    from .fitting import ProgressBar
    from .recipe_sections import TrainingSection
    from .run_batches import Corpora
    from .run_folder import Run, RunExtension
    from .tasks import Task


@dataclass(frozen=True)
class Given:
    """What the caller of `fit` gives in place of what a recipe names."""

    loss: Callable[[Any, Any], Any] | None = None
    """(model, batch) → the mean loss as a scalar, or a `regard.models.Loss`."""
    metric: Callable[[Any], float] | None = None
    """model → a score, the higher the better, at every validation."""
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    """Groups of parameters → optimizer; its rate is set at every update."""
    callbacks: Sequence[Callable[[int, dict[str, Any]], object]] = ()
    """Called by the first process with each line of metrics.csv; one that returns True ends the training."""


class DivergedError(ValueError):
    """Training diverged: the loss or the weights are not finite. `reason` says which, without the advice."""

    def __init__(self, reason: str, run: Run) -> None:
        kept = f"; the last checkpoint is from before, in {run.checkpoints}" if run.last.exists() else ""
        advice = "a lower training.rate, a longer training.warmup or a training.clip may help"
        super().__init__(f"{reason}: {advice}{kept}")
        self.reason = reason


class Training:
    """Minimises Σ loss / Σ tokens, both over all batches and processes of an update.

    A checkpoint is written after everything that belongs to its update, validation included.
    """

    model: Any  # what `Task.model` makes

    def __init__(
        self,
        run: Run,
        task: Task,
        corpora: Corpora,
        bar: ProgressBar,
        processes: Processes,
        signals: Signals,
        given: Given,
    ) -> None:
        self.run, self.task, self.corpora, self.bar = run, task, corpora, bar
        self.processes, self.signals, self.given = processes, signals, given
        self.settings = run.recipe.training
        self.precision = Precision(self.settings, processes.device)
        self.checkpoints = Checkpoints(run, self.settings.average)
        self.metrics = MetricsFile(run.metrics, task.column)
        self.standing = ValidationState()
        self.average: MovingAverage | None = None
        self.update = 0  # how many there have been
        self.stops = False  # before the last update
        self._asked_to_end = False  # by a callback
        self.interrupted: Signal | None = None  # by a signal to this process or another
        self._signalled: Tensor | None = None  # how many processes had received each signal at the last update
        self._sums: Tensor | None = None  # of [tokens, total, nll] since the last line of metrics
        self._since = 0.0
        self._figures = ""
        self._whole: Any = None  # of a sharded model, a copy that is whole

    # The loop

    def train(self, resumed: tuple[Path, CheckpointEntry | None] | None, extension: RunExtension) -> None:
        """All updates, from a checkpoint on where there is one."""
        settings = self.settings
        self._build(starts=resumed is None)
        states = None if resumed is None else self._load(resumed[0], extension)
        if self.update >= settings.updates:
            return
        batches = self.corpora.loader(self.update)
        following = next(batches)
        self._begin(resumed, states, extension)
        while self.update < settings.updates and not self.stops:
            sums = self.backward(following)
            if self.update + 1 < settings.updates:
                following = next(batches)  # while a GPU still computes; and a stream knows its place before it is saved
            self.step(sums)
            update, last = self.update, self.update == settings.updates
            if update % settings.log_every == 0 or last:
                self._log()
            elif update % settings.validate_every == 0 or update % settings.save_every == 0:
                self._require_finite()
            if self.corpora.validates and (update % settings.validate_every == 0 or last):
                self.validate()
            self.stops = self._is_over()
            if update % settings.save_every == 0 or last or self.stops:
                self._keep("update")
                self.save()
            if self.processes.world == 1:  # with several, all of them learned of it in `backward`
                self.interrupted = self.signals.received
            if self.interrupted is not None:
                self._save_interrupted()

    def backward(self, batches: list[Batch]) -> Tensor:
        """The gradients of what this process accumulates; [tokens, total, nll] of all processes."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.processes.device)
        for number, batch in enumerate(batches, 1):
            with self.processes.exchanges(self.model, self.loss, number == len(batches)), self.precision.autocast():
                loss: Loss = self.loss(self.precision.moved(batch))
                self.precision.scaled(loss.total).backward()
            sums += torch.stack([loss.tokens.double(), loss.total.detach().double(), loss.nll.double()])
        if self.processes.world > 1:
            reduced = self.processes.sum(torch.cat([sums, sums.new_tensor(self.signals.flags())]))
            # Of the update before: reading that of this one would wait for the device.
            self.interrupted = None if self._signalled is None else first_signal(self._signalled.tolist())
            sums, self._signalled = reduced[:3], reduced[3:]
        return sums

    def step(self, sums: Tensor) -> None:
        """Clip the gradients and change the parameters."""
        settings, optimizer = self.settings, self.optimizer
        if self.precision.scaler is not None:
            self.precision.scaler.unscale_(optimizer)
        gradients = local_tensors([each.grad for each in self.model.parameters() if each.grad is not None])
        if not gradients:
            raise ValueError(
                "the loss has a gradient, and no parameter of the model got one: it was computed with tensors that are "
                "not among model.parameters(); assign layers to attributes, and lists of them as nn.ModuleList"
            )
        # DDP and FSDP give the mean over the processes; we need the sum, divided by all tokens.
        torch._foreach_mul_(gradients, (self.processes.world / sums[0]).to(gradients[0].dtype))
        if settings.clip:  # of sharded parameters, the norm is over all processes
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        now = rate(settings, self.update + 1, self.standing.cuts)
        for group in optimizer.param_groups:
            group["lr"] = now
        self.precision.step(optimizer)
        optimizer.zero_grad()
        self.update += 1
        if self.average is not None:
            self.average.update(self.update)
        if isinstance(self.model, EncoderDecoder):
            self.model.decoder.updated()
        self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums

    # Log

    def _log(self) -> None:
        assert self._sums is not None
        tokens, total, nll = self._sums.tolist()
        now = time.perf_counter()
        line = {
            "update": self.update,
            "epoch": self.corpora.updates.epoch_of(self.update),
            "loss": total / tokens,
            "nll": nll / tokens,
            "rate": rate(self.settings, self.update, self.standing.cuts),
            "tokens_per_second": round(tokens / (now - self._since)),
        }
        self._since = now
        self._record(line)
        self._require_finite()
        self._sums = None
        unit = getattr(self.model, "unit", "tokens")  # what the loss is a sum of
        speed = f"{line['tokens_per_second']:,.0f} {unit}/s"
        self.bar.move(self.update, f"loss {line['loss']:.3f}  {speed}  {self._figures}")

    def _record(self, line: dict[str, int | float]) -> None:
        asked = False
        if self.processes.is_first:
            self.metrics.write(line)
            figures = {name: value for name, value in line.items() if name != "update"}
            for callback in self.given.callbacks:
                asked |= callback(int(line["update"]), dict(figures)) is True
        if self.given.callbacks:
            self._asked_to_end |= self.processes.broadcast(asked)

    def _require_finite(self) -> None:
        """Before anything is saved. The sum is over all processes, so all of them stop here."""
        if self._sums is not None and not math.isfinite(total := float(self._sums[1])):
            raise DivergedError(f"the loss up to update {self.update} is {total}", self.run)

    # Validate

    def validate(self) -> None:
        """Measure loss and score, and keep the weights if they are the best so far."""
        began = time.perf_counter()
        nll, score = self._measure()
        score = self.task.judged(score, nll)
        if self.standing.add(self.update, score, nll, self.settings):
            self._keep("best")
        shown = [self.task.shown(each, judged=True) for each in (score, self.standing.best)]
        self._figures = f"{shown[0]}, best {shown[1]}"
        self._since += time.perf_counter() - began

    def _validate_init(self) -> None:
        """What `training.init` brings, to compare with; not judged, since no snapshot could be kept as the best."""
        states = random_states()  # the first update is the same as without this
        self._measure()
        restore_random_states(states)

    def _measure(self) -> tuple[float, float]:
        """Record the loss and the task's score; every process evaluates a share and gets the result."""
        self.bar.move(self.update, "validating …")
        self.model.eval()
        with torch.no_grad(), self._averaged():
            whole = self.model
            if self.processes.sharded:  # decoding calls the parts of a model, which FSDP does not expect
                whole = self._whole.to(self.processes.device).eval()
                copy_whole(self.model, whole)
            nll, score = validate(self.task, self.corpora, whole, self.processes, self.given.metric)
        self.model.train()
        self._record(
            {"update": self.update, "valid_nll": nll, self.task.column: score if self.given.metric else abs(score)}
        )
        loss = "" if self.task.measure == "loss" else f"loss {nll:.3f}, "  # the score of a language model is its loss
        self.bar.say(f"update {self.update:,}: validation {loss}{self.task.shown(score)}")
        return nll, score

    def _is_over(self) -> bool:
        return self._asked_to_end or self.standing.patience_is_over(self.settings)

    # Save

    def save(self) -> None:
        """Write a checkpoint. Every process takes part; the first writes the file."""
        sharded, shards = self.processes.sharded, dict[str, str]()
        states = self.processes.gather(random_states())
        if sharded:
            shards = save_shards(self.run.checkpoints, self.update, self.model, self.optimizer)
        if not self.processes.is_first:
            return
        weights = {} if sharded else {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        state: dict[str, Any] = {
            "global_step": self.update,
            "state_dict": weights,
            "optimizer_states": [] if sharded else [self.optimizer.state_dict()],
            "regard": {
                "standing": asdict(self.standing),
                "chance": states,
                "sums": None if self._sums is None else self._sums.cpu(),
                "settings": self._settings(),
            },
        }
        if sharded:
            state["regard"]["sharded"] = True
        if self.average is not None:
            state["regard"]["average"] = [tensor.cpu() for tensor in self.average.averages]
        if self.precision.scaler is not None:
            state["MixedPrecision"] = self.precision.scaler.state_dict()
        self.checkpoints.save(self.update, state, self.standing.best_update, shards, self.metrics.mark())

    def _settings(self) -> dict[str, Any]:
        """The sections of the recipe that may be others when the run goes on."""
        return {name: values for name, values in self.run.recipe.to_dict().items() if name in ("training", "search")}

    def _save_interrupted(self) -> None:
        """Without a snapshot: the average at the end is over the same updates as without the interruption."""
        if self.update % self.settings.save_every != 0 and self.update != self.settings.updates:
            self._require_finite()
            self.save()
        self.bar.say(f"update {self.update:,} is saved")
        self.stops = True

    def _keep(self, kind: Kind) -> None:
        weights = self._weights()
        if self.processes.is_first:
            self.checkpoints.take(self.update, weights, kind)

    def _weights(self) -> dict[str, Tensor]:
        """All weights; of a sharded model, on the first process only, and every process must call this.

        Checked, since a finite loss may have gradients that are not finite.
        """
        if self.processes.sharded:
            weights, finite = whole_weights(self.model, keep=self.processes.is_first)
        else:
            with self._averaged():
                weights = on_cpu(self.model.state_dict())
                if self.average is not None:  # on a CPU these are the parameters themselves, which change back
                    weights = copy.deepcopy(weights)
            finite = all(bool(tensor.isfinite().all()) for tensor in weights.values())
        if not finite:
            raise DivergedError(f"the weights after update {self.update} are not finite", self.run)
        return weights

    def _averaged(self) -> AbstractContextManager[None]:
        """Context in which the model has the moving average of its parameters, where there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    # Begin

    def _build(self, *, starts: bool) -> None:
        """The model with the seed's weights, or those of `training.init`, on its device; and its optimizer."""
        recipe, settings, processes = self.run.recipe, self.settings, self.processes
        torch.manual_seed(recipe.seed)  # the same weights on every process …
        with processes.device, self.precision.default_type():
            model: Any = self.task.model(self.corpora.tokenizers, self.corpora.train)
            if settings.init and starts:
                WarmStart(recipe).copy_into(model)
            freeze_parts(model, settings)
            self._whole = copy.deepcopy(model) if processes.sharded else None
            if settings.activation_checkpointing:
                checkpoint_activations(model)
        if self.precision.double:
            model.double()
        model.to(processes.device)
        if processes.sharded:
            shard_model(model, processes)
        self.model = model
        seed_everything(recipe.seed + processes.rank)  # … and different dropout
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(learned, settings, self.given.optimizer)
        self.loss: Any = processes.loss(model, settings.smoothing, self._own_loss())
        if self.corpora.fixed_shapes:
            mixed = self.precision.mixed
            self.loss = CudaGraphs(model, smoothing=settings.smoothing, autocast=mixed)

    def _own_loss(self) -> Callable[[Any, Any], Loss] | None:
        """The loss that `fit` was given or the recipe names, for a model of a recipe."""
        own = self.given.loss or (recipe_loss(self.run.recipe) if self.run.recipe.training.loss else None)
        if own is None or isinstance(self.model, ModelLoss):  # which has it
            return None
        return lambda model, batch: as_loss(own(model, batch), type(own).__name__)[0]

    def _load(self, file: Path, extension: RunExtension) -> list[dict[str, Any]]:
        """Continue from a checkpoint; the random states of all processes."""
        checkpoint = read_checkpoint(file)
        update, state = int(checkpoint["global_step"]), checkpoint["regard"]
        if self.processes.sharded != bool(state.get("sharded")):
            raise ValueError(
                f"{file} is of a run whose training.strategy was another one, or of an earlier version: begin a new "
                "run, perhaps with training.init, or resume with the version that wrote it"
            )
        if self.processes.sharded:
            load_shards(self.run.checkpoints, update, self.model, self.optimizer)
        else:
            stored = {name.removeprefix("model."): tensor for name, tensor in checkpoint["state_dict"].items()}
            self.model.load_state_dict(stored)
            self.optimizer.load_state_dict(checkpoint["optimizer_states"][0])
        if self.precision.scaler is not None and "MixedPrecision" in checkpoint:
            self.precision.scaler.load_state_dict(checkpoint["MixedPrecision"])
        self.standing = ValidationState(**state["standing"])
        changed = extension.changed
        if former := state.get("settings"):  # a session that changed some may have been killed before its checkpoint
            changed = changed_settings(former, self._settings())
        if changed:
            # Patience begins anew. The last score is looked up at the end, and another search may have another one.
            self.standing.poor = self.standing.since_cut = self.standing.last_update = 0
            if "training.best" in changed:  # another measure cannot be compared with the scores so far
                self.standing.best, self.standing.best_loss, self.standing.best_update = -math.inf, math.nan, 0
        if self.settings.ema:
            self.average = MovingAverage(self.model, self.settings.ema, state.get("average"))
        self.update, self._sums = update, state["sums"]
        states: list[dict[str, Any]] = state["chance"]
        return states

    def _begin(
        self,
        resumed: tuple[Path, CheckpointEntry | None] | None,
        states: list[dict[str, Any]] | None,
        extension: RunExtension,
    ) -> None:
        """Everything is prepared: data, weights, optimizer and checkpoint. From here on the run's folder changes."""
        settings, update, rank = self.settings, self.update, self.processes.rank
        if self.processes.is_first:
            if isinstance(self.model, PretrainedModel):
                self.model.save_config(self.run.checkpoints)  # so snapshots can be loaded before the run is finished
            extension.begin()
            entry = None if resumed is None else resumed[1]
            self.metrics.begin(update, None if entry is None else entry.metrics)
            self.checkpoints.forget(update, self.standing.best_update)
        for group in self.optimizer.param_groups:  # a checkpoint brings its own
            group.update(optimizer_settings(settings))
        if states is not None and rank < len(states):
            restore_random_states(states[rank])
        elif states is not None:  # there are more processes than before
            seed_everything(self.run.recipe.seed + rank + update)
        if settings.ema and self.average is None:
            self.average = MovingAverage(self.model, settings.ema)
        self.model.train()
        if update:
            now = rate(settings, update + 1, self.standing.cuts)
            self.bar.say(f"resuming after update {update:,} of {settings.updates:,}, at a rate of {now:.2g}")
        self.bar.start(update, settings.updates)
        self.signals.at_once = False
        if resumed is None and settings.init and not settings.init_parts:  # otherwise parts of it are random
            self._validate_init()
        self._since = time.perf_counter()
        self.stops = self._is_over()  # killed between the last validation and the end

    # End

    def save_final_model(self) -> None:
        """Keep the average of the last checkpoints, or the best single one, whichever scores higher on validation.

        Of equal scores, that with the lower loss counts. There is no best one where all validations were on other data.
        An average of one checkpoint is that checkpoint: it has been validated, and is not validated again.
        Every process takes part: each evaluates a share, and a model of one's own has the kept weights on all of them.
        Without a validation set the average is kept, and its score is unknown: −∞.
        A signal to one of several ends all of them, until nothing is left to do but to write the model.
        """
        run, standing, corpora, task, processes = self.run, self.standing, self.corpora, self.task, self.processes
        several = processes.world > 1
        if several:
            processes.end_together(self.signals)  # from here on, the first process has written the last snapshots
        # A new model, of a recipe: with FSDP the trained one is sharded.
        model: Any = task.model(corpora.tokenizers, corpora.train)
        if model is not self.model:  # `precision` may have cast the trained one
            model = model.to(next(self.model.parameters()).dtype)
        model = model.to(processes.device).eval()
        # One process lists the files for all: on a network file system others may see those of a moment ago.
        updates = processes.broadcast(self.checkpoints.updates)
        model.load_state_dict(self.checkpoints.average(updates))
        kept = f"the average of the last {len(updates)} checkpoints" if len(updates) > 1 else "the last checkpoint"
        best, averaged = (standing.best, standing.best_loss), (-math.inf, math.inf)
        if not corpora.validates:
            scores = "not validated"
        else:
            if updates == [standing.last_update]:
                averaged, names = (standing.last, standing.last_loss), ("last", "best")
            else:
                self.bar.say(f"validating {kept} …")
                loss, score = validate(task, corpora, model, processes, self.given.metric)
                score = task.judged(score, loss)
                averaged, names = (score, loss), ("averaged" if len(updates) > 1 else "last", "best single")
            known = (averaged, best) if standing.best_update else (averaged,)
            scores = _shown(task, dict(zip(names, known, strict=False)))
        if corpora.validates and standing.best_update and is_better(best, averaged):
            model.load_state_dict(self.checkpoints.best())
            kept = f"the checkpoint of update {standing.best_update:,}"
            averaged = best
        model.cpu()
        if several:
            processes.end_together(self.signals)  # all have read the snapshots, and `resume` may remove them
            self.signals.ignore()
        if not processes.is_first:
            return
        with replacing_folder(run.model) as unfinished:
            card = redacted(task.model_card(kept, averaged[0], Provenance(run.folder).card()))
            model.save_pretrained(unfinished, card=card)
            if corpora.tokenizers is not None:
                corpora.tokenizers.save(unfinished)
        self.signals.ignore()
        self.bar.say(f"{scores}. Kept {kept}, in {run.model}")
        for engine, folder in outdated_exports(run.folder, run.model).items():
            again = f"regard export {run.folder} --to {engine} --force"
            self.bar.say(f"{folder} is of an earlier model; to export this one: {again}")


@dataclass
class ValidationState:
    """The results of the validations so far."""

    best: float = -math.inf
    best_loss: float = math.nan  # not known in checkpoints of earlier versions: an equal score is then no better
    best_update: int = 0  # 0: there is none
    poor: int = 0  # validations since the best one
    cuts: int = 0  # how often schedule = "plateau" has cut the rate
    since_cut: int = 0  # validations without a better score since the last cut
    last: float = -math.inf  # score
    last_loss: float = math.nan
    last_update: int = 0

    def add(self, update: int, score: float, loss: float, settings: TrainingSection) -> bool:
        """Count a result; whether it is the best so far. Of equal scores, that with the lower loss is better."""
        self.last, self.last_loss, self.last_update = score, loss, update
        if is_better((score, loss), (self.best, self.best_loss)):
            self.best, self.best_loss, self.best_update, self.poor, self.since_cut = score, loss, update, 0, 0
            return True
        self.poor += 1
        self.since_cut += 1
        if self.since_cut >= settings.hold:
            self.cuts, self.since_cut = self.cuts + 1, 0
        return False

    def patience_is_over(self, settings: TrainingSection) -> bool:
        return 0 < settings.patience <= self.poor


def is_better(result: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether a score and its loss are better than others: a higher score, or an equal one with a lower loss."""
    return result[0] > other[0] or (result[0] == other[0] and result[1] < other[1])


@torch.no_grad()
def validate(
    task: Task, corpora: Corpora, model: Any, processes: Processes, metric: Callable[[Any], float] | None = None
) -> tuple[float, float]:
    """A model's loss and score on the validation set; each process evaluates a share, and has the result of all.

    One's own metric is that of the first process.
    """
    rank, world, pairs = processes.rank, processes.world, corpora.valid_pairs
    sums = task.loss_sums(model, corpora.valid, rank=rank, world=world)
    answers = task.answers(model, corpora.tokenizers, pairs[rank::world])
    if processes.device.type == "cuda":
        release_graphs(model)  # the next update needs the memory
    if world > 1:
        processes.sum(sums)
        shares = processes.gather(answers)
        answers = [""] * len(pairs)
        for number, share in enumerate(shares):
            answers[number::world] = share
    nll, count = sums.tolist()
    if metric is not None:
        own = model.model if isinstance(model, ModelLoss) else model
        return nll / count, processes.broadcast(float(metric(own)) if processes.is_first else 0.0)
    return nll / count, task.score(answers, pairs, nll / count)


def freeze_parts(model: Any, settings: TrainingSection) -> None:
    """Parameters of frozen parts get no gradient. A tied table is frozen under any of its names."""
    require_parts(model, settings.freeze, "training.freeze")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if in_parts(name, settings.freeze):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        if not settings.freeze:
            raise ValueError(
                "the model has no parameter to learn: none of model.parameters() has requires_grad; assign layers to "
                "attributes, and lists of them as nn.ModuleList"
            )
        raise ValueError(f"training.freeze = {settings.freeze} leaves no parameter to learn")


def _shown(task: Task, results: dict[str, tuple[float, float]]) -> str:
    """Scores by name; with the losses where these decide."""
    by_score = task.measure != "loss" and not task.by_loss
    ties = len(results) > 1 and len({score for score, _ in results.values()}) == 1 and by_score
    losses = {name: f", loss {loss:.3f}" if ties and math.isfinite(loss) else "" for name, (_, loss) in results.items()}
    return "; ".join(f"{name}: {task.shown(score, judged=True)}{losses[name]}" for name, (score, _) in results.items())
