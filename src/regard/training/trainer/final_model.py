"""The model of a finished run: the average of the last checkpoints, or the best one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...atomic_write import replacing_folder
from ..run.provenance import Provenance
from .validation import validate

if TYPE_CHECKING:
    import pytorch_lightning as lightning

    from .lightning_module import TrainingModule


def save_final_model(fitting: TrainingModule, trainer: lightning.Trainer) -> None:
    """Keep the average of the last checkpoints, or the best single one, whichever scores higher on validation.

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
    model.load_state_dict(fitting.snapshots.average())
    updates = fitting.snapshots.updates
    kept = f"the average of the last {len(updates)} checkpoints" if len(updates) > 1 else "the last checkpoint"
    best = -math.inf
    if not corpora.validates:
        scores = "not validated"
    elif updates == [standing.last_update]:
        best, scores = standing.last, f"last: {task.shown(standing.last)}; best: {task.shown(standing.best)}"
    else:
        fitting.bar.say(f"validating {kept} …")
        _, best = validate(task, corpora, model, trainer.global_rank, trainer.world_size)
        scores = f"averaged: {task.shown(best)}; best single: {task.shown(standing.best)}"
    if corpora.validates and best < standing.best:
        model.load_state_dict(fitting.snapshots.best())
        best, kept = standing.best, f"the checkpoint of update {standing.best_update:,}"
    model.cpu()
    if several:
        fitting.signals.end_together(device)  # from here on, all have read the snapshots, and `resume` may remove them
        fitting.signals.ignore()
    if not trainer.is_global_zero:
        return
    with replacing_folder(run.model) as unfinished:
        model.save_pretrained(unfinished, card=task.model_card(kept, best, Provenance(run.folder).card()))
        corpora.tokenizers.save(unfinished)
    fitting.signals.ignore()
    fitting.bar.say(f"{scores}. Kept {kept}, in {run.model}")
