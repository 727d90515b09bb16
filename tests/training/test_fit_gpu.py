"""On a GPU: training in CUDA graphs says what training without them says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ["bidirectional GRU", "LSTMN, 2 layers", "Transformer"])
def test_losses_and_gradients_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch, encoder: str, decoder: str) -> None:
    """Float32 on the GPU, recorded and replayed, beside float64 on the CPU; several shapes share one memory."""
    from regard.training.devices import CudaGraphs

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # its RNNs round to ten bits unless told not to
    torch.manual_seed(7)
    made = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS[encoder], DECODERS[decoder])
    exact = EncoderDecoder(made).double()
    model = EncoderDecoder(made).cuda()
    model.load_state_dict(exact.state_dict())
    graphs = CudaGraphs(model, smoothing=0.1)
    for seed, (places, targets) in enumerate([(6, 7), (9, 5), (6, 7), (9, 5)]):
        pairs = batch(sentences=5, places=places, targets=targets, seed=seed)
        want = exact.loss(pairs, smoothing=0.1)
        wanted = torch.autograd.grad(want.total, list(exact.parameters()))
        model.zero_grad()
        got = graphs(pairs.to("cuda"))
        (got.total / got.tokens).backward()
        torch.testing.assert_close(got.total.item(), want.total.item(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.nll.item(), want.nll.item(), rtol=1e-5, atol=1e-5)
        assert got.tokens.item() == want.tokens.item()
        largest = max(g.abs().max() for g in wanted).item() / want.tokens.item()
        for parameter, other in zip(model.parameters(), wanted, strict=True):
            difference = (parameter.grad.double().cpu() - other / want.tokens).abs().max().item()
            assert difference < 1e-4 * largest  # float32's rounding, through a dozen products
    assert graphs.shapes == 2


@pytest.mark.parametrize("decoder", ["Bahdanau", "Luong general", "LSTMN, shallow", "LSTMN, deep", "Transformer"])
def test_mixed_precision_learns_what_single_precision_learns(decoder: str) -> None:
    from regard.training.devices import CudaGraphs

    made = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["Transformer"], DECODERS[decoder])
    losses = []
    for autocast in (None, torch.bfloat16):
        torch.manual_seed(7)
        model = EncoderDecoder(made).cuda()
        graphs = CudaGraphs(model, smoothing=0.0, autocast=autocast)
        optimizer, pairs = torch.optim.Adam(model.parameters(), lr=1e-2), batch(sentences=8).to("cuda")
        for _ in range(150):
            optimizer.zero_grad()
            loss = graphs(pairs)
            (loss.total / loss.tokens).backward()
            optimizer.step()
        losses.append(loss.nll.item() / loss.tokens.item())
    assert max(losses) < 0.3, losses  # ln 20 ≈ 3.0 before training


def test_several_decoders_are_trained_with_the_default_settings(tmp_path: Path) -> None:
    """`graphs = "auto"` leaves CUDA graphs out: which rows each decoder gets is read back from the GPU."""
    from regard.training import fit, recipe_files

    small = ["encoder.width=16", "encoder.embedding=16", "decoder.width=16", "decoder.embedding=16"]
    settings = [
        "training.accelerator=cuda",
        "training.updates=4",
        "training.validate_every=2",
        "training.warmup=1",
        "data.train=200",
        "data.valid=8",
        *small,
    ]
    run = fit(recipe_files.load_recipe("common-encoder", settings), tmp_path / "run")
    assert run.model.exists()


def test_decoding_on_a_gpu_is_that_of_a_cpu() -> None:
    from regard.decoding import search

    for decoder in ("Bahdanau", "Luong local-p", "LSTMN, deep", "Transformer", "Transformer, ALiBi"):
        torch.manual_seed(7)
        model = EncoderDecoder(
            EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS["Transformer"], DECODERS[decoder])
        ).eval()
        pairs = batch(sentences=6)
        hypotheses = []
        for device in ("cpu", "cuda"):
            model.to(device)
            with torch.no_grad():
                notes = model.encode(pairs.source.to(device), pairs.source_lengths.to(device))
                hypotheses.append([[h.tokens for h in best] for best in search(model, notes, beams=3, longest=12)])
        assert hypotheses[0] == hypotheses[1], decoder


def test_float16_with_a_scaled_loss_learns_what_float32_learns(tmp_path: Path) -> None:
    from regard.training import fit, recipe_files
    from tests.support.tiny_training import measured, recipe_file

    file = recipe_file(tmp_path)
    settings = ["training.accelerator=cuda", "training.graphs=false", "encoder.dropout=0.0", "decoder.dropout=0.0"]
    losses = {}
    for precision in ("32-true", "16-mixed"):
        run = fit(recipe_files.load_recipe(file, [*settings, f"training.precision={precision}"]), tmp_path / precision)
        losses[precision] = [float(line[2]) for line in measured(run.folder) if line[2]]
    assert losses["16-mixed"][0] == pytest.approx(losses["32-true"][0], rel=2e-2)
    assert losses["16-mixed"][-1] == pytest.approx(losses["32-true"][-1], rel=3e-2)
    for precision, values in losses.items():  # float32: from 2.96 to 2.56 in these updates
        assert values[-1] < 0.93 * values[0], (precision, values)


def test_a_stream_is_trained_with_cuda_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every buffer has the shapes of the first one: a graph is recorded once for each width."""
    from regard.training import fit, loop, recipe_files
    from tests.support.tiny_training import measured, recipe_file

    file = recipe_file(tmp_path)
    settings = ["data.kind=stream", f"data.root={tmp_path}", 'data.train=["train.tsv"]', 'data.valid=["valid.tsv"]']
    settings += ["data.longest=50", "data.tokenised=true", "training.accelerator=cuda", "training.graphs=true"]
    recorded: list[loop.CudaGraphs] = []
    init = loop.CudaGraphs.__init__

    def record(self: loop.CudaGraphs, *arguments: Any, **options: Any) -> None:
        recorded.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(loop.CudaGraphs, "__init__", record)
    run = fit(recipe_files.load_recipe(file, settings), tmp_path / "run")
    losses = [float(line[2]) for line in measured(run.folder) if line[2]]
    assert losses[-1] < losses[0]
    assert recorded[0].shapes == 1  # sentences of up to 6 words: one width
