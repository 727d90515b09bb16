"""Where metrics go beside metrics.csv: TensorBoard, Weights & Biases, MLflow, through Lightning's loggers."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lightning_utilities.core.rank_zero import rank_zero_only

from ...redaction import redacted
from ..run.run_extension import flat_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytorch_lightning.loggers import Logger

    from ..recipe.recipe import Recipe
    from ..recipe.recipe_sections import TrainingSection
    from ..run.run_folder import Run


def require_packages(settings: TrainingSection) -> None:
    """Raise an error that names the key and the package that is missing."""
    for name in settings.loggers:
        if find_spec(name) is None:
            raise ValueError(f'training.loggers has "{name}", which needs the package {name}: pip install {name}')
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise ValueError("training.tensorboard = true needs the tensorboard package: install it, or set it to false")


def metric_loggers(run: Run) -> list[Logger]:
    """The loggers of a run. Those of W&B and MLflow read their own environment variables, such as WANDB_MODE."""
    settings, made = run.recipe.training, []
    if settings.tensorboard:
        from pytorch_lightning.loggers import TensorBoardLogger

        made.append(TensorBoardLogger(run.folder, name="", version="tensorboard"))
    return [*made, *(LOGGERS[name](run) for name in settings.loggers)]


def _wandb(run: Run) -> Logger:
    from pytorch_lightning.loggers import WandbLogger

    return WandbLogger(name=run.folder.name, project=os.environ.get("WANDB_PROJECT", "regard"), save_dir=run.folder)


def _mlflow(run: Run) -> Logger:
    from pytorch_lightning.loggers import MLFlowLogger

    # Lightning reads MLFLOW_TRACKING_URI; without it the figures stay in the run's folder.
    place = None if "MLFLOW_TRACKING_URI" in os.environ else str(run.folder / "mlflow")
    return MLFlowLogger(experiment_name="regard", run_name=run.folder.name, save_dir=place)


LOGGERS = {"wandb": _wandb, "mlflow": _mlflow}


@rank_zero_only
def log_recipe(loggers: Iterable[Logger], recipe: Recipe) -> None:
    """Every setting by its dotted key: what TensorBoard shows under HPARAMS."""
    settings = flat_settings(redacted(recipe.to_dict()))
    plain = (bool, int, float, str)
    values = {key: value if isinstance(value, plain) else str(value) for key, value in settings.items()}
    for logger in loggers:
        logger.log_hyperparams(values)
