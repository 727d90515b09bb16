"""Transformer base on one GPU: tokens a second and memory, beside the same model in Hugging Face's Trainer.

    python -m benchmarks.scale_gpu [--updates 200] [--tokens 25000] [--pairs 20000] [--budget 140]

One run, the same corpus, batches, optimizer, label smoothing and bfloat16 for all. The corpus is made up: sentences
with the lengths of WMT's and words drawn by Zipf's law, in text files that are read, tokenised and encoded as any
other. Hugging Face's model is Marian's, with the same sizes; its batches are made beforehand and padded to the longest
sentence. Rates are over the second half of the updates, in target tokens without padding.

Each part runs only if it can end within the budget, in seconds, so that the whole always prints what it has.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from regard.plugins import allow_plugins
from regard.special_tokens import BEGIN, END, PAD
from regard.training import fit
from regard.training.recipe_files import load_recipe
from regard.training.run_batches import UpdateBatches
from regard.training.tasks import TranslateTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.data import Batch, Pair, TokenizerPair
    from regard.training import Recipe

RECIPE = """
base = ["transformer-base"]
task = "benchmarks.scale_gpu:LossTask"
[data]
kind = "files"
root = '{folder}'
train = ["train.tsv"]
valid = ["valid.tsv"]
tokenised = true
longest = 100
[tokenizer]
kind = "word"
size = 32000
joint = true
[encoder]
width = {width}
hidden = {hidden}
layers = {layers}
[decoder]
width = {width}
hidden = {hidden}
layers = {layers}
[training]
updates = {updates}
tokens = {tokens}
warmup = {warmup}
validate_every = 1000000
save_every = 1000000
log_every = {log_every}
average = 1
workers = 2
"""
LOGS = 10  # lines of metrics.csv


class LossTask(TranslateTask):
    """Translation that is validated by its loss alone: nothing is decoded."""

    kind: ClassVar[str] = "benchmarks.scale_gpu:LossTask"
    measure: ClassVar[str] = "loss"

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        return [""] * len(pairs)

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -nll


@dataclass
class Measurement:
    """What one part of the benchmark measured."""

    name: str
    parameters: int
    tokens_per_second: float
    peak_memory: int  # bytes allocated on the GPU
    loss: float  # smoothed, the mean over the last tenth of the updates
    seconds: float  # the whole part: reading, recording, training, the last checkpoint


def write_corpus(folder: Path, pairs: int, seed: int = 0) -> None:
    """TSV files of sentences with log-normal lengths, about 27 words a side, the target a little longer."""
    random = np.random.default_rng(seed)
    ranks = np.arange(1, 31_900)
    shares = np.cumsum(1 / ranks) / np.sum(1 / ranks)
    words = np.array([f"w{rank}" for rank in ranks])
    for name, count in (("valid", 64), ("train", pairs)):
        lengths = np.clip(np.exp(random.normal(3.1, 0.55, count)), 3, 90).astype(int)
        longer = np.clip(lengths * np.exp(random.normal(0.04, 0.12, count)), 3, 95).astype(int)
        draws = words[np.searchsorted(shares, random.random(int(lengths.sum() + longer.sum())))]
        at = 0
        with (folder / f"{name}.tsv").open("w", encoding="utf-8") as file:
            for first, second in zip(lengths, longer, strict=True):
                source, target = draws[at : at + first], draws[at + first : at + first + second]
                file.write(" ".join(source) + "\t" + " ".join(target) + "\n")
                at += first + second


def train_regard(name: str, recipe: Recipe, folder: Path) -> Measurement:
    began = time.perf_counter()
    _reset_memory()
    run = fit(recipe, folder)
    from regard.models import load

    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["loss"]]
    late = lines[len(lines) // 2 :]
    rate = len(late) / sum(1 / float(line["tokens_per_second"]) for line in late)  # equal numbers of updates
    parameters = sum(parameter.numel() for parameter in load(run.model).parameters())
    loss = float(lines[-1]["loss"])
    return Measurement(name, parameters, rate, _peak_memory(), loss, time.perf_counter() - began)


def huggingface_batch(batch: Batch) -> dict[str, torch.Tensor]:
    places = torch.arange(batch.source.shape[1])
    labels = batch.target[:, 1:].clone()
    labels[torch.arange(labels.shape[1]) >= (batch.target_lengths - 1)[:, None]] = -100
    return {
        "input_ids": batch.source,
        "attention_mask": (places < batch.source_lengths[:, None]).long(),
        "decoder_input_ids": batch.target[:, :-1],
        "labels": labels,
    }


def train_huggingface(recipe: Recipe, prepared: Path, folder: Path) -> Measurement:
    """Hugging Face's Trainer on the same batches, with its own defaults beside what the recipe says."""
    from transformers import MarianConfig, MarianMTModel, Trainer, TrainerCallback, TrainingArguments

    from regard.data import EncodedCorpus, TokenizerPair
    from regard.training.tasks import recipe_task

    began = time.perf_counter()
    settings, encoder = recipe.training, recipe.encoder
    encoded = EncodedCorpus.load(prepared / "train")
    vocabulary = len(TokenizerPair.load(prepared).target)
    made = UpdateBatches(recipe_task(recipe), encoded, 1, recipe.seed, 0, 1, fixed_shapes=False)
    batches = [huggingface_batch(made[n][0]) for n in range(settings.updates)]
    heads, layers, hidden = encoder.heads, encoder.layers, encoder.hidden  # type: ignore[attr-defined]
    config = MarianConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=vocabulary,
        d_model=encoder.width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        max_position_embeddings=256,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        bos_token_id=BEGIN,
        forced_eos_token_id=END,
    )
    torch.manual_seed(1)
    model = MarianMTModel(config)
    cuda = torch.cuda.is_available()

    class Clock(TrainerCallback):  # type: ignore[misc]
        """The time of every tenth of the updates, when the GPU has finished them."""

        times: ClassVar[list[float]] = []
        losses: ClassVar[list[float]] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step % settings.log_every == 0:
                if cuda:
                    torch.cuda.synchronize()
                self.times.append(time.perf_counter())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if logs and "loss" in logs:
                self.losses.append(float(logs["loss"]))

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.updates,
        per_device_train_batch_size=1,  # an item is a batch already
        learning_rate=settings.rate,
        warmup_steps=settings.warmup,
        lr_scheduler_type="inverse_sqrt",
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=1e-9,
        max_grad_norm=settings.clip,
        label_smoothing_factor=settings.smoothing,
        optim="adamw_torch_fused" if cuda else "adamw_torch",
        bf16=cuda,
        use_cpu=not cuda,
        logging_steps=settings.log_every,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=settings.workers,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=InOrder(batches),
        data_collator=lambda items: items[0],
        callbacks=[clock],
    )
    _reset_memory()
    trainer.train()
    half = len(clock.times) // 2
    late = batches[half * settings.log_every : len(clock.times) * settings.log_every]
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in late)
    print(f"{tokens / len(late):,.0f} target tokens an update", flush=True)
    rate = tokens / (clock.times[-1] - clock.times[half - 1])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    name = "Hugging Face Trainer, Marian"
    return Measurement(name, parameters, rate, _peak_memory(), clock.losses[-1], time.perf_counter() - began)


class InOrder(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Batches in the order they are given, shared among the workers of a loader."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        return iter(self.batches if worker is None else self.batches[worker.id :: worker.num_workers])


def _reset_memory() -> None:
    gc.collect()  # the models of the parts before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_memory() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=25_000, help="in a batch, padding counted, on the longer side")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--budget", type=float, default=140.0, help="seconds for everything")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="which of the five; 2 needs 1")
    parser.add_argument("--small", action="store_true", help="a tiny model, to see on a CPU that everything runs")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args()
    allow_plugins("benchmarks")
    began = time.perf_counter()
    results: list[Measurement] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_corpus(folder, options.pairs)
        print(f"corpus written: {time.perf_counter() - began:.0f} s", flush=True)
        sizes = (
            {"width": 32, "hidden": 64, "layers": 2} if options.small else {"width": 512, "hidden": 2048, "layers": 6}
        )
        numbers = {"updates": options.updates, "tokens": options.tokens, "log_every": max(options.updates // LOGS, 1)}
        numbers["warmup"] = max(options.updates // 2, 1)
        file = folder / "base.toml"
        file.write_text(RECIPE.format(folder=folder, **sizes, **numbers), encoding="utf-8")
        plain = load_recipe(file)
        cuda = torch.cuda.is_available()
        sharded = ["training.strategy=fsdp"]
        parts = {
            f"regard, {'CUDA graphs' if cuda else 'CPU'}": [],
            "Hugging Face": None,
            "regard, FSDP2": sharded,
            "regard, FSDP2, activation checkpointing": [*sharded, "training.activation_checkpointing=true"],
            "regard, without CUDA graphs": ["training.graphs=false"],
        }
        longest = 0.0
        for number, (name, changes) in enumerate(parts.items()):
            if number + 1 not in options.parts:
                continue
            left = options.budget - (time.perf_counter() - began)
            if left < longest:
                print(f"{name}: left out, {left:.0f} s are left of the budget", flush=True)
                continue
            part = time.perf_counter()
            try:
                if changes is None:
                    result = train_huggingface(plain, folder / "run-0" / "data", folder / "huggingface")
                else:
                    result = train_regard(name, load_recipe(file, changes), folder / f"run-{number}")
            except Exception as error:  # the other parts are still worth measuring
                print(f"{name}: failed: {type(error).__name__}: {error}", flush=True)
                continue
            finally:
                longest = max(longest, time.perf_counter() - part)
            results.append(result)
            print(
                f"{result.name}: {result.parameters / 1e6:.1f} M parameters, {result.tokens_per_second:,.0f} target "
                f"tokens/s, {result.peak_memory / 2**30:.2f} GiB at most, loss {result.loss:.3f}, "
                f"{result.seconds:.0f} s in all",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
