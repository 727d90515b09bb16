"""What `regard.prove` costs: CPU time beside that of a forward pass of the same text, alternating.

python -m benchmarks.prove_cost [--model smollm2] [--tokens 512] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import regard
from regard.seeing.text_models import load_text_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_text_model(options.model, "cpu").model.eval()
    ids = torch.randint(100, model.config.vocab_size, (1, options.tokens), generator=torch.Generator().manual_seed(0))
    forward, whole = [], []
    coverage = None
    for _ in range(options.runs):
        with torch.no_grad():
            start = time.process_time()
            model(input_ids=ids, use_cache=False)
            forward.append(time.process_time() - start)
        start = time.process_time()
        coverage = regard.prove(model, input_ids=ids, use_cache=False)
        whole.append(time.process_time() - start)
    assert coverage is not None
    print(coverage)
    ratio = statistics.median(whole) / statistics.median(forward)
    print(
        f"{options.model}, {options.tokens} tokens, 1 thread, median of {options.runs}: forward "
        f"{statistics.median(forward):.2f} s, prove {statistics.median(whole):.2f} s of CPU time, {ratio:.2f} forwards"
    )


if __name__ == "__main__":
    main()
