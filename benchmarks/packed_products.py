"""Products with packed matrices on a CPU: where they are faster, and what oneDNN keeps of them.

`python -m benchmarks.packed_products` prints, for each shape of a matrix and number of rows, the time of PyTorch's own
product divided by that of the packed one (CPU seconds of one thread, smallest of several). `--memory` prints the memory
of the process after products with 1 to 640 rows, `--memory --exact` the same with a kernel for each number of rows.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from regard.layers.kernels import packed_products
from regard.layers.kernels.packed_products import pack, pays, product

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((192, 192), (256, 256), (512, 256), (768, 256), (512, 512), (2048, 512), (512, 2048), (8000, 512))
ROWS = (1, 2, 5, 9, 16, 33, 64, 160, 320)
DECODER = ((512, 512), (1024, 512), (2048, 512), (512, 2048), (8000, 512))
"""The shapes in a decoder of a Transformer of width 512."""


def _packed(matrix: torch.Tensor) -> torch.Tensor:
    packed = pack(matrix)
    if packed is None:
        raise SystemExit("this PyTorch has no oneDNN, or it is switched off")
    return packed


def _seconds(function: Callable[[], object], repeats: int = 10) -> float:
    """CPU seconds of a call, the smallest of several measurements of about 2 ms."""
    function()
    start = time.process_time()
    function()
    calls = max(1, int(0.002 / max(time.process_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            function()
        best = min(best, (time.process_time() - start) / calls)
    return best


@torch.no_grad()
def speeds() -> None:
    print("PyTorch's time / packed time; * where a search uses the packed product")
    print("matrix".ljust(12), *(f"{rows:>7} rows" for rows in ROWS))
    for out, width in SHAPES:
        matrix, bias = torch.randn(out, width), torch.randn(out)
        packed = _packed(matrix)
        cells = []
        for rows in ROWS:
            x = torch.randn(rows, width)
            ratio = _seconds(partial(linear, x, matrix, bias)) / _seconds(partial(product, x, packed, bias))
            cells.append(f"{ratio:10.2f}{'*' if pays(rows, matrix) else ' '} ")
        print(f"{out} × {width}".ljust(12), *cells, flush=True)


def _resident() -> float:
    """MB of this process in memory (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@torch.no_grad()
def memory() -> None:
    matrices = [(_packed(torch.randn(shape)), torch.randn(shape[0]), torch.randn(640, shape[1])) for shape in DECODER]
    for matrix, bias, x in matrices:
        product(x, matrix, bias)
    start = _resident()
    print(f"{'up to rows':>10} {'MB more':>8}")
    for rows in range(1, 641):
        for matrix, bias, x in matrices:
            product(x[:rows], matrix, bias)
        if rows in (40, 80, 160, 320, 640):
            print(f"{rows:>10} {_resident() - start:>8.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--exact", action="store_true", help="a kernel for each number of rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.exact:
        packed_products.kernel_rows = lambda rows: rows
    if arguments.memory:
        memory()
    else:
        speeds()


if __name__ == "__main__":
    main()
