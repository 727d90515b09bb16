"""Beam search in CUDA graphs finds what the loop finds; on a CPU, the rounding of shapes does."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.attention.attend import listeners
from regard.decoding import Hypothesis, search, search_cuda_graphs
from regard.decoding.beam import Ranking, limits
from regard.decoding.search_cuda_graphs import BYTES, SHAPES, SearchGraphs, graphs_of, recordable
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

if TYPE_CHECKING:
    from regard.models.configurations import Annotations


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


@pytest.fixture
def eager_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording on a CPU: what is recorded is also computed, and a replay does nothing."""

    class Graph:
        def replay(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)


def _graph_search(graphs: SearchGraphs, model: EncoderDecoder, annotations: Annotations) -> list[list[Hypothesis]]:
    most = limits(annotations.lengths, 12)
    return graphs.search(model.decoder, annotations, most, 13, Ranking(), beams=3, best=2)


@torch.no_grad()
@pytest.mark.usefixtures("eager_graphs")
def test_a_recording_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, graphs = _model("Bahdanau"), batch(3, places=5), SearchGraphs()
    annotations = model.encode(data.source, data.source_lengths)
    expected = _graph_search(graphs, model, annotations)
    step, calls = model.decoder.step, iter(range(100))

    def failing(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise torch.OutOfMemoryError("no memory")
        return step(*arguments, **options)

    with monkeypatch.context() as once:
        once.setattr(model.decoder, "step", failing)
        with pytest.raises(torch.OutOfMemoryError):
            _graph_search(graphs, model, annotations)
    for _ in range(2):
        _same(_graph_search(graphs, model, annotations), expected)


@pytest.mark.usefixtures("eager_graphs")
def test_recordings_of_inference_mode_are_used_outside_it() -> None:
    model, data, graphs = _model("Transformer"), batch(3, places=5), SearchGraphs()
    with torch.inference_mode():
        annotations = model.encode(data.source, data.source_lengths)
        expected, _ = (_graph_search(graphs, model, annotations) for _ in range(2))
    with torch.no_grad():
        annotations = model.encode(data.source, data.source_lengths)
        _same(_graph_search(graphs, model, annotations), expected)


@torch.no_grad()
@pytest.mark.usefixtures("eager_graphs")
def test_recordings_are_limited_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graphs, memory = _model("Bahdanau"), SearchGraphs(), itertools.count(0, BYTES // 3)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(memory))  # a third for each of two graphs
    for places in (8, 16, 24):
        data = batch(2, places=places)
        annotations = model.encode(data.source, data.source_lengths)
        for _ in range(2):
            _graph_search(graphs, model, annotations)
    assert [recording is not None for recording in graphs._recordings.values()] == [True]
    for places in range(8, 8 * (SHAPES + 4), 8):
        data = batch(1, places=places)
        _graph_search(graphs, model, model.encode(data.source, data.source_lengths))
    assert len(graphs._recordings) == SHAPES


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
                plain.setattr(search_cuda_graphs, "recordable", lambda decoder: False)
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
            plain.setattr(search_cuda_graphs, "recordable", lambda decoder: False)
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
    listeners.append(lambda energies, normalize, v, output, state, dropout, replaceable: output)
    try:
        assert not recordable(model.decoder)
    finally:
        listeners.pop()
    assert recordable(model.decoder)
