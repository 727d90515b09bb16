"""The model of a finished run: the average of the last checkpoints, or the best one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...atomic_write import replacing_folder
from ...decoding.export_folder import outdated_exports
from ...redaction import redacted
from ..run.provenance import Provenance
from .validation import is_better, validate

if TYPE_CHECKING:
    import pytorch_lightning as lightning

    from ..tasks.task import Task
    from .lightning_module import TrainingModule


def save_final_model(fitting: TrainingModule, trainer: lightning.Trainer) -> None:
    """Keep the average of the last checkpoints, or the best single one, whichever scores higher on validation.

    Of equal scores, that with the lower loss counts. There is no best one where all validations were on other data.
    An average of one checkpoint is that checkpoint: it has been validated, and is not validated again.
    Every process takes part: each evaluates a share, and a model of one's own has the kept weights on all of them.
    Without a validation set the average is kept, and its score is unknown: −∞.
    A signal to one of several ends all of them, until nothing is left to do but to write the model.
    """
    run, standing, corpora, task = fitting.run, fitting.standing, fitting.corpora, fitting.task
    device, several = trainer.strategy.root_device, trainer.world_size > 1
    if several:
        fitting.signals.end_together(device)  # from here on, the first process has written the last snapshots
    # A new model, of a recipe: with FSDP the trained one is sharded.
    model: Any = task.model(corpora.tokenizers, corpora.train)
    if model is not fitting.model:  # `precision` may have cast the trained one
        model = model.to(next(fitting.model.parameters()).dtype)
    model = model.to(device).eval()
    # One process lists the files for all: on a network file system others may see those of a moment ago.
    updates = trainer.strategy.broadcast(fitting.snapshots.updates)
    model.load_state_dict(fitting.snapshots.average(updates))
    kept = f"the average of the last {len(updates)} checkpoints" if len(updates) > 1 else "the last checkpoint"
    best, averaged = (standing.best, standing.best_loss), (-math.inf, math.inf)
    if not corpora.validates:
        scores = "not validated"
    else:
        if updates == [standing.last_update]:
            averaged, names = (standing.last, standing.last_loss), ("last", "best")
        else:
            fitting.bar.say(f"validating {kept} …")
            loss, score = validate(task, corpora, model, trainer.global_rank, trainer.world_size)
            averaged, names = (score, loss), ("averaged" if len(updates) > 1 else "last", "best single")
        known = (averaged, best) if standing.best_update else (averaged,)
        scores = _scores(task, dict(zip(names, known, strict=False)))
    if corpora.validates and standing.best_update and is_better(best, averaged):
        model.load_state_dict(fitting.snapshots.best())
        kept = f"the checkpoint of update {standing.best_update:,}"
        averaged = best
    model.cpu()
    if several:
        fitting.signals.end_together(device)  # from here on, all have read the snapshots, and `resume` may remove them
        fitting.signals.ignore()
    if not trainer.is_global_zero:
        return
    with replacing_folder(run.model) as unfinished:
        card = redacted(task.model_card(kept, averaged[0], Provenance(run.folder).card()))
        model.save_pretrained(unfinished, card=card)
        corpora.tokenizers.save(unfinished)
    fitting.signals.ignore()
    fitting.bar.say(f"{scores}. Kept {kept}, in {run.model}")
    for engine, folder in outdated_exports(run.folder, run.model).items():
        again = f"regard export {run.folder} --to {engine} --force"
        fitting.bar.say(f"{folder} is of an earlier model; to export this one: {again}")


def _scores(task: Task, results: dict[str, tuple[float, float]]) -> str:
    """Scores by name; with the losses where these decide."""
    ties = len(results) > 1 and len({score for score, _ in results.values()}) == 1 and task.measure != "loss"
    losses = {name: f", loss {loss:.3f}" if ties and math.isfinite(loss) else "" for name, (_, loss) in results.items()}
    return "; ".join(f"{name}: {task.shown(score)}{losses[name]}" for name, (score, _) in results.items())
