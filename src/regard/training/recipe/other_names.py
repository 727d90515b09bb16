"""What other libraries call the keys of a recipe, for messages about unknown keys; docs/training.md has a table."""

from __future__ import annotations

_EPOCHS = "steps of the optimizer: epochs × batches of an epoch ÷ accumulate"
_ROWS = "which counts tokens, not rows; fit(model, …) takes the batches of `train` as they are"

OTHER_NAMES: dict[str, tuple[str, str]] = {  # name: our dotted key, and what differs
    **dict.fromkeys(("max_steps", "train_steps", "num_steps", "total_steps", "iterations"), ("training.updates", "")),
    **dict.fromkeys(
        ("epochs", "max_epochs", "num_epochs", "n_epochs", "num_train_epochs"), ("training.updates", _EPOCHS)
    ),
    **dict.fromkeys(("batch_size", "batch_type", "per_device_train_batch_size"), ("training.tokens", _ROWS)),
    **dict.fromkeys(
        ("accum_count", "batch_multiplier", "accumulate_grad_batches", "gradient_accumulation_steps"),
        ("training.accumulate", ""),
    ),
    **dict.fromkeys(("lr", "learning_rate", "max_lr"), ("training.rate", "")),
    **dict.fromkeys(
        ("scheduler", "scheduling", "lr_scheduler", "lr_scheduler_type", "decay_method"), ("training.schedule", "")
    ),
    **dict.fromkeys(
        ("warmup_steps", "num_warmup_steps", "learning_rate_warmup"), ("training.warmup", "a number of updates")
    ),
    **dict.fromkeys(("decrease_factor", "factor"), ("training.cut", 'of schedule = "plateau"')),
    **dict.fromkeys(("adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"), ("training.betas", "a list of two")),
    "weight_decay": ("training.decay", ""),
    **dict.fromkeys(("label_smoothing", "label_smoothing_factor"), ("training.smoothing", "")),
    **dict.fromkeys(
        ("clip_grad_norm", "gradient_clip_val", "grad_clip", "max_grad_norm", "max_norm"), ("training.clip", "")
    ),
    "early_stopping": ("training.patience", "validations without a better score"),
    **dict.fromkeys(("average_decay", "ema_decay"), ("training.ema", "the share that is kept, such as 0.9999")),
    **dict.fromkeys(
        ("valid_steps", "validation_freq", "eval_steps", "val_check_interval"),
        ("training.validate_every", "in updates"),
    ),
    **dict.fromkeys(
        ("report_every", "logging_freq", "logging_steps", "log_every_n_steps"), ("training.log_every", "in updates")
    ),
    **dict.fromkeys(("save_checkpoint_steps", "save_steps"), ("training.save_every", "in updates")),
    **dict.fromkeys(("load_model", "train_from"), ("training.init", "")),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), ("training.workers", "")),
    "device": ("training.accelerator", '"cpu" or "cuda"'),
    **dict.fromkeys(("gpus", "num_gpus", "num_devices"), ("training.devices", "on each node")),
    **dict.fromkeys(("random_seed", "manual_seed"), ("seed", "")),
    **dict.fromkeys(("max_length", "src_seq_length", "tgt_seq_length"), ("data.longest", "")),
    **dict.fromkeys(("voc_limit", "vocab_size", "src_vocab_size", "tgt_vocab_size"), ("tokenizer.size", "")),
    **dict.fromkeys(("beam_size", "num_beams"), ("search.beams", "")),
    **dict.fromkeys(("beam_alpha", "alpha"), ("search.length_penalty", "")),
}


def other_name(name: str, keys: list[str]) -> str | None:
    """What a name of another library is called here, where a section has these keys; None for a name nobody uses."""
    if name not in OTHER_NAMES:
        return None
    key, remark = OTHER_NAMES[name]
    own = key.rpartition(".")[2]
    return f"regard calls it {own if own in keys else key}" + (f", {remark}" if remark else "")
