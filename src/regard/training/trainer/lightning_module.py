"""One training run as a Lightning module: the update, the validation, and the state that survives a kill."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytorch_lightning as lightning
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from ...atomic_write import replacing_file
from ...models import EncoderDecoder
from ...models.pretrained_model import PretrainedModel
from ..distributed.model_shards import is_sharded, local_tensors
from ..distributed.sharded_checkpoint import remove_shards
from ..distributed.sharded_strategy import ShardedStrategy
from ..fine_tuning.parameter_groups import parameter_groups, rate_share, require_groups
from ..optimization.learning_rate import rate
from ..optimization.moving_average import MovingAverage
from ..optimization.optimizer import adam_settings, adamw
from ..run.checkpoint_manifest import CheckpointManifest
from ..run.checkpoints import WeightSnapshots, restore_rng_state, rng_state, size
from ..run.metrics_file import MetricsFile
from .cuda_graphs import CudaGraphs
from .interrupt_signals import InterruptSignals, first_signal
from .parameter_shapes import require_same_parameters
from .training_model import DivergedError, TrainingModel
from .validation import ValidationState, validate

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from signal import Signals

    from torch import Tensor

    from ...data import Batch
    from ...models import Loss
    from ..run.checkpoint_manifest import CheckpointEntry
    from ..run.run_extension import RunExtension
    from ..run.run_folder import Run
    from ..tasks.task import Task
    from .data_module import DataModule
    from .progress_bar import ProgressBar


class TrainingModule(lightning.LightningModule):
    """Minimises Σ loss / Σ tokens, both over all batches and processes of an update.

    One item of the loader is one update, so the number of the update is the position in the data. A checkpoint is
    written after everything that belongs to its update, validation included.
    """

    model: Any  # an `EncoderDecoder` or a `Classifier`, from `Task.model`
    training_model: TrainingModel

    def __init__(self, run: Run, task: Task, corpora: DataModule, bar: ProgressBar, extension: RunExtension) -> None:
        super().__init__()
        self.automatic_optimization = False  # gradients are divided by the tokens of all processes before the step
        self.run, self.task, self.corpora, self.bar, self.extension = run, task, corpora, bar, extension
        self.settings = run.recipe.training
        self.standing = ValidationState()
        self.metrics = MetricsFile(run.metrics, task.column)
        self.snapshots = WeightSnapshots(run.checkpoints, self.settings.average)
        self.manifest = CheckpointManifest(run)
        self.starts = True  # from update 0, and not from a checkpoint
        self._shares = [1.0]  # of the learning rate, one for each group of the optimizer
        self._averages: list[Tensor] | None = None  # of a checkpoint
        self.resumed: CheckpointEntry | None = None  # what is known of the checkpoint that training resumes from
        self.signals = InterruptSignals()
        self.interrupted: Signals | None = None  # by a signal to this process or another
        self._signalled: Tensor | None = None  # how many processes had received each signal at the last update
        self._sums: Tensor | None = None  # of [tokens, total, nll] since the last line of metrics
        self._graphs: CudaGraphs | None = None
        self._chance: list[dict[str, Any]] | None = None  # to be restored before the first update
        self._since = 0.0
        self._figures = ""

    # Building

    def configure_model(self) -> None:
        if hasattr(self, "model"):
            return
        recipe = self.run.recipe
        torch.manual_seed(recipe.seed)  # the same weights on every process …
        with self.trainer.strategy.root_device:  # … by any strategy: each device has random numbers of its own …
            self.model = self.task.model(self.corpora.tokenizers, self.corpora.train)
        self.training_model = TrainingModel(self.model, self.run, self.trainer.strategy, starts=self.starts)
        lightning.seed_everything(recipe.seed + self.global_rank, verbose=False)  # … and different dropout

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = parameter_groups(self, self.settings)
        self._shares = [rate_share(part, self.settings) for part in groups]
        return adamw(groups.values(), self.settings)

    def on_fit_start(self) -> None:
        weights_size = size(self.model.state_dict())
        # Three checkpoints of weights and both moments, while one is written; their snapshots; three best; the model.
        self.run.require(weights_size * (3 * 3 + self.settings.average + 2 + 3 + 1))
        if self.global_rank == 0 and isinstance(self.model, PretrainedModel):
            self.model.save_config(self.run.checkpoints)  # with it, snapshots can be loaded before the run is finished

    def on_train_start(self) -> None:
        update = self.trainer.global_step
        self.begin_extension()
        if self.global_rank == 0:
            self.metrics.begin(update, None if self.resumed is None else self.resumed.metrics)
            self._forget(update)
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:  # a checkpoint brings its own
                group.update(adam_settings(self.settings))
        if self._chance is not None and self.global_rank < len(self._chance):
            restore_rng_state(self._chance[self.global_rank])
        elif self._chance is not None:  # there are more processes than before
            lightning.seed_everything(self.run.recipe.seed + self.global_rank + update, verbose=False)
        if self.settings.ema:
            self.training_model.average = MovingAverage(self.model, self.settings.ema, self._averages)
        self.model.train()
        if self.corpora.fixed_shapes:
            mixed = torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None
            self._graphs = CudaGraphs(self.model, smoothing=self.settings.smoothing, autocast=mixed)
        if update:
            now = rate(self.settings, update + 1, self.standing.cuts)
            self.bar.say(f"resuming after update {update:,} of {self.settings.updates:,}, at a rate of {now:.2g}")
        self.bar.start(update, self.settings.updates)
        self.signals.install()  # instead of Lightning's handlers, which stop without saving
        if self.starts and self.settings.init and not self.settings.init_parts:  # otherwise parts of it are random
            self._validate_init()
        self._since = time.perf_counter()
        if self._patience_is_over():  # killed between the last validation and the end
            self.trainer.should_stop = True

    def begin_extension(self) -> None:
        """Everything is prepared: data, weights, optimizer and checkpoint. Not called where no update is left."""
        if self.global_rank == 0:
            self.extension.begin()

    def on_fit_end(self) -> None:
        self.signals.install()  # again: Lightning has put back the handlers from before, and now ends its loggers

    # The update

    def training_step(self, batches: list[Batch], index: int) -> None:
        optimizer = self.optimizers()
        assert isinstance(optimizer, lightning.core.optimizer.LightningOptimizer)
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, 1):
            with self._gradient_sync(number == len(batches)):
                loss = self._backward(batch)
            sums += torch.stack([loss.tokens.double(), loss.total.detach().double(), loss.nll.double()])
        if self.trainer.world_size > 1:
            reduced = torch.cat([sums, sums.new_tensor(self.signals.flags())])
            torch.distributed.all_reduce(reduced)
            # Of the update before: reading that of this one would wait for the device.
            self.interrupted = None if self._signalled is None else first_signal(self._signalled.tolist())
            sums, self._signalled = reduced[:3], reduced[3:]
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:  # 16-mixed; an update whose gradients are not finite is left out, and the scale is cut
            scaler.unscale_(optimizer.optimizer)
        gradients = local_tensors([parameter.grad for parameter in self.parameters() if parameter.grad is not None])
        if not gradients:
            raise ValueError(
                "the loss has a gradient, and no parameter of the model got one: it was computed with tensors that are "
                "not among model.parameters(); assign layers to attributes, and lists of them as nn.ModuleList"
            )
        # DDP and FSDP give the mean over the processes; we need the sum, divided by all tokens.
        torch._foreach_mul_(gradients, (self.trainer.world_size / sums[0]).to(gradients[0].dtype))
        self._clip()
        now = rate(self.settings, self.trainer.global_step + 1, self.standing.cuts)
        for group, share in zip(optimizer.param_groups, self._shares, strict=True):
            group["lr"] = now * share
        optimizer.step()
        optimizer.zero_grad()
        if self.training_model.average is not None:
            self.training_model.average.update(self.trainer.global_step)
        if isinstance(self.model, EncoderDecoder):
            self.model.decoder.updated()
        self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums

    def forward(self, batch: Batch) -> Loss:
        loss: Loss = self.model.loss(batch, smoothing=self.settings.smoothing)
        return loss

    def _backward(self, batch: Batch) -> Loss:
        loss = self(batch) if self._graphs is None else self._graphs(batch)
        self.manual_backward(loss.total)
        return loss

    def _gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """The processes exchange gradients in the last batch of an update only."""
        wrapped = self.trainer.strategy.model
        if is_sharded(self.model):
            self.model.set_requires_gradient_sync(last)
        elif isinstance(wrapped, DistributedDataParallel) and not last:
            return wrapped.no_sync()
        return nullcontext()

    def _clip(self) -> None:
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.settings.clip)  # of sharded ones, over all processes

    # After the update

    def on_train_batch_end(self, outputs: object, batch: list[Batch], batch_idx: int) -> None:
        update, settings = self.trainer.global_step, self.settings
        last = update == settings.updates
        if update % settings.log_every == 0 or last:
            self._log(update)
        elif update % settings.validate_every == 0 or update % settings.save_every == 0:
            assert self._sums is not None
            self._require_finite(update, float(self._sums[1]))
        if self._sums is not None and self.bar.is_due:
            self._show(update, self._sums)
        if self.corpora.validates and (update % settings.validate_every == 0 or last):
            self._validate(update)
        if update % settings.save_every == 0 or last or self._patience_is_over():
            weights = self._weights()
            if self.global_rank == 0:
                self.snapshots.take(update, weights)
            self.save()
        if self.trainer.world_size == 1:  # with several, all of them learned of it in `training_step`
            self.interrupted = self.signals.received
        if self.interrupted is not None:
            self._save_interrupted(update)

    def _save_interrupted(self, update: int) -> None:
        """Without a snapshot: the average at the end is over the same updates as without the interruption."""
        if update % self.settings.save_every != 0 and update != self.settings.updates:
            if self._sums is not None:
                self._require_finite(update, float(self._sums[1]))
            self.save()
        self.bar.say(f"update {update:,} is saved")
        self.trainer.should_stop = True

    def _log(self, update: int) -> None:
        assert self._sums is not None
        tokens, total, nll = self._sums.tolist()
        self._sums = None
        now = time.perf_counter()
        line = {
            "update": update,
            "epoch": self.corpora.updates.epoch_of(update),
            "loss": total / tokens,
            "nll": nll / tokens,
            "rate": rate(self.settings, update, self.standing.cuts),
            "tokens_per_second": round(tokens / (now - self._since)),
        }
        self._since = now
        self._record(line)
        self._require_finite(update, total)
        self._move_bar(update, line["loss"], line["tokens_per_second"])

    def _show(self, update: int, sums: Tensor) -> None:
        """The loss since the last line of metrics, between two of them: updates may be slow."""
        tokens, total, _ = sums.tolist()
        self._move_bar(update, total / tokens, tokens / (time.perf_counter() - self._since))

    def _move_bar(self, update: int, loss: float, speed: float) -> None:
        self.bar.move(update, f"loss {loss:.3f}  {speed:,.0f} tokens/s  {self._figures}")

    def _require_finite(self, update: int, total: float) -> None:
        """Before anything is saved. `total` is summed over all processes, so all of them stop here."""
        if not math.isfinite(total):
            raise DivergedError(f"the loss up to update {update} is {total}", self.run)

    def _record(self, line: dict[str, int | float]) -> None:
        if self.global_rank == 0:
            self.metrics.write(line)
            values = {name: value for name, value in line.items() if name != "update"}
            if self.task.column in line:
                values["hp_metric"] = line[self.task.column]  # the score beside the recipe, in TensorBoard's HPARAMS
            for logger in self.loggers:
                logger.log_metrics(values, step=int(line["update"]))

    # Validation

    def _validate(self, update: int) -> None:
        began = time.perf_counter()
        nll, score = self._measure(update)
        self._judge(update, score, nll)
        self._figures = f"{self.task.shown(score)}, best {self.task.shown(self.standing.best)}"
        self._since += time.perf_counter() - began

    def _validate_init(self) -> None:
        """What `training.init` brings, to compare with; not judged, since no snapshot could be kept as the best."""
        chance = rng_state()  # the first update is the same as without this
        self._measure(0)
        restore_rng_state(chance)

    def _measure(self, update: int) -> tuple[float, float]:
        """Record the loss and the task's score; every process evaluates a share and gets the result."""
        self.bar.move(update, "validating …")
        self.model.eval()
        with torch.no_grad(), self.training_model.averaged():
            whole = self.training_model.whole(self.device)
            nll, score = validate(self.task, self.corpora, whole, self.global_rank, self.trainer.world_size)
        self.model.train()
        self._record({"update": update, "valid_nll": nll, self.task.column: abs(score)})
        loss = "" if self.task.measure == "loss" else f"loss {nll:.3f}, "  # the score of a language model is its loss
        self.bar.say(f"update {update:,}: validation {loss}{self.task.shown(score)}")
        return nll, score

    def _judge(self, update: int, score: float, nll: float) -> None:
        if self.standing.add(update, score, nll, self.settings):
            weights = self._weights()
            if self.global_rank == 0:
                self.snapshots.take_best(update, weights)
        elif self._patience_is_over():
            self.trainer.should_stop = True

    def _patience_is_over(self) -> bool:
        return self.standing.patience_is_over(self.settings)

    # State

    def save(self) -> None:
        """Write the checkpoint atomically, then remove the snapshots that neither it nor the one before refers to."""
        # Every process takes part; the first writes the file.
        if self.global_rank != 0:
            self.trainer.save_checkpoint(self.run.last)
            return
        update, best = self.trainer.global_step, self.standing.best_update
        with replacing_file(self.run.last) as unfinished:
            self.trainer.save_checkpoint(unfinished)
            parts = self.snapshots.digests(best)
            if isinstance(self.trainer.strategy, ShardedStrategy):
                parts |= self.trainer.strategy.digests
            self.manifest.replace(unfinished, update, parts, self.metrics.mark())
        self._forget(update)

    def _forget(self, update: int) -> None:
        """Remove what the last two checkpoints up to this update do not refer to."""
        needed = self.manifest.needed(update)
        self.snapshots.forget(update, self.standing.best_update, needed)
        remove_shards(self.run.checkpoints, needed)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        states = [rng_state()]
        if self.trainer.world_size > 1:
            states = states * self.trainer.world_size
            torch.distributed.all_gather_object(states, rng_state())
        sums = None if self._sums is None else self._sums.cpu()
        groups = list(parameter_groups(self, self.settings))
        checkpoint["regard"] = {"standing": asdict(self.standing), "chance": states, "sums": sums, "groups": groups}
        if self.training_model.average is not None:
            checkpoint["regard"]["average"] = [tensor.cpu() for tensor in self.training_model.average.averages]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["regard"]
        require_same_parameters(checkpoint["state_dict"], self, self.run.folder)
        require_groups(checkpoint, len(parameter_groups(self, self.settings)), self.run.folder)
        self.standing = ValidationState(**state["standing"])
        if changed := self.extension.changed_since(checkpoint["global_step"]):
            # Patience begins anew. The last score is looked up at the end, and another search may have another one.
            self.standing.poor = self.standing.since_cut = self.standing.last_update = 0
            if any(key.startswith("data.") for key in changed):
                self.standing.forget_best()
        self._chance = state["chance"]
        self._averages = state.get("average")
        self._sums = state["sums"]  # on the CPU: the module is moved to its device later

    def _weights(self) -> dict[str, Tensor]:
        return self.training_model.weights(self.trainer.global_step, keep=self.global_rank == 0)
