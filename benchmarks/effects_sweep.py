"""python -m benchmarks.effects_sweep: CPU seconds of a sweep of all heads of SmolLM2, beside one head at a time.

One head at a time is one forward pass of the same prompts inside `ablate`, for some heads of every depth. Both take
turns, because the machine may be busy, and CPU time is counted instead of time that passed.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from regard.seeing.analysis import ablate, effects
from regard.seeing.capture.huggingface_text_model import load_text_model
from tools.indirect_object_prompts import indirect_objects

HEADS, LAYERS = 9, 30


@torch.no_grad()
def main(prompts: int, turns: int) -> None:
    text_model = load_text_model("smollm2", with_head=True)
    model, task = text_model.model, indirect_objects(text_model.tokenizer).first(prompts)
    inputs = {"input_ids": task.ids, "logits_to_keep": 1, "use_cache": False}
    single, swept = [], []
    for turn in range(turns):
        for layer in range(turn % 3, LAYERS, 3):
            start = time.process_time()
            with ablate(model, heads={layer: [layer % HEADS]}):
                task.difference(model(**inputs))
            single.append(time.process_time() - start)
        start = time.process_time()
        effects(model, inputs, task.difference, progress=False)
        swept.append(time.process_time() - start)
    one_by_one, sweep = LAYERS * HEADS * statistics.median(single), statistics.median(swept)
    print(
        f"{prompts} prompts, {LAYERS * HEADS} heads, CPU seconds: one at a time {one_by_one:.1f} "
        f"({statistics.median(single):.3f} each), sweep {sweep:.1f}, {one_by_one / sweep:.1f} times"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
