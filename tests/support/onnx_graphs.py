"""Exported graphs in onnxruntime, beside the models they were written from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.media import PictureReader, SoundReader
from regard.data.tokenizer_pair import EmptyReader
from regard.decoding.onnx import export_onnx
from regard.models import Classifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from regard.models import EncoderDecoder

    Arrays = dict[str, np.ndarray]

CLOSE = 1e-4  # float32, of numbers about 1
WORDS = 40  # of the vocabularies
STEPS = 4


def graph(file: Path) -> Any:
    """A function from the inputs of a graph to its outputs, both by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def sources(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sources of different lengths; those of several decoders begin with different tags."""
    torch.manual_seed(1)
    reads, tags = model.config.encoder.reads, getattr(model.config, "tags", [])
    if reads == "none":
        return torch.ones(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long)
    if reads == "picture":
        size = model.config.encoder.size
        return torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8), torch.ones(2, dtype=torch.long)
    if reads == "sound":
        return torch.randint(-9000, 9000, (2, 2400), dtype=torch.int16), torch.tensor([2400, 1500])
    ids = torch.randint(4, WORDS, (2, 7))
    ids[1, 5:] = 0
    if tags:
        ids[:, 0] = torch.tensor(tags[:2])
    return ids, torch.tensor([7, 5])


def fed(source: torch.Tensor, lengths: torch.Tensor) -> Arrays:
    array = source.numpy() if source.dtype == torch.long else source.float().numpy()
    return {"source": array, "lengths": lengths.numpy()}


def close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=CLOSE, rtol=CLOSE)


def varied(model: Any) -> Any:
    """A model whose biases are not zero, as those of a new one are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return model.eval()


def export_graphs(model: Any, folder: Path, **options: Any) -> Path:
    """The model as graphs, beside tokenizers of as many tokens."""
    text = Tokenizer.train("character", WORDS, ["abcdefghijklmnopqrstuvwxyz"])
    readers: dict[str, Any] = {"picture": PictureReader(64), "sound": SoundReader(), "none": EmptyReader()}
    target = LabelSet(["a", "b", "c"]) if isinstance(model, Classifier) else text
    sides = TokenizerPair(readers.get(model.config.encoder.reads, text), target)
    return export_onnx(model, sides, folder, **options)


def parts(start: Arrays) -> tuple[Arrays, Arrays]:
    """The memory and the first state, of what the graph of an encoder gives."""
    memory, state = ({k: v for k, v in start.items() if k.startswith(f"{kind}.")} for kind in ("memory", "state"))
    return memory, state


def next_state(result: Arrays) -> Arrays:
    return {k.replace("next.", "state."): v for k, v in result.items() if k.startswith("next.")}


def first_state(folder: Path, rows: int) -> Arrays:
    """The first state of a language model: zeros."""
    shapes = json.loads((folder / "onnx.json").read_text())["state"].items()
    sizes = {"rows": rows, "steps": 0}
    return {f"state.{name}": np.zeros([sizes.get(n, n) for n in x["shape"]], x["dtype"]) for name, x in shapes}


def first_values(
    model: EncoderDecoder, folder: Path, source: torch.Tensor, lengths: torch.Tensor
) -> tuple[Arrays, Arrays]:
    if model.config.encoder.reads == "none":
        return {}, first_state(folder, len(lengths))
    return parts(graph(folder / "encoder.onnx")(fed(source, lengths)))


def steps_of(
    model: EncoderDecoder, annotations: Any, tokens: torch.Tensor, beams: int = 1
) -> Iterator[tuple[torch.Tensor, Any, torch.Tensor | None]]:
    """Logits [rows, vocabulary], state and weights after each of the tokens [rows, steps], by torch."""
    state = model.decoder.start(annotations, beams=beams, steps=tokens.shape[1])
    for token in tokens.unbind(1):
        features, state, weights = model.decoder.step(token, state, weights=True)
        yield model.readout(features), state, weights


@torch.no_grad()
def check_steps(model: EncoderDecoder, folder: Path, beams: int = 1) -> None:
    """A few steps with the same tokens: logits and weights of torch. With `beams`, rows of one sentence."""
    source, lengths = (x[: 1 if beams > 1 else None] for x in sources(model))
    tokens = torch.randint(4, WORDS, (len(lengths) * beams, STEPS))
    memory, state = first_values(model, folder, source, lengths)
    state = {name: value.repeat(beams, 0) for name, value in state.items()}
    step = graph(folder / "decoder.onnx")
    for t, (logits, _, weights) in enumerate(steps_of(model, model.encode(source, lengths), tokens, beams)):
        result = step({"token": tokens[:, t].numpy(), **memory, **state})
        close(logits, result["logits"])
        assert ("weights" in result) == (weights is not None)
        if weights is not None:
            close(weights.float(), result["weights"])
        state = next_state(result)


@torch.no_grad()
def check_classes(model: Classifier, folder: Path) -> None:
    source, lengths = sources(model)
    expected = model(source, lengths, weights=True)
    result = graph(folder / "classifier.onnx")(fed(source, lengths))
    close(expected.logits, result["logits"])
    assert result["places"].tolist() == expected.places.tolist()
    assert ("weights" in result) == (expected.weights is not None)
    if expected.weights is not None:
        close(expected.weights.float(), result["weights"])
    static = model.rarity(source, lengths)
    assert ("static" in result) == (static is not None)
    if static is not None:
        close(static, result["static"])


def check(model: Any, folder: Path) -> None:
    """The graphs in a folder compute what the model computes."""
    if isinstance(model, Classifier):
        check_classes(model, folder)
    else:
        check_steps(model, folder)


def greedy(folder: Path, source: list[int], longest: int) -> tuple[list[int], list[np.ndarray]]:
    """The likeliest tokens one by one up to </s>, and the weights of each step."""
    memory, state = parts(
        graph(folder / "encoder.onnx")({"source": np.array([source]), "lengths": np.array([len(source)])})
    )
    step, tokens, weights = graph(folder / "decoder.onnx"), [1], []
    while tokens[-1] != 2 and len(tokens) <= longest:
        values = step({"token": np.array(tokens[-1:]), **memory, **state})
        state = next_state(values)
        tokens.append(int(values["logits"][0, 2:].argmax()) + 2)  # <pad> and <s> are no words
        weights.append(values["weights"][0])
    return tokens[1:], weights
