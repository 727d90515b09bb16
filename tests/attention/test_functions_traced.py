"""Functions as masks, modifiers and normalizers, and sinks: torch.compile, torch.export, torch.func, fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard as r
from regard import attend

IDS = torch.tensor([0, 0, 1, 1, 2, 2])
SINK = torch.tensor([0.5, -1.0, 2.0])

CASES = {
    "mask_mod": {"mask": lambda b, h, i, j: IDS[i] == IDS[j]},
    "score_mod": {"energy": r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + SINK[h] * (i - j))},
    "function of energies": {"normalize": lambda e: torch.softmax(e, -1), "mask": r.causal()},
    "function with a mask": {"normalize": lambda e, mask: e.sigmoid() * mask, "mask": r.causal()},
    "module": {"normalize": torch.nn.Softmax(-1)},
    "sink": {"normalize": r.Softmax(sink=SINK)},
    "unnormalized": {"normalize": r.Unnormalized(), "mask": r.causal([0, 2])},
    "corner": {"mask": r.causal("bottom-right") & r.padding(queries=[2, 6])},
}


def _inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 6, 4) for _ in range(3)]


class Attention(torch.nn.Module):
    def __init__(self, options: dict) -> None:
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return attend(q, k, v, **self.options)


@pytest.mark.parametrize("name", CASES)
def test_compile_and_export(name: str) -> None:
    model, tensors = Attention(CASES[name]), _inputs()
    truth = model(*tensors)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*tensors), truth)
    torch.testing.assert_close(torch.export.export(model, tuple(tensors)).module()(*tensors), truth)


@pytest.mark.parametrize("name", CASES)
def test_gradient_transforms(name: str) -> None:
    q, k, v = _inputs()
    model = Attention({**CASES[name], "backend": "reference"})
    leaf = q.clone().requires_grad_()
    (truth,) = torch.autograd.grad(model(leaf, k, v).sin().sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: model(x, k, v).sin().sum())(q), truth)
    slope = torch.randn_like(q)
    _, along = torch.func.jvp(lambda x: model(x, k, v).sin().sum(), (q,), (slope,))
    torch.testing.assert_close(along, (truth * slope).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_fake_tensors(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = attend(*(mode.from_tensor(x) for x in _inputs()), **CASES[name])
    assert out.shape == (2, 3, 6, 4)
