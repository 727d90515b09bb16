# ruff: noqa: E501
"""python -m benchmarks.watch_libraries [pattern …]: watch and prove models of other libraries, with random weights.

timm, x-transformers, and vit-pytorch are not dependencies. In a throw-away folder, without what they depend on:

    pip install --no-deps --target /tmp/zoo timm x-transformers vit-pytorch einops einx frozendict loguru torch-einops-utils
    PYTHONPATH=src:/tmp/zoo python -m benchmarks.watch_libraries

Each model has a process of its own. The rows are in libraries.csv, and docs/architectures.md is of Transformers alone.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard import prove, watch
from regard.files import write_text

from .watch_architectures import in_a_process, line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Build = Callable[[], tuple[nn.Module, tuple[Any, ...]]]

RESULTS = Path(__file__).with_name("libraries.csv")
PARAMETERS = 40_000_000
COLUMNS = ("model", "verdict", "calls", "proved", "unseen")


def timm_models() -> Iterator[tuple[str, Build]]:
    """The smallest models of each of timm's modules, four of each."""
    import timm

    for module in timm.list_modules():
        names = sorted(timm.list_models(module=module), key=len)
        small = [x for x in names if any(word in x for word in ("nano", "atto", "pico", "femto", "tiny", "xxs", "_s"))]
        for name in list(dict.fromkeys([*small[:4], *names]))[:4]:
            yield f"timm/{name}", lambda name=name: _timm(name)


def _timm(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    import timm

    with torch.device("meta"):
        count = sum(x.numel() for x in timm.create_model(name).parameters())
    if count > PARAMETERS:
        raise OverflowError(f"{count:,} parameters")
    model = timm.create_model(name).eval()
    return model, (torch.randn(2, *model.default_cfg["input_size"]),)


OPTIONS = (
    "attn_talking_heads", "attn_post_talking_heads", "attn_one_kv_head", "attn_flash", "attn_sparse_topk", "attn_cog_signed",
    "attn_hard", "attn_sigmoid", "attn_qk_norm", "attn_gate_values", "attn_gate_value_heads", "attn_on_attn", "attn_softclamp_logits",
    "attn_num_mem_kv", "attn_kv_heads", "attn_head_scale", "attn_selective", "attn_laser", "attn_custom_attn_fn", "attn_data_dependent_alibi",
    "alibi_pos_bias", "rel_pos_bias", "rotary_pos_emb", "dynamic_pos_bias", "shift_tokens", "macaron", "sandwich_norm",
    "resi_dual", "use_rmsnorm", "use_scalenorm", "ff_glu", "ff_swish", "residual_attn", "gate_residual", "rotary_xpos",
    "pre_norm", "attn_value_dim_head", "attn_add_zero_kv", "attn_tie_kv", "sandwich_coef", "attn_l2_distance", "attn_qk_norm_scale",
    "add_value_residual", "num_residual_streams", "attn_use_tanh_out", "attn_forgetting",
)  # fmt: skip
VALUES = {"attn_sparse_topk": 4, "attn_num_mem_kv": 2, "attn_kv_heads": 2, "shift_tokens": 1, "attn_qk_norm_scale": 10}
VALUES |= {"sandwich_coef": 1, "num_residual_streams": 2, "attn_value_dim_head": 16}


def x_transformers_models() -> Iterator[tuple[str, Build]]:
    for stack in ("Decoder", "Encoder"):
        for option in ("", *OPTIONS):
            yield f"x-transformers/{stack} {option}".strip(), lambda a=stack, b=option: _x_transformers(a, b)
    yield "x-transformers/XTransformer", _encoder_decoder


def _x_transformers(stack: str, option: str) -> tuple[nn.Module, tuple[Any, ...]]:
    import x_transformers as xt

    options = {option: VALUES.get(option, True)} if option else {}
    layers = getattr(xt, stack)(dim=48, depth=2, heads=4, **options)
    model = xt.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)
    return _trained(model), (torch.randint(1, 50, (2, 13)),)


def _encoder_decoder() -> tuple[nn.Module, tuple[Any, ...]]:
    import x_transformers as xt

    common = {f"{side}_{key}": value for side in ("enc", "dec") for key, value in (("num_tokens", 50), ("depth", 2), ("heads", 4), ("max_seq_len", 32))}  # fmt: skip
    return _trained(xt.XTransformer(dim=48, **common)), (torch.randint(1, 50, (2, 9)), torch.randint(1, 50, (2, 7)))


def _trained(model: nn.Module) -> nn.Module:
    """As if trained: some parts begin as identities or zeros."""
    with torch.no_grad():
        for x in model.parameters():
            if x.dim() > 1:
                x.normal_(0, x[0].numel() ** -0.5)
    return model.eval()


VIT = (
    "vit.ViT", "simple_vit.SimpleViT", "deepvit.DeepViT", "cait.CaiT", "t2t.T2TViT", "cct.CCT", "cross_vit.CrossViT", "pit.PiT",
    "levit.LeViT", "cvt.CvT", "twins_svt.TwinsSVT", "regionvit.RegionViT", "crossformer.CrossFormer", "scalable_vit.ScalableViT",
    "sep_vit.SepViT", "max_vit.MaxViT", "nest.NesT", "mobile_vit.MobileViT", "xcit.XCiT", "ats_vit.ViT", "vit_with_patch_dropout.ViT",
    "parallel_vit.ViT", "learnable_memory_vit.ViT", "simple_vit_with_register_tokens.SimpleViT", "simple_vit_with_qk_norm.SimpleViT",
    "vit_for_small_dataset.ViT", "local_vit.LocalViT", "efficient.ViT", "rvt.RvT", "simple_flash_attn_vit.SimpleViT",
    "simple_vit_with_value_residual.SimpleViT", "simple_vit_with_hyper_connections.SimpleViT", "look_vit.LookViT", "nvit.nViT",
    "simple_vit_with_fft.SimpleViT", "vit_with_patch_merger.ViT", "jumbo_vit.JumboViT", "simple_uvit.SimpleUViT", "normalized_vit.NViT",
)  # fmt: skip


def vit_pytorch_models() -> Iterator[tuple[str, Build]]:
    for path in VIT:
        yield f"vit-pytorch/{path}", lambda path=path: _vit_pytorch(path)


def _vit_pytorch(path: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A class built with the sizes that its signature asks for."""
    import importlib
    import inspect

    module, _, name = path.partition(".")
    kind = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
    sizes = {
        "image_size": 64, "patch_size": 16, "num_classes": 10, "dim": 48, "depth": 2, "heads": 4, "mlp_dim": 64, "cls_depth": 1, "channels": 3,
        "dim_head": 16, "num_patches": 8, "patch_merge_layer": 1, "patch_merge_num_tokens": 4, "max_tokens_per_depth": (12, 8), "num_register_tokens": 2,
        "freq_patch_size": 16, "jumbo_cls_k": 2, "jumbo_ff_mult": 1, "num_residual_streams": 2, "stages": 3, "num_attn_heads": 4, "num_families": 2,
    }  # fmt: skip
    needed = inspect.signature(kind).parameters
    options = {key: sizes[key] for key in needed if key in sizes and (needed[key].default is inspect.Parameter.empty)}
    if "image_size" in needed:
        options["image_size"] = 64
    model = kind(**options)
    return _trained(model), (torch.randn(2, 3, 64, 64),)


def models() -> Iterator[tuple[str, Build]]:
    for library in (x_transformers_models, vit_pytorch_models, timm_models):
        yield from library()


def examine(name: str, build: Build) -> dict[str, str]:
    """One row: what a watch sees, and what `prove` finds."""
    torch.manual_seed(0)
    try:
        model, inputs = build()
        with torch.no_grad():
            plain = _run(model, inputs)
    except Exception as error:
        return _row(name, "not built", unseen=f"{type(error).__name__}: {error}")
    with torch.no_grad(), watch(model) as seen:
        watched = _run(model, inputs)
    coverage = prove(model, *inputs, limit="6GB")
    with torch.no_grad():
        after = _run(model, inputs)
    if not torch.equal(plain, watched) or not torch.equal(plain, after):
        return _row(name, "CHANGED")
    wrong = [call.name for call in seen if call.fidelity().faithful is False]
    proved = sum(row[1] == "proved" for row in coverage.verdicts)
    words = {True: "complete", False: "named", None: "not known"}
    verdict = "doubted" if wrong else words[coverage.complete]
    text = "; ".join([*wrong, *coverage.reasons, *(f"{x.module}: {x.kind}" for x in coverage.unseen)])
    return _row(name, verdict, len(seen), proved, text)


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    torch.manual_seed(0)  # some sample their tokens
    return _first(model(*inputs))


def _first(output: Any) -> torch.Tensor:
    while isinstance(output, list | tuple | dict):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output  # type: ignore[no-any-return]


def _row(name: str, verdict: str, calls: int = 0, proved: int = 0, unseen: str = "") -> dict[str, str]:
    text = line(name, verdict, reason=unseen)["reason"]
    return dict(zip(COLUMNS, (name, verdict, str(calls), str(proved), text), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--csv", type=Path, default=RESULTS)
    parser.add_argument("--rest", action="store_true", help="only what the file does not have yet")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stub = torch.library.Library("torchvision", "DEF")  # its package is imported for names only
    for name in ("nms", "qnms"):
        stub.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    rows = {row["model"]: row for row in _kept(chosen.csv)}
    start = time.monotonic()
    for name, build in models():
        known = chosen.rest and name in rows
        if known or not any(fnmatch.fnmatch(name, pattern) for pattern in chosen.patterns):
            continue
        row = in_a_process(name, measure=lambda name=name, build=build: iter([examine(name, build)]))
        rows[name] = {key: row.get(key, row.get("reason", "")) for key in COLUMNS} | {"model": name}
        print(*rows[name].values(), sep="\t", flush=True)
        _keep(rows, chosen.csv)
    counts = Counter(row["verdict"] for row in rows.values())
    print(
        ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()),
        f"({time.monotonic() - start:.0f} s)",
    )


def _kept(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _keep(rows: dict[str, dict[str, str]], file: Path) -> None:
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in sorted(rows))
    write_text(file, text.getvalue())


if __name__ == "__main__":
    main()
