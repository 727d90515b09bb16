"""Layers below a change are not computed again, and give what they gave."""

import threading

import pytest
import torch
from torch import nn

from regard.seeing.analysis import effects
from regard.seeing.effects.layer_prefix import LayerPrefix
from tests.support.small_language_models import small_model

IDS = torch.randint(40, (2, 5), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_a_run_with_skipped_layers_gives_the_same(kind: str) -> None:
    model, prefix, runs = small_model(kind), None, []
    prefix = LayerPrefix(model)
    with torch.no_grad():
        with prefix.recorded():
            before = model(IDS).logits
        attention = [name for name, part in model.named_modules() if type(part).__name__.endswith("Attention")]
        prefix.keep_layers_of(attention)
        assert [prefix.depth(name) for name in attention] == [0, 1, 2]
        mlps = [part for name, part in model.named_modules() if name.endswith(".mlp")]
        handles = [mlp.register_forward_hook(lambda *_: runs.append(1)) for mlp in mlps]
        with prefix.skipped(2, 2, 3):
            after = model(IDS.repeat(3, 1)).logits
        for handle in handles:
            handle.remove()
    assert len(runs) == 1  # of three layers, one
    torch.testing.assert_close(after, before.repeat(3, 1, 1))
    assert not any("forward" in vars(part) for part in model.modules())


def test_other_threads_compute_the_layers_that_one_skips() -> None:
    model, other = small_model("llama"), (IDS + 1) % 40
    prefix, outputs = LayerPrefix(model), []

    @torch.no_grad()
    def run() -> None:
        outputs.append(model(other).logits)

    with torch.no_grad():
        expected = model(other).logits
        with prefix.recorded():
            own = model(IDS).logits
        prefix.keep_layers_of([name for name, part in model.named_modules() if name.endswith("self_attn")])
        with prefix.skipped(2, 2, 1):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            torch.testing.assert_close(model(IDS).logits, own)
    torch.testing.assert_close(outputs[0], expected)
    assert not any("forward" in vars(part) for part in model.modules())


def test_layers_that_read_something_else_are_all_computed() -> None:
    class Branches(nn.Module):
        """Two layers side by side: the second does not read the output of the first."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x) + self.layers[1](x)

    model, x = Branches().eval(), torch.randn(1, 4, 8)
    prefix = LayerPrefix(model)
    with prefix.recorded():
        model(x)
    prefix.keep_layers_of(["layers.0.self_attn", "layers.1.self_attn"])
    assert prefix.depth("layers.1.self_attn") == 0
    result = effects(model, x, lambda out: out.square().sum((1, 2)))
    assert float(result.differences.abs().min()) > 1e-6
