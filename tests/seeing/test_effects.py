"""Effects: batched sweeps against hand-written hooks, one change at a time; and what is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import regard
from regard.seeing.analysis import Site, TextModel, ablate, circuits, effects
from regard.seeing.effects import LayerPrefix
from tests.support.small_language_models import CLEAN, CORRUPTED, logit_metric, small_model

if TYPE_CHECKING:
    from collections.abc import Callable


def _projections(model: Any) -> list[nn.Module]:
    if hasattr(model, "transformer"):
        return [block.attn.c_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]


@torch.no_grad()
def _head_outputs(model: Any, ids: Tensor) -> list[Tensor]:
    """The input of every output projection: the heads side by side, [B, T, heads · D]."""
    outputs: list[Tensor] = []
    handles = [x.register_forward_pre_hook(lambda _, args: outputs.append(args[0])) for x in _projections(model)]
    model(ids)
    for handle in handles:
        handle.remove()
    return outputs


@torch.no_grad()
def _by_hand(model: Any, ids: Tensor, layer: int, heads: slice, new: Tensor | float) -> Tensor:
    """The metric with the columns of some heads replaced in the input of a layer's output projection."""

    def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        columns = slice(4 * heads.start, 4 * heads.stop)
        x[..., columns] = new[..., columns] if isinstance(new, Tensor) else new
        return (x,)

    handle = _projections(model)[layer].register_forward_pre_hook(hook)
    value = logit_metric(model(ids))
    handle.remove()
    return value


def _replacement(model: Any, by: str) -> Callable[[int], Tensor | float]:
    own = _head_outputs(model, CLEAN)
    if by == "zero":
        return lambda _: 0.0
    if by == "mean":
        return lambda layer: own[layer].mean((0, 1), keepdim=True).expand_as(own[layer])
    if by == "resample":
        other = _head_outputs(model, CORRUPTED)
        return lambda layer: other[layer]
    return lambda layer: own[layer]


@pytest.mark.parametrize("by", ["zero", "mean", "resample", "patch"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_heads_and_layers_against_hooks_written_by_hand(kind: str, by: str) -> None:
    model = small_model(kind)
    base = CORRUPTED if by == "patch" else CLEAN
    corrupted = CORRUPTED if by in ("patch", "resample") else None
    new = _replacement(model, by)
    # 7 rows take two changes of three texts; the last part has one.
    result = effects(model, {"input_ids": CLEAN}, logit_metric, by=by, rows=7, corrupted=_ids(corrupted))
    expected = [_by_hand(model, base, n, slice(h, h + 1), new(n)) for n in range(3) for h in range(4)]
    torch.testing.assert_close(result.values, torch.stack(expected), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(result.base, logit_metric(model(base)).detach())
    assert float(result.differences.abs().max()) > 1e-2
    layers = effects(model, {"input_ids": CLEAN}, logit_metric, of="layers", by=by, corrupted=_ids(corrupted))
    expected = [_by_hand(model, base, n, slice(0, 4), new(n)) for n in range(3)]
    torch.testing.assert_close(layers.values, torch.stack(expected), rtol=1e-6, atol=1e-7)


def _ids(ids: Tensor | None) -> dict[str, Tensor] | None:
    return None if ids is None else {"input_ids": ids}


def test_patching_everything_recovers_everything() -> None:
    """All tokens' embeddings from the clean run, one by one; with one token that differs, that one recovers it all."""
    model = small_model("gpt2")
    corrupted = CLEAN.clone()
    corrupted[:, 2] = (corrupted[:, 2] + 1) % 40
    result = effects(
        model, {"input_ids": CLEAN}, logit_metric, of="tokens", by="patch", corrupted={"input_ids": corrupted}
    )
    share = result.recovered
    torch.testing.assert_close(share[2], torch.tensor(1.0, dtype=torch.float64))
    assert float(share[[0, 1, 3, 4, 5, 6]].abs().max()) < 1e-9


def test_masked_tokens_are_those_of_ablate() -> None:
    model = small_model("llama")
    result = effects(model, CLEAN, logit_metric, of="tokens", rows=8)
    for token in range(7):
        with torch.no_grad(), ablate(model, tokens=[token]):
            torch.testing.assert_close(result.values[token], logit_metric(model(CLEAN)), rtol=1e-6, atol=1e-7)


def test_padding_is_left_out_of_the_mean() -> None:
    model, real = small_model("gpt2"), torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 7])
    inputs = {"input_ids": CLEAN, "attention_mask": real}
    result = effects(model, inputs, lambda output: output.logits[:, 4].sum(-1), by="mean")
    outputs: list[Tensor] = []
    projection = _projections(model)[0]
    handle = projection.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    with torch.no_grad():
        model(**inputs)
        handle.remove()
        mean = outputs[0][real.bool()].mean(0)

        def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            x = args[0].clone()
            x[..., :4] = mean[:4]
            return (x,)

        handle = projection.register_forward_pre_hook(hook)
        expected = model(**inputs).logits[:, 4].sum(-1)
        handle.remove()
    torch.testing.assert_close(result.values[0], expected)


@pytest.mark.parametrize(("of", "by"), [("heads", "zero"), ("layers", "mean"), ("heads", "patch"), ("tokens", "patch")])
def test_the_estimate_is_the_derivative_and_the_strongest_are_run(of: Any, by: Any) -> None:
    """A small change's effect is its estimate: measured by moving a little way towards the replacement."""
    model = small_model("gpt2")
    model.requires_grad_(False)
    corrupted = {"input_ids": CORRUPTED} if by == "patch" else None
    options: dict[str, Any] = {"of": of, "by": by, "corrupted": corrupted}
    every = effects(model, {"input_ids": CLEAN}, logit_metric, **options)
    some = effects(model, {"input_ids": CLEAN}, logit_metric, exact=2, **options)
    assert some.estimates is not None
    ran = ~some.values[:, 0].isnan()
    assert int(ran.sum()) == 2
    torch.testing.assert_close(some.values[ran], every.values[ran], rtol=1e-6, atol=1e-8)
    assert set(some.estimates.mean(1).abs().topk(2).indices.tolist()) == set(ran.nonzero().flatten().tolist())
    if of == "heads":
        base = CORRUPTED if by == "patch" else CLEAN
        own, new = _head_outputs(model, base), _replacement(model, by)
        for layer, head in ((0, 1), (2, 3)):
            old, step = own[layer], 1e-5
            towards = old + step * ((new(layer) if by == "patch" else 0.0) - old)
            moved = _by_hand(model, base, layer, slice(head, head + 1), towards)
            slope = (moved - logit_metric(model(base))) / step
            torch.testing.assert_close(some.estimates[4 * layer + head], slope.detach(), rtol=1e-3, atol=1e-4)


def test_a_model_of_torch_and_one_of_ours() -> None:
    class Ours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return self.out(regard.attend(q, k, v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    models = [(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), 4), (Ours(), 2)]
    for model, count in models:
        x = torch.randn(2, 5, 8)
        result = effects(model, x, lambda out: out[..., 0].sum(1))
        assert result.values.shape == (count, 2)
        assert float(result.differences.abs().min()) > 1e-6
    expected = models[1][0].out.bias  # the layer of ours without its heads
    with torch.no_grad():
        layers = effects(models[1][0], x, lambda out: out.square().sum((1, 2)), of="layers")
    torch.testing.assert_close(layers.values[0].float(), (5 * expected.square().sum()).detach().expand(2))


def test_resampling_takes_another_text_of_the_batch() -> None:
    model = small_model("gpt2")
    own = _head_outputs(model, CLEAN)
    result = effects(model, {"input_ids": CLEAN}, logit_metric, by="resample", seed=1)
    rolled = [
        torch.stack(
            [_by_hand(model, CLEAN, n, slice(h, h + 1), own[n].roll(by, 0)) for n in range(3) for h in range(4)]
        )
        for by in (1, 2)
    ]
    assert any(torch.allclose(result.values, x, rtol=1e-6, atol=1e-7) for x in rolled)


def test_results_as_a_matrix_a_list_and_a_table() -> None:
    model = small_model("gpt2")
    result = effects(model, {"input_ids": CLEAN}, logit_metric)
    assert result.matrix().shape == (3, 4)
    site, value = result.strongest(1)[0]
    assert value == float(result.matrix()[site.layer, site.head])
    assert abs(value) == float(result.matrix().abs().max())
    table = result.table()
    columns = ["layer", "head", "module", "metric", "difference", "standard error", "low", "high", "p"]
    assert list(table.columns) == [*columns, "q (Benjamini-Hochberg)"]
    differences = result.differences
    torch.testing.assert_close(torch.tensor(table.columns["standard error"]), (differences.std(1) / 3**0.5).float())
    assert min(table.columns["p"]) >= 2 / 2**3  # the least that three prompts can say
    assert " ± " in repr(result)
    alone = effects(model, CLEAN[:1], logit_metric)
    assert list(alone.table().columns) == columns[:5]
    assert " ± " not in repr(alone)
    assert table.columns["difference"] == result.differences.mean(1).tolist()
    assert f"{site.layer}.{site.head}" in repr(result).splitlines()[1]


def test_the_model_is_left_as_it_was() -> None:
    model = small_model("llama")
    before = logit_metric(model(CLEAN))
    effects(model, {"input_ids": CLEAN}, logit_metric)
    assert not any("forward" in vars(part) for part in model.modules())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert torch.equal(logit_metric(model(CLEAN)), before)


def test_a_run_that_gives_nan_is_not_replaced_by_its_estimate() -> None:
    model = small_model("llama")
    base = logit_metric(model(CLEAN)).detach()

    def metric(output: Any) -> Tensor:
        value = logit_metric(output)
        return torch.where((value - base).abs() < 1e-9, value, torch.nan)  # NaN for any change

    result = effects(model, {"input_ids": CLEAN}, metric, exact=2)
    assert result.measured is not None
    assert int(result.measured.sum()) == 2
    assert bool(result.mean()[result.measured].isnan().all())
    assert bool(result.mean()[~result.measured].isfinite().all())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False).eval()])
def test_a_norm_over_the_batch_is_refused(norm: nn.Module) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: Tensor) -> Tensor:
            out = F.scaled_dot_product_attention(x, x, x)
            return self.norm(out.flatten(0, 2)).view_as(out)

    with pytest.raises(ValueError, match="norm, BatchNorm1d, normalizes by the mean of its batch"):
        effects(Model(), torch.randn(2, 2, 3, 4), lambda out: out.flatten(1).sum(1))


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


class InPlaceAttention(nn.Module):
    """Attention whose output is scaled, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.project = in_place, nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v)
        if self.in_place:
            z *= 3
        else:
            z = z * 3
        return z.transpose(1, 2).flatten(2)


class InPlaceLayer(nn.Module):
    """A layer that adds to its input, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.attention, self.feed = in_place, InPlaceAttention(in_place), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x += self.attention(x)
            x += self.feed(x).tanh()
            return x
        x = x + self.attention(x)
        return x + self.feed(x).tanh()


class InPlaceModel(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.embedding, self.layers = nn.Embedding(40, 8), nn.ModuleList(InPlaceLayer(in_place) for _ in range(3))
        self.double()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.in_place:
            x *= 2
        else:
            x = x * 2
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("exact", [None, 2])
@pytest.mark.parametrize(("of", "by"), [("heads", "zero"), ("heads", "mean"), ("layers", "patch"), ("tokens", "patch")])
def test_a_model_that_works_in_place_has_the_effects_of_one_that_does_not(of: Any, by: Any, exact: int | None) -> None:
    results = []
    for in_place in (True, False):
        model = InPlaceModel(in_place).requires_grad_(False)
        corrupted = CORRUPTED if by == "patch" else None
        options: dict[str, Any] = {"of": of, "by": by, "corrupted": corrupted, "exact": exact, "rows": 6}
        results.append(effects(model, CLEAN, lambda out: out[..., 0].sum(1), **options))
    torch.testing.assert_close(results[0].base, results[1].base)
    torch.testing.assert_close(results[0].values, results[1].values, equal_nan=True)
    if exact is not None:
        torch.testing.assert_close(results[0].estimates, results[1].estimates)


def test_a_model_that_works_in_place_in_inference_mode() -> None:
    results = []
    for in_place in (True, False):
        with torch.inference_mode():
            results.append(effects(InPlaceModel(in_place), CLEAN, lambda out: out[..., 0].sum(1), rows=6))
    torch.testing.assert_close(results[0].values, results[1].values)


class CallsAttention(nn.Module):
    """Two heads through a function of attention; `heads=0` for calls without an axis of heads."""

    def __init__(self, attention: Callable[..., Tensor], heads: int = 2) -> None:
        super().__init__()
        self.attention, self.heads = attention, heads

    def forward(self, x: Tensor) -> Tensor:
        if not self.heads:
            return self.attention(x, x, x)
        q = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.attention(q, q, q).transpose(1, 2).flatten(2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = flex.flex_attention(q, k, v)
    assert isinstance(out, Tensor)
    return out


def _noted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = (q @ k.mT / 2).exp()  # no softmax that another tap would see
    out = w @ v / w.sum(-1, keepdim=True)
    regard.note(q, k, v, out)
    return out


@pytest.mark.parametrize("attention", [regard.attend, _flex, _noted])
def test_tokens_are_refused_where_no_mask_can_be_changed(attention: Callable[..., Tensor]) -> None:
    model, x = nn.Sequential(CallsAttention(_sdpa), CallsAttention(attention)), torch.randn(3, 5, 8)
    with pytest.raises(ValueError, match=r"1 is a call of .*, where tokens cannot be masked"):
        effects(model, x, lambda out: out.sum((1, 2)), of="tokens")
    with pytest.raises(ValueError, match="where tokens cannot be masked"), ablate(model, tokens=[1]):
        model(x)


def test_an_output_that_is_only_noted_cannot_be_changed() -> None:
    model, x = nn.Sequential(CallsAttention(_noted), CallsAttention(_noted)), torch.randn(3, 5, 8)
    with pytest.raises(ValueError, match="called no attention that could be changed"), regard.watch(model):
        effects(model, x, lambda out: out.sum((1, 2)))
    with pytest.raises(ValueError, match="nothing was ablated in 1"), regard.watch(model) as seen:  # noqa: SIM117
        with ablate(model, heads={"1": [0, 1]}):
            model(x)
    assert [call.ablated for call in seen] == ["", ""]


@pytest.mark.parametrize("attention", [regard.attend, _sdpa])
def test_a_batch_is_not_taken_for_heads(attention: Callable[..., Tensor]) -> None:
    model, x = nn.Sequential(CallsAttention(attention, heads=0)), torch.randn(3, 5, 8)
    for of in ("heads", "layers"):
        with pytest.raises(ValueError, match=r"0 calls attention with an output of shape \[3, 5, 8\]"):
            effects(model, x, lambda out: out.sum((1, 2)), of=of)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x.unsqueeze\(1\)"), ablate(model, heads={"0": [0]}):
        model(x)


def test_a_model_that_drops_out_in_a_function_is_refused() -> None:
    class DropsOut(CallsAttention):
        def forward(self, x: Tensor) -> Tensor:
            q = x.unflatten(-1, (2, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0)

    model, x = nn.Sequential(DropsOut(_sdpa)), torch.randn(3, 5, 8)
    for rows in (32, 3):  # with the batch repeated, and not
        with pytest.raises(ValueError, match=r"same output again .* \(call model.eval\(\)"):
            effects(model.train(), x, lambda out: out.sum((1, 2, 3)), rows=rows)
    assert effects(model.eval(), x, lambda out: out.sum((1, 2, 3))).values.isfinite().all()


def test_an_input_without_a_batch_that_has_its_size_is_refused() -> None:
    class Weighted(CallsAttention):
        def forward(self, x: Tensor, scales: Tensor) -> Tensor:
            return super().forward(x) * scales.cumsum(0)[-1]  # scales [3], the same for all entries

    model, x = Weighted(_sdpa), torch.randn(3, 5, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="no batch dimension but the size of the batch, 3"):
        effects(model, {"x": x, "scales": torch.ones(3)}, lambda out: out.sum((1, 2)))
    values = effects(model, {"x": x, "scales": torch.ones(4)}, lambda out: out.sum((1, 2))).values
    torch.testing.assert_close(values.sum(0), 4 * model(x, torch.ones(1)).sum((1, 2)))


def test_what_cannot_be_is_refused() -> None:
    model, inputs = small_model("gpt2"), {"input_ids": CLEAN}
    with pytest.raises(ValueError, match="expected one of 'heads'"):
        effects(model, inputs, logit_metric, of="neurons")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs corrupted"):
        effects(model, inputs, logit_metric, by="patch")
    with pytest.raises(ValueError, match="one number for each of 3 entries"):
        effects(model, inputs, lambda output: output.logits.sum())
    with pytest.raises(ValueError, match="must have one shape"):
        effects(model, inputs, logit_metric, by="patch", corrupted={"input_ids": CLEAN[:, :5]})
    with pytest.raises(ValueError, match="no estimate from a gradient"):
        effects(model, inputs, logit_metric, of="tokens", exact=3)
    with pytest.raises(ValueError, match="give two at least"):
        effects(model, {"input_ids": CLEAN[:1]}, logit_metric, by="resample")
    with pytest.raises(ValueError, match=r"training mode .* call model.eval\(\)"):
        effects(small_model("gpt2").train(), inputs, logit_metric)
    with pytest.raises(ValueError, match="called no attention"):
        effects(nn.Linear(2, 2), torch.zeros(3, 2), lambda out: out.sum(1))


def _places(kind: str, model: Any) -> dict[str, list[nn.Module]]:
    blocks = model.transformer.h if kind == "gpt2" else model.base_model.layers
    return {"blocks": list(blocks), "mlp": [block.mlp for block in blocks]}


@pytest.mark.parametrize("by", ["zero", "mean", "resample", "patch"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_mlps_and_the_stream_at_each_position_against_hooks_written_by_hand(kind: str, by: str) -> None:
    model = small_model(kind)
    base = CORRUPTED if by == "patch" else CLEAN
    source = CORRUPTED if by == "resample" else CLEAN
    corrupted = _ids(CORRUPTED if by in ("patch", "resample") else None)
    places = _places(kind, model)

    @torch.no_grad()
    def run(ids: Tensor, part: str, layer: int, token: int | None, new: Tensor | None) -> tuple[Tensor, Tensor]:
        """The metric with what flows at a place replaced, and what flowed there."""
        found: list[Tensor] = []

        def change(x: Tensor) -> Tensor:
            found.append(x)
            at = slice(None) if token is None else token
            x = x.clone()
            x[:, at] = x[:, at] if new is None else new[:, at]
            return x

        if part == "mlp":
            handle = places["mlp"][layer].register_forward_hook(lambda _, args, output: change(output))
        elif layer < 3:
            handle = places["blocks"][layer].register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
        else:
            handle = places["blocks"][2].register_forward_hook(lambda _, args, output: change(output))
        value = logit_metric(model(ids))
        handle.remove()
        return value, found[0]

    for of, part, layers in (("mlps", "mlp", 3), ("mlp positions", "mlp", 3), ("stream", "stream", 4)):
        result = effects(model, {"input_ids": CLEAN}, logit_metric, of=of, by=by, corrupted=corrupted, rows=12)
        assert len(result.sites) == layers * (1 if of == "mlps" else 7)
        some = effects(model, {"input_ids": CLEAN}, logit_metric, of=of, by=by, corrupted=corrupted, exact=2)
        assert some.estimates is not None
        for site, value in zip(result.sites, result.values, strict=True):
            own = run(source, part, site.layer, None, None)[1]
            new = {"zero": torch.zeros_like(own), "mean": own.mean((0, 1), keepdim=True).expand_as(own)}.get(by, own)
            expected, _ = run(base, part, site.layer, site.token, new)
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
            old = run(base, part, site.layer, None, None)[1]
            step = 1e-6
            little, _ = run(base, part, site.layer, site.token, old + step * (new - old))
            if kind != "llama":  # whose norms compute in float32: too coarse for so small a step
                slope = (little - result.base) / step
                estimate = some.estimates[some.sites.index(site)]
                torch.testing.assert_close(estimate, slope, rtol=1e-3, atol=1e-5)
    assert float(result.differences.abs().max()) > 1e-2
    assert result.matrix().shape == (4, 7)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_heads_at_positions_add_up_in_the_estimate_and_are_run_one_by_one(kind: str) -> None:
    model = small_model(kind)
    heads = effects(model, CLEAN, logit_metric, exact=0)
    result = effects(model, CLEAN, logit_metric, of="head positions", exact=5, rows=6)
    assert heads.estimates is not None
    assert result.estimates is not None
    torch.testing.assert_close(result.estimates.unflatten(0, (12, 7)).sum(1), heads.estimates)
    own = _head_outputs(model, CLEAN)
    for site, _ in result.strongest(3):
        new = own[site.layer].clone()
        new[:, site.token] = 0
        expected = _by_hand(model, CLEAN, site.layer, slice(site.head, site.head + 1), new)
        torch.testing.assert_close(result.values[result.sites.index(site)], expected, rtol=1e-6, atol=1e-7)
    sites = [Site(2, 1, token=-1), Site(1, part="mlp"), Site(0, part="stream", token=3)]
    mixed = effects(model, CLEAN, logit_metric, of=sites)
    assert [site.name for site in mixed.sites] == ["2.1 at 6", "mlp 1", "stream 0 at 3"]
    stream = effects(model, CLEAN, logit_metric, of="stream")
    torch.testing.assert_close(mixed.values[2], stream.values[3])
    with pytest.raises(ValueError, match="there are 4 heads, counted from 0"):
        effects(model, CLEAN, logit_metric, of=[Site(0, 9)])
    with pytest.raises(ValueError, match="there is no mlp 7: 3 of mlp were seen"):
        effects(model, CLEAN, logit_metric, of=[Site(7, part="mlp")])
    with pytest.raises(ValueError, match="there are 7 positions"):
        effects(model, CLEAN, logit_metric, of=[Site(0, 1, token=7)])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "sharp"])
def test_edges_against_eager_attention_with_a_mask_of_each_head(kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    ids, (model, eager) = CLEAN[:, :5], (small_model("gpt2" if kind == "sharp" else kind, layers=2) for _ in range(2))
    if kind == "sharp":  # most weights are 0 or 1 but for rounding
        for each in (model, eager):
            each.transformer.h[1].attn.c_attn.weight.data[:, :16] *= 40
    result = effects(model, ids, logit_metric, of="edges", rows=9)
    assert len(result.sites) == 2 * 4 * 14  # i > 0, j ≤ i: the first query sees one key, which stays
    estimated = effects(model, ids, logit_metric, of="edges", exact=0)
    closed: list[tuple[int, int, int, int]] = []
    share = [1.0]  # of the weight that is taken away

    def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float = 0.5, **_: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        e = (q @ k.mT) * scaling
        w = e.masked_fill(~torch.ones(e.shape[-2:]).tril().bool(), -torch.inf).softmax(-1)
        for layer, head, query, key in closed:
            if module.layer_idx == layer:
                without = w[:, head, query].clone()
                without[:, key] = 0
                without = without / without.sum(-1, keepdim=True)
                w[:, head, query] += share[0] * (without - w[:, head, query])
        return (w @ v).transpose(1, 2), w

    transformers.modeling_utils.AttentionInterface.register("by_hand", attention)
    eager.set_attn_implementation("by_hand")
    with torch.no_grad():
        for at, site in enumerate(result.sites):
            closed[:] = [(site.layer, site.head, site.token, site.key)]
            share[0] = 1.0
            expected = logit_metric(eager(ids))
            torch.testing.assert_close(result.values[at], expected, rtol=1e-5, atol=1e-6)
            if kind != "llama":
                share[0] = 1e-6
                slope = (logit_metric(eager(ids)) - result.base) / share[0]
                torch.testing.assert_close(estimated.estimates[at], slope, rtol=1e-3, atol=1e-5)
            with ablate(model, edges=closed):
                torch.testing.assert_close(logit_metric(model(ids)), expected, rtol=1e-5, atol=1e-6)
    assert float(result.differences.abs().max()) > 1e-2
    assert list(result.table().columns)[:4] == ["layer", "head", "query", "key"]
    with pytest.raises(ValueError, match="edges are closed"):
        effects(model, ids, logit_metric, of="edges", by="mean")


def test_texts_of_a_model_with_its_tokenizer() -> None:
    model = small_model("gpt2")

    class Letters:
        all_special_ids = ()

        def __call__(self, first: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(x) % 40 for x in first]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(x) for x in ids]

    named = TextModel("small", model, Letters(), 40)
    ids = [torch.tensor([[ord(x) % 40 for x in text]]) for text in ("abc", "abd")]
    result = effects(named, "abc", logit_metric, by="patch", corrupted="abd")
    expected = effects(model, ids[0], logit_metric, by="patch", corrupted=ids[1])
    assert torch.equal(result.values, expected.values)
    assert torch.equal(circuits(named).copying(), circuits(model).copying())


def test_a_negative_number_of_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="exact is how many sites are run, at least 0; got -1"):
        effects(small_model("gpt2"), CLEAN, logit_metric, exact=-1)
