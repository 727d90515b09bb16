"""Beam search in CUDA graphs finds what the loop finds; on a CPU, the rounding of shapes does."""

from __future__ import annotations

import pytest
import torch

from regard.attention.listeners import listeners
from regard.decoding import Hypothesis, beam_search, search, search_graphs
from regard.decoding.beam_search import limits
from regard.decoding.beam_state import Ranking
from regard.decoding.search_graphs import SHAPES, SearchGraphs, graphs_of, recordable
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch


def _model(decoder: str, seed: int = 0, device: str = "cpu") -> EncoderDecoder:
    torch.manual_seed(seed)
    encoder = ENCODERS["LSTMN, 2 layers" if decoder.startswith("LSTMN") else "bidirectional GRU"]
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, encoder, DECODERS[decoder])
    model = EncoderDecoder(config).to(device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # sharp enough that beams differ
    return model


def _same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in several] for several in ours] == [[h.tokens for h in several] for several in theirs]
    for several, others in zip(ours, theirs, strict=True):
        assert [h.score for h in several] == pytest.approx([h.score for h in others], rel=1e-4, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("sentences", [1, 3, 9])
@pytest.mark.parametrize("decoder", ["Bahdanau", "Bahdanau, copy", "Transformer", "LSTMN, deep"])
def test_rounded_shapes_change_nothing(decoder: str, sentences: int) -> None:
    model, data = _model(decoder), batch(sentences, places=5)
    annotations = model.encode(data.source, data.source_lengths)
    most = limits(annotations.lengths, None)
    for ranking in (Ranking(), Ranking(1.0, 0.2)):
        ours = SearchGraphs().search(model.decoder, annotations, most, int(most.max()) + 1, ranking, beams=3, best=2)
        theirs = search(model, annotations, beams=3, best=2, coverage_penalty=ranking.coverage)
        _same(ours, theirs)


@torch.no_grad()
def test_a_cpu_has_no_graphs() -> None:
    assert not recordable(_model("Transformer").decoder)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("decoder", DECODERS)
def test_graphs_find_what_the_loop_finds(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(decoder, device="cuda")
    for seed in range(4):  # the loop, the recording, two replays
        data = batch(5, places=6, seed=seed)
        annotations = model.encode(data.source.cuda(), data.source_lengths.cuda())
        for beams in (1, 4):
            ours = search(model, annotations, beams=beams, best=beams)
            with monkeypatch.context() as plain:
                plain.setattr(beam_search, "recordable", lambda decoder: False)
                _same(ours, search(model, annotations, beams=beams, best=beams))
    recordings = graphs_of(model.decoder)._recordings
    assert len(recordings) == 2
    assert recordable(model.decoder)
    assert all(recording is not None and recording._graphs for recording in recordings.values())


@pytest.mark.gpu
@torch.no_grad()
def test_graphs_follow_the_weights_and_step_aside_for_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = _model("Transformer", device="cuda"), batch(3, places=6)

    def both() -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
        annotations = model.encode(data.source.cuda(), data.source_lengths.cuda())
        ours = search(model, annotations, beams=3)
        with monkeypatch.context() as plain:
            plain.setattr(beam_search, "recordable", lambda decoder: False)
            return ours, search(model, annotations, beams=3)

    for _ in range(3):
        _same(*both())
    for parameter in model.parameters():
        parameter.mul_(-0.7)  # in place
    _same(*both())
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter * -1.3))  # other memory
    for _ in range(3):
        _same(*both())
    calls = []
    handle = model.decoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    assert not recordable(model.decoder)
    handle.remove()
    listeners.append(lambda request, output, state, replaceable: output)
    try:
        assert not recordable(model.decoder)
    finally:
        listeners.pop()
    assert recordable(model.decoder)


@pytest.mark.gpu
@torch.no_grad()
def test_shapes_are_dropped() -> None:
    model = _model("Bahdanau", device="cuda")
    for places in range(8, 8 * (SHAPES + 4), 8):
        data = batch(1, places=places)
        annotations = model.encode(data.source.cuda(), data.source_lengths.cuda())
        for _ in range(2):
            search(model, annotations, beams=2, longest=4)
    assert len(search_graphs.graphs_of(model.decoder)._recordings) == SHAPES
