"""Paths: a change that reaches receivers through the residual stream alone, against the equations written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from regard.seeing.analysis import Site, effects
from tests.support.small_language_models import CLEAN, CORRUPTED, logit_metric, small_model

if TYPE_CHECKING:
    from collections.abc import Callable


NEAR = {
    "gpt2": {"rtol": 1e-9, "atol": 1e-11},
    "gpt_neox": {"rtol": 1e-9, "atol": 1e-11},
    "llama": {"rtol": 1e-4, "atol": 1e-5},  # its norms compute in float32
}


class ByHand:
    """Blocks of GPT-2, GPT-NeoX (parallel) and Llama by their modules; the receiver's attention is written out."""

    def __init__(self, kind: str) -> None:
        self.kind, self.model = kind, small_model(kind)
        backbone = self.model.base_model
        self.blocks = backbone.h if kind == "gpt2" else backbone.layers
        self.norm = {"gpt2": "ln_f", "llama": "norm", "gpt_neox": "final_layer_norm"}[kind]

    def parts(self, layer: int) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
        """The norm before attention, attention, the norm before the MLP, the MLP."""
        block: Any = self.blocks[layer]
        if self.kind == "gpt2":
            return block.ln_1, block.attn, block.ln_2, block.mlp
        attention = block.attention if self.kind == "gpt_neox" else block.self_attn
        return block.input_layernorm, attention, block.post_attention_layernorm, block.mlp

    def projection(self, layer: int) -> nn.Module:
        name = {"gpt2": "c_proj", "llama": "o_proj", "gpt_neox": "dense"}[self.kind]
        return getattr(self.parts(layer)[1], name)  # type: ignore[no-any-return]

    @torch.no_grad()
    def run(
        self,
        ids: Tensor,
        heads: dict[tuple[int, int], Tensor] | None = None,
        mlps: dict[int, Tensor] | None = None,
        streams: dict[int, Tensor] | None = None,
    ) -> dict[str, Any]:
        """The streams, the heads and the MLP outputs of a run in which some of them are replaced."""
        record: dict[str, Any] = {"x": {}, "heads": {}, "mlp": {}}
        handles = []

        def before(layer: int) -> Callable[..., Any]:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                x = args[0] if streams is None or layer not in streams else streams[layer]
                record["x"][layer] = x
                return (x, *args[1:]), kwargs

            return hook

        def project(layer: int) -> Callable[..., Any]:
            def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
                x = args[0].clone()
                for (at, head), new in (heads or {}).items():
                    if at == layer:
                        x[..., 4 * head : 4 * head + 4] = new
                record["heads"][layer] = x
                return (x,)

            return hook

        def mlp(layer: int) -> Callable[..., Any]:
            def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor:
                output = output if mlps is None or layer not in mlps else mlps[layer]
                record["mlp"][layer] = output
                return output

            return hook

        for layer, block in enumerate(self.blocks):
            handles.append(block.register_forward_pre_hook(before(layer), with_kwargs=True))
            handles.append(self.projection(layer).register_forward_pre_hook(project(layer)))
            handles.append(self.parts(layer)[3].register_forward_hook(mlp(layer)))
        norm: Any = getattr(self.model.base_model, self.norm)

        def last(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            end = len(self.blocks)
            x = args[0] if streams is None or end not in streams else streams[end]
            record["x"][end] = x
            return (x,)

        handles.append(norm.register_forward_pre_hook(last))
        record["metric"] = logit_metric(self.model(ids, use_cache=False))
        for handle in handles:
            handle.remove()
        return record

    @torch.no_grad()
    def heads_from(self, layer: int, q_x: Tensor, k_x: Tensor, v_x: Tensor) -> Tensor:
        """All heads of a layer side by side, its queries, keys and values from three streams: three eager runs."""
        captured: list[tuple[Tensor, Tensor, Tensor]] = []
        found: list[Tensor] = []
        from transformers.modeling_utils import AttentionInterface

        def remember(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
            if module is self.parts(layer)[1]:
                captured.append((q, k, v))
                if len(captured) == 3:
                    q, k, v = captured[0][0], captured[1][1], captured[2][2]
                    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], dim=1) for y in (k, v))
                    e = (q @ k.mT) * options.get("scaling", 0.5)
                    e = e.masked_fill(~torch.ones(e.shape[-2:]).tril().bool(), -torch.inf)
                    found.append((e.softmax(-1) @ v).transpose(1, 2).flatten(2))
            scale = options.get("scaling", 0.5)
            k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], dim=1) for y in (k, v))
            e = ((q @ k.mT) * scale).masked_fill(~torch.ones(q.shape[-2], k.shape[-2]).tril().bool(), -torch.inf)
            return (e.softmax(-1) @ v).transpose(1, 2), None

        AttentionInterface.register("by_hand", remember)
        self.model.set_attn_implementation("by_hand")
        for x in (q_x, k_x, v_x):
            self.run(CLEAN, streams={layer: x})
        self.model.set_attn_implementation("sdpa")
        return found[0]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_paths_against_the_equations_written_out(kind: str) -> None:
    """Senders in the first layers; a query, a key, a value, all of a head, an MLP and the last stream receive."""
    reference = ByHand(kind)
    model = small_model(kind)
    clean, corrupted = reference.run(CLEAN), reference.run(CORRUPTED)
    end = len(reference.blocks)

    def added(layer: int, head: int) -> Tensor:
        change = torch.zeros_like(clean["heads"][layer])
        columns = slice(4 * head, 4 * head + 4)
        change[..., columns] = (corrupted["heads"][layer] - clean["heads"][layer])[..., columns]
        projection = reference.projection(layer)
        with torch.no_grad():
            return projection(change) - projection(torch.zeros_like(change))

    def sweep(**options: Any) -> Any:
        inputs = {"input_ids": CLEAN}
        return effects(
            model, inputs, logit_metric, by="resample", corrupted={"input_ids": CORRUPTED}, rows=7, **options
        )

    x = clean["x"]
    for through in ("query", "key", "value", None):
        result = sweep(of="heads", into=Site(2, 3), through=through)
        assert [(site.layer, site.head) for site in result.sites] == [(n, h) for n in range(2) for h in range(4)]
        for site, value in zip(result.sites, result.values, strict=True):
            moved = x[2] + added(site.layer, site.head)
            sides = [moved if through in (side, None) else x[2] for side in ("query", "key", "value")]
            new = reference.heads_from(2, *sides)[..., 12:16]
            expected = reference.run(CLEAN, heads={(2, 3): new})["metric"]
            torch.testing.assert_close(value, expected, **NEAR[kind])
    assert float(result.differences.abs().max()) > 1e-2
    # The direct path to the logits.
    result = sweep(of="heads", into=Site(end, part="stream"))
    assert len(result.sites) == 12
    for site, value in zip(result.sites, result.values, strict=True):
        expected = reference.run(CLEAN, streams={end: x[end] + added(site.layer, site.head)})["metric"]
        torch.testing.assert_close(value, expected, **NEAR[kind])
    # Into an MLP, also from a head of its own layer, which only a layer that is not parallel has.
    result = sweep(of="heads", into=Site(1, part="mlp"))
    assert [site.layer for site in result.sites] == [0] * 4 + [1] * 4
    _, _, norm, mlp = reference.parts(1)
    for site, value in zip(result.sites, result.values, strict=True):
        with torch.no_grad():
            middle = x[1] if kind == "gpt_neox" else x[1] + reference.projection(1)(clean["heads"][1])
            parallel = kind == "gpt_neox" and site.layer == 1
            output = mlp(norm(middle + (0 if parallel else added(site.layer, site.head))))
        expected = reference.run(CLEAN, mlps={1: output})["metric"]
        torch.testing.assert_close(value, expected, **NEAR[kind])
    # From MLPs, into two receivers at once.
    result = sweep(of="mlps", into=[Site(2, 0), Site(1, 1)])
    assert [site.layer for site in result.sites] == [0, 1]
    for site, value in zip(result.sites, result.values, strict=True):
        change = corrupted["mlp"][site.layer] - clean["mlp"][site.layer]
        new = {(2, 0): reference.heads_from(2, *[x[2] + change] * 3)[..., :4]}
        if site.layer == 0:
            new[1, 1] = reference.heads_from(1, *[x[1] + change] * 3)[..., 4:8]
        expected = reference.run(CLEAN, heads=new)["metric"]
        torch.testing.assert_close(value, expected, **NEAR[kind])


def test_all_direct_paths_of_a_position_are_paths_of_that_position() -> None:
    model = small_model("gpt2")
    sites = [Site(0, 1, token=token) for token in range(7)]
    result = effects(model, CLEAN, logit_metric, of=sites, into=Site(3, part="stream"))
    assert float(result.differences[:6].abs().max()) < 1e-12  # the metric reads the last position
    assert float(result.differences[6].abs().min()) > 1e-4


def test_refused_paths() -> None:
    model = small_model("gpt2")

    def sweep(**options: Any) -> Any:
        return effects(model, CLEAN, logit_metric, **options)

    with pytest.raises(ValueError, match="layer 2 receives by its heads"):
        sweep(into=Site(2))
    with pytest.raises(ValueError, match=r"4\.0 receives nothing"):
        sweep(into=Site(4, 0))
    with pytest.raises(ValueError, match="through is 'values'"):
        sweep(into=Site(2, 0), through="values")
    with pytest.raises(ValueError, match="name the heads with into="):
        sweep(through="value")
    with pytest.raises(ValueError, match="effects along paths are run"):
        sweep(into=Site(2, 0), exact=3)
