"""attend() on the test cases of ONNX's Attention operator, read from the installed `onnx` package."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import regard
from regard import Bias, Modified, ScaledDot, SoftCap, attend, causal, dense, padding

onnx = pytest.importorskip("onnx", reason="the cases are those of the onnx package")
pytest.importorskip("onnx.backend.test.case.node.attention", reason="this onnx has no Attention operator")

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
WEIGHTS = 3  # the mode in which the fourth output is the weights


class Case(NamedTuple):
    inputs: dict[str, np.ndarray]
    settings: dict[str, Any]
    expected: dict[str, np.ndarray]


@cache
def cases() -> dict[str, Case]:
    """Each `export_…` of the package calls `expect(node, inputs, outputs, name)`; here that collects."""
    from onnx.backend.test.case.node import attention

    collected: dict[str, Case] = {}

    def expect(node: Any, inputs: list[np.ndarray], outputs: list[np.ndarray], name: str, **_: object) -> None:
        by_place = dict(zip((at for at, given in enumerate(node.input) if given), inputs, strict=True))
        results = dict(zip((at for at, given in enumerate(node.output) if given), outputs, strict=True))
        names = ("Y", "present_key", "present_value", "qk_matmul_output")
        collected[name] = Case(
            {INPUTS[at]: x for at, x in by_place.items()},
            {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute},
            {names[at]: x for at, x in results.items()},
        )

    before, attention.expect = attention.expect, expect
    try:
        np.random.seed(0)  # noqa: NPY002  the package draws from it
        for name in dir(attention.Attention):
            if name.startswith("export"):
                getattr(attention.Attention, name)()
    finally:
        attention.expect = before
    return collected


def tensor(x: np.ndarray) -> torch.Tensor:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.ascontiguousarray(x))


def heads(x: torch.Tensor, count: int | None) -> torch.Tensor:
    return x if x.dim() == 4 else x.unflatten(-1, (count, -1)).transpose(1, 2)


def attention(case: Case, backend: str) -> tuple[torch.Tensor, regard.Weights]:
    x = {name: tensor(value) for name, value in case.inputs.items()}
    s = case.settings
    q = heads(x["Q"], s.get("q_num_heads"))
    k, v = (heads(x[name], s.get("kv_num_heads")) for name in ("K", "V"))
    past = 0
    if "past_key" in x:
        past = x["past_key"].shape[2]
        k, v = torch.cat([x["past_key"], k], 2), torch.cat([x["past_value"], v], 2)
    lengths = x.get("nonpad_kv_seqlen")
    offset = past if lengths is None else lengths[:, None] - q.shape[2]
    mask: regard.Mask | None = None

    def also(other: regard.Mask) -> None:
        nonlocal mask
        mask = other if mask is None else mask & other

    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    at = i + (offset if lengths is None else offset[:, :, None, None])
    if s.get("is_causal"):
        also(causal(offset=past) if lengths is None else dense(j <= at))
    left, right = s.get("left_window_size", -1), s.get("right_window_size", -1)
    if left >= 0:
        also(dense(at - j <= left))
    if right >= 0:
        also(dense(j - at <= right))
    if lengths is not None:
        also(padding(lengths))
    modifiers: list[Any] = []
    if s.get("softcap", 0.0) > 0:
        modifiers.append(SoftCap(s["softcap"]))
    bias = x.get("attn_mask")
    if bias is not None:
        short = k.shape[2] - bias.shape[-1]
        bias = torch.nn.functional.pad(bias, (0, short), value=False if bias.dtype == torch.bool else -torch.inf)
        bias = torch.atleast_2d(bias)
        if bias.dtype == torch.bool:
            also(dense(bias))
        else:
            modifiers.append(Bias(bias))
    energy: Any = ScaledDot(s.get("scale"))
    energy = Modified(energy, *modifiers) if modifiers else energy
    return attend(q, k, v, energy=energy, mask=mask, backend=backend, weights=True)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused"])
@pytest.mark.parametrize("name", cases())
def test_case(name: str, backend: str) -> None:
    case = cases()[name]
    try:
        z, w = attention(case, backend)
    except ValueError as error:
        if backend == "auto" or "cannot" not in str(error):
            raise
        pytest.skip(str(error))
    expected = tensor(case.expected["Y"])
    if expected.dim() == 3:
        z = z.transpose(1, 2).flatten(2)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(expected.dtype, 1e-5)
    torch.testing.assert_close(z.float(), expected.float(), rtol=tolerance, atol=tolerance)
    if case.settings.get("qk_matmul_output_mode") == WEIGHTS:
        weights = tensor(case.expected["qk_matmul_output"])
        torch.testing.assert_close(w.dense().float(), weights.float(), rtol=tolerance, atol=tolerance)


def test_there_are_cases() -> None:
    assert len(cases()) > 60
