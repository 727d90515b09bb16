"""ONNX: `encode`, `start` and `step` of a model as graphs, by torch.onnx.export.

PyTorch's exporter follows the model's own code. Meanwhile (`formulas`) attention is computed by its formula, which
gives the weights too.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.energies import ScaledDot, TanhForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.normalizers import Proportional, Softmax
from ..attention.step import Memory
from ..files import write_text
from ..layers import pooling, recurrent, transformer
from ..layers.kernels import packed_products
from ..layers.kernels.gates import lstm
from ..layers.recurrent import LSTMN, RecurrentLayer
from ..layers.sound import LogMel
from ..models.classifier import Classifier
from ..models.decoder import State
from ..models.several_decoders import DecoderSwitch, SwitchState, TagEncoder
from ..special_tokens import BEGIN, END, PAD, UNKNOWN
from .model_folders import export_files, require_free

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ..data.tokenizer_pair import TokenizerPair
    from ..models.configurations import Annotations
    from ..models.encoder_decoder import EncoderDecoder

DESCRIPTION = "onnx.json"
OPSET = 20  # the first with Gelu
IR_VERSION = 10  # that of ONNX 1.16: older runtimes refuse newer ones
CLOSED = -1e30
"""The energy of what is not seen. Its softmax weight is exactly 0 in float32, as that of −∞ is."""

Values = dict[str, Tensor]
Axes = tuple[str, ...]
"""The names of a tensor's axes; "" where the size is fixed."""


# Formulas


@dataclass(frozen=True)
class DenseWeights:
    """Weights that are a matrix already."""

    matrix: Tensor

    def dense(self) -> Tensor:
        return self.matrix


@contextmanager
def formulas() -> Iterator[list[Tensor]]:
    """While the block runs, models compute by what ONNX has, in all threads.

    Yields the weights of self-attention, those that a caller did not ask for, in order: [batch, maps, queries, keys].
    """
    maps: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, *, weights: bool = False, **options: Any) -> Any:
        z, w = _attend(q, k, v, **options)
        if weights:
            return z, DenseWeights(w)
        maps.append(w)
        return z

    def attend_step(q: Tensor, tape: Memory) -> tuple[Tensor, Tensor]:
        z, w = _attend_step(q, tape)
        maps.append(w[:, None])
        return z, w[:, 0]

    def lstmn(layer: LSTMN, x: Tensor) -> tuple[Tensor, Tensor]:
        h, c, w = _lstmn(layer, x)
        maps.append(w)
        return h, c

    def never(*_: Any) -> bool:
        return False

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (transformer, "attend", attend),
        (pooling, "attend", attend),
        (RecurrentLayer, "_run", _run),
        (LSTMN, "forward", lstmn),
        (recurrent, "attend_step", attend_step),
        (LogMel, "forward", _log_mel),
        (TanhForm, "__call__", _tanh_form),
        (packed_products, "pays", never),
        (Tensor, "take_along_dim", _take_along),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield maps
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    energy: Any = ScaledDot(),  # noqa: B008  it has no state
    normalize: Any = Softmax(),  # noqa: B008
    mask: Any = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """z = w v and w = normalize(energy(q, k)), without dropout."""
    if k.dim() == 4 and k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    energies = EnergyMatrix.of(q, k, energy)
    e = energies.whole()
    if mask is not None:
        seen = mask.dense(energies.batch, q.shape[-2], k.shape[-2], q.device)
        e = torch.where(seen, e, 0.0 if isinstance(normalize, Proportional) else CLOSED)
    if isinstance(normalize, Proportional):
        w = e / e.sum(-1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)
    else:
        w = torch.softmax(e, -1)
    return w @ v, w


def _tanh_form(form: TanhForm, a: Tensor, b: Tensor) -> Tensor:
    """w · tanh(a_i + b_j): runtimes multiply with a matrix of one column faster than with a vector."""
    return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) @ form.weight[:, None])[..., 0]


def _attend_step(q: Tensor, tape: Memory) -> tuple[Tensor, Tensor]:
    """`attend_step` over the tape of an LSTMN: the context, and the weights [rows, 1, entries].

    A closed entry of zeros stands after the last. Where the tape is empty it has all the weight, and none elsewhere:
    runtimes differ in sums of nothing.
    """
    keys, values = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (tape.keys, tape.values))
    e = tape.form(tape.query(q[:, None]), keys)  # [rows, 1, entries + 1]
    w = torch.softmax(torch.where(torch.arange(keys.shape[1]) < keys.shape[1] - 1, e, CLOSED), -1)
    return (w @ values)[:, 0], w[..., :-1]


def _lstmn(layer: LSTMN, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`LSTMN.forward` as one loop over time, its tape of zeros filled from the front; and the weights."""
    from torch._higher_order_ops.scan import scan

    (batch, time), width = x.shape[:2], layer.width
    early, late = layer.energy.query.weight.split([layer.width_in, width], 1)
    gates, queries = layer.cell.input_gates(x), x @ early.mT  # [batch, time, …]
    form, key, recall, places = (
        TanhForm(layer.energy.weight),
        layer.energy.key.weight,
        layer.cell.recall,
        torch.arange(time),
    )

    def step(tape: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        keys, values, query = tape
        gates, q, at = now
        before = places < at
        e = _tanh_form(form, (q + query)[:, None], keys)
        w = torch.softmax(torch.where(before, e[:, 0], CLOSED), -1) * before
        h, c = (w[:, None] @ values)[:, 0].chunk(2, -1)  # h̃, c̃
        query = h @ late.mT
        h, c = lstm(gates + h @ recall.mT, c)
        here = (places == at)[:, None]
        keys = torch.where(here, (h @ key.mT)[:, None], keys)
        values = torch.where(here, torch.cat([h, c], -1)[:, None], values)
        return (keys, values, query), (torch.cat([h, c], -1), w)

    empty = (x.new_zeros(batch, time, width), x.new_zeros(batch, time, 2 * width), x.new_zeros(batch, width))
    _, (states, weights) = scan(step, empty, (gates.transpose(0, 1), queries.transpose(0, 1), places))
    h, c = states.transpose(0, 1).chunk(2, -1)
    return h, c, weights.transpose(0, 1)[:, None]


# ONNX orders the gates of a GRU z, r, n and those of an LSTM i, o, f, g; PyTorch has r, z, n and i, f, g, o.
GATES = {"gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}


def _run(layer: RecurrentLayer, rnn: nn.RNNBase, x: Tensor) -> Tensor:
    """One direction of `nn.GRU` or `nn.LSTM` as the operator of ONNX: the exporter would fix the length."""
    if not torch.compiler.is_exporting():
        return cast("Tensor", rnn(x)[0])
    order = GATES[layer.kind]
    w, u, b, b_u = (torch.cat([x.chunk(len(order))[n] for n in order])[None] for x in rnn.all_weights[0])
    options: dict[str, Any] = {"hidden_size": layer.width}
    if layer.kind == "gru":
        options["linear_before_reset"] = 1  # b' is inside the product with r, as in PyTorch
    inputs = [x.transpose(0, 1), w, u, torch.cat([b, b_u], 1)]
    shape = (x.shape[1], 1, x.shape[0], layer.width)
    states = torch.onnx.ops.symbolic(layer.kind.upper(), inputs, options, dtype=x.dtype, shape=shape)
    return states[:, 0].transpose(0, 1)


def _log_mel(logmel: LogMel, sound: Tensor) -> Tensor:
    """`LogMel` as a convolution with the sines and cosines of the discrete Fourier transform."""
    sound = nn.functional.pad(sound, (0, torch.sym_max(0, logmel.window - sound.shape[1])))
    frequencies, times = (torch.arange(n, dtype=torch.float64) for n in (logmel.size // 2 + 1, logmel.window))
    angles = 2 * math.pi / logmel.size * frequencies[:, None] * times
    basis = torch.cat([angles.cos(), angles.sin()]) * logmel.hann
    parts = nn.functional.conv1d(sound[:, None], basis[:, None].to(sound.dtype), stride=logmel.hop)
    real, imaginary = parts.chunk(2, 1)  # each [batch, frequencies, frames]
    power = (real.square() + imaginary.square()).mT @ logmel.bank
    return power.clamp_min(logmel.floor).log()


def _take_along(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """The exporter fixes the sizes of `take_along_dim`. Here x is [batch, time, width], and `dim` 1."""
    return x.gather(1, index.expand(x.shape[0], index.shape[1], x.shape[2]))


# Decoders: the state as tensors by name

CONSTANT = {"memory", "summary", "source", "lengths", "choice"}
"""The fields of states that stay the same in the loop."""


def started(decoder: Any, annotations: Annotations) -> Any:
    """The state before the first step, of every decoder that there is."""
    if isinstance(decoder, DecoderSwitch):
        states = {n: started(each, annotations) for n, each in enumerate(decoder.decoders)}
        return SwitchState(states, cast("Tensor", annotations.decoder), 1)
    return decoder.start(annotations, steps=0)


def with_tensors(state: Any, change: Callable[[str, Tensor], Tensor], path: str = "", kind: str = "state") -> Any:
    """The state with other tensors, made from their names and the old ones.

    Names begin with "memory" where a tensor stays the same in the loop, else with "state".
    """
    if isinstance(state, Tensor):
        return change(f"{kind}{path}", state)
    if isinstance(state, Memory):
        parts = {"keys": state.keys, "values": state.values, "lengths": state.lengths}
        return state.holding(**with_tensors(parts, change, path, kind))
    if isinstance(state, dict):
        return {name: with_tensors(x, change, f"{path}.{name}", kind) for name, x in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(with_tensors(x, change, f"{path}.{n}", kind) for n, x in enumerate(state))
    if not is_dataclass(state):
        return state
    values = {}
    for each in fields(state):
        below = path if each.name == "memory" else f"{path}.{each.name}"
        within = "memory" if isinstance(state, State) and each.name in CONSTANT else kind
        values[each.name] = with_tensors(getattr(state, each.name), change, below, within)
    return replace(cast("Any", state), **values)


def tensors(state: Any) -> Values:
    """The tensors of a state, by name."""
    found: Values = {}
    with_tensors(state, lambda name, x: found.setdefault(name, x))
    return found


def axes_of(name: str, x: Tensor) -> Axes:
    """One row for each sentence or hypothesis; of keys and values, and of ids of the source, another axis grows."""
    rows, grows = ("sentences", "places") if name.startswith("memory") else ("rows", "steps")
    axes = [rows, *[""] * (x.dim() - 1)]
    if x.dim() > 2:
        axes[-2] = grows
    elif x.dim() == 2 and not x.is_floating_point():
        axes[-1] = grows
    return tuple(axes)


# Graphs


def annotations_of(model: EncoderDecoder, source: Tensor, lengths: Tensor) -> Annotations:
    encoder: Any = model.encoder
    if not isinstance(encoder, TagEncoder):
        return model.encode(source, lengths)
    # Without a tag the number is outside of the table, which runtimes refuse.
    matches = nn.functional.pad(source[:, :1] == encoder.tags, (0, 1), value=True)
    number = torch.arange(len(encoder.tags))[matches.int().argmax(1)]
    neutral = torch.cat([torch.full_like(source[:, :1], BEGIN), source[:, 1:]], 1)
    annotations: Annotations = encoder.encoder(neutral, lengths)
    return replace(annotations, decoder=number)


class StartGraph(nn.Module):
    """`source`, `lengths` → `memory.*`, `state.*`, `encoder_weights`."""

    def __init__(self, model: EncoderDecoder, maps: list[Tensor]) -> None:
        super().__init__()
        self.model, self.maps = model, maps

    def forward(self, values: Values) -> Values:
        self.maps.clear()
        annotations = annotations_of(self.model, values["source"], values["lengths"])
        own = list(self.maps)
        out = tensors(started(self.model.decoder, annotations))
        if own:
            out["encoder_weights"] = torch.cat(own, 1)
        return _own_tensors(out)


class StepGraph(nn.Module):
    """`token`, `memory.*`, `state.*` → `logits`, `next.*`, `weights`, `self_weights`. `example` is any state."""

    def __init__(self, model: EncoderDecoder, example: Any, maps: list[Tensor]) -> None:
        super().__init__()
        self.model, self.example, self.maps = model, example, maps

    def forward(self, values: Values) -> Values:
        token = values["token"]
        given = {name: _for_rows(x, token) if name.startswith("memory.") else x for name, x in values.items()}
        state = with_tensors(self.example, lambda name, x: given.get(name, x))
        self.maps.clear()
        features, state, weights = self.model.decoder.step(token, state, weights=True)
        out = {"logits": self.model.decoder.readout(features)}
        rows = {name: x for name, x in tensors(state).items() if name.startswith("state.")}
        out |= {name.replace("state.", "next.", 1): x for name, x in rows.items()}
        if weights is not None:
            out["weights"] = weights
        if self.maps:
            own = torch.cat(self.maps, 1)[:, :, 0]  # of the only query, [rows, maps, steps]
            if isinstance(state, SwitchState):  # those of each row's decoder
                each = own.unflatten(1, (len(state.states), -1))
                own = each[torch.arange(len(token)), state.choice]
            out["self_weights"] = own
        return _own_tensors(out)


def _for_rows(x: Tensor, token: Tensor) -> Tensor:
    """A memory of as many sentences as there are rows, or of one that serves all of them.

    What attention reads is combined with the rows by operators that broadcast, so the graph need not copy it.
    """
    shape = (token.shape[0], *x.shape[1:])
    if not torch.compiler.is_exporting():
        return x.expand(shape)
    if x.dim() > 2:
        return torch.onnx.ops.symbolic("Identity", [x], dtype=x.dtype, shape=shape)
    rows, ones = torch.scalar_tensor(shape[0], dtype=torch.int64), torch.ones(x.dim() - 1, dtype=torch.int64)
    return torch.onnx.ops.symbolic("Expand", [x, torch.cat([rows[None], ones])], dtype=x.dtype, shape=shape)


class ClassifierGraph(nn.Module):
    """`source`, `lengths` → `logits`, `places`, `weights`, `static`."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Values) -> Values:
        source, lengths = values["source"], values["lengths"]
        result = self.model(source, lengths, weights=True)
        out = {"logits": result.logits, "places": result.places, "weights": result.weights}
        out["static"] = self.model.rarity(source, lengths)
        return _own_tensors({name: x for name, x in out.items() if x is not None})


def _own_tensors(values: Values) -> Values:
    """An output of a graph is no input of it, and no output twice."""
    return {name: x.clone() for name, x in values.items()}


def _sources(model: Any) -> tuple[Values, dict[str, Axes]]:
    """An example of what an encoder reads, and its axes.

    Ids, samples between ±32768, or bytes of red, green and blue as floats.
    """
    config, lengths, noise = model.config.encoder, torch.tensor([9, 7]), torch.Generator().manual_seed(0)
    axes: dict[str, Axes] = {"source": ("batch", "tokens"), "lengths": ("batch",)}
    if config.reads == "picture":
        axes["source"] = ("batch", "", "", "")
        pixels = 255 * torch.rand(2, config.size, config.size, 3, generator=noise)
        return {"source": pixels, "lengths": torch.ones_like(lengths)}, axes
    if config.reads == "sound":
        axes["source"] = ("batch", "samples")
        return {"source": 3000 * torch.randn(2, 9000, generator=noise), "lengths": lengths * 1000}, axes
    ids = (torch.arange(18) % (model.config.source_vocabulary or 1)).view(2, 9)
    ids[:, 0] = torch.tensor(getattr(model.config, "tags", [BEGIN])[0])
    return {"source": ids, "lengths": lengths}, axes


@contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _graph(module: nn.Module, example: Values, axes: dict[str, Axes]) -> tuple[Any, Values]:
    """The graph of a module, and what it gives for the example."""
    outputs = module(example)
    shapes = {name: {n: axis for n, axis in enumerate(axes[name]) if axis} for name in example}
    with quiet():  # about operators of torchvision, and axes that are equal
        program = torch.onnx.export(
            module,
            (),
            kwargs={"values": example},
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_shapes={"values": shapes},
            external_data=False,
            verbose=False,
        )
    assert program is not None
    _check(program.model_proto, example, outputs)
    return program.model, outputs


def _check(graph: Any, example: Values, expected: Values) -> None:
    """Raise an error where a graph computes something else than the module that it was made from."""
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    given = session.run(list(expected), {each.name: example[each.name].numpy() for each in session.get_inputs()})
    for (name, right), x in zip(expected.items(), given, strict=True):
        if not np.allclose(right.numpy(), x, rtol=1e-3, atol=1e-3):
            raise ValueError(
                f"the exported graph gives another {name} than the model; please report it with its config"
            )


def _finish(model: Any) -> bytes:
    """The file of a graph: without notes where in the code it comes from, and with halves for floats that they hold.

    The models that ship are written in float16, and their files stay as small.
    """
    import onnx_ir
    from onnx_ir.passes import common

    common.DeduplicateInitializersPass(size_limit=sys.maxsize)(model)
    common.ClearMetadataAndDocStringPass()(model)
    graph, first = model.graph, next(iter(model.graph))
    for weight in list(graph.initializers.values()):
        array = weight.const_value.numpy()
        half = array.astype(np.float16) if array.dtype == np.float32 and array.size > 64 else array
        if half.dtype != np.float16 or not np.array_equal(half.astype(np.float32), array):
            continue
        del graph.initializers[weight.name]
        tensor = onnx_ir.tensor(half, name=f"{weight.name}.half")
        stored = onnx_ir.Value(name=tensor.name, type=onnx_ir.TensorType(tensor.dtype), shape=onnx_ir.Shape(half.shape))
        stored.const_value = tensor
        graph.register_initializer(stored)
        cast_up = onnx_ir.node("Cast", [stored], {"to": onnx_ir.DataType.FLOAT})
        graph.insert_before(first, cast_up)
        weight.replace_all_uses_with(cast_up.outputs[0])
        cast_up.outputs[0].name = weight.name
    graph.sort()
    model.ir_version = IR_VERSION
    proto = onnx_ir.to_proto(model)
    library().checker.check_model(proto)
    return bytes(proto.SerializeToString())


def library() -> Any:
    """The package `onnx`, or an error that says how to install it."""
    try:
        import onnx
        import onnxruntime  # noqa: F401  it checks the graphs
        import onnxscript  # noqa: F401  PyTorch's exporter needs it
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"ONNX graphs need {missing.name}, which is not installed; install it with: pip install 'regard[export]'"
        ) from missing
    return onnx


# The export


def export_onnx(
    model: EncoderDecoder | Classifier,
    tokenizers: TokenizerPair,
    folder: str | os.PathLike[str],
    *,
    force: bool = False,
    weights: Path | None = None,
) -> Path:
    """Writes a model as ONNX graphs into a new folder, with its tokenizers and `onnx.json`, which describes them.

    An encoder-decoder has two graphs, a language model the second alone:

    - `encoder.onnx`: `source`, `lengths` → `memory.*`, constant while a sentence is decoded, the first `state.*`, and
      `encoder_weights` [sentences, maps, places, places] of self-attention, where the encoder has it;
    - `decoder.onnx`, one step: `token` [rows], `memory.*`, `state.*` → `logits` [rows, vocabulary], `next.*` (the new
      state), `weights` [rows, maps, places] over the source and `self_weights` [rows, maps, steps] over the tokens so
      far, where the decoder has them; those of an LSTMN are over its tape, whose first entry is computed from the
      source. The memory has as many sentences as there are rows, or one.

    One encoder with several decoders has the same two graphs. A tag begins the source and names the decoder, and
    `tags` in `onnx.json` has their ids; rows of different decoders can be in one batch.

    A classifier is `classifier.onnx`: `source`, `lengths` → `logits` [batch, classes], `weights` [batch, places] where
    its pooling has them, and `static` [batch, tokens], the TF-IDF weights, where it reads text.

    `force` replaces an export that is there. `weights` is the file that the model was loaded from: its SHA-256 is
    recorded in the folder.
    """
    folder = require_free(folder, "onnx", force=force)
    if problem := model.config.export_problem("onnx"):
        raise ValueError(problem)
    library()
    copied: Any = deepcopy(model).cpu().float().eval()
    with torch.no_grad(), formulas() as maps:
        if isinstance(model, Classifier):
            graph, outputs = _graph(ClassifierGraph(copied), *_sources(copied))
            graphs, description = {"classifier": graph}, {"outputs": list(outputs)}
        else:
            graphs, description = _encoder_decoder(copied, maps)
    values = {
        "task": model.task,
        "reads": model.config.encoder.reads,
        "longest": model.config.longest,
        "specials": {"pad": PAD, "begin": BEGIN, "end": END, "unknown": UNKNOWN},
        **description,
    }
    if tags := getattr(model.config, "tags", []):
        values["tags"] = dict(zip(tokenizers.source.pieces(tags), tags, strict=True))
    with export_files(folder, weights) as unfinished:
        for name, graph in graphs.items():
            (Path(unfinished) / f"{name}.onnx").write_bytes(_finish(graph))
        tokenizers.save(unfinished)
        files = sorted(Path(unfinished).iterdir())
        values |= {"files": [file.name for file in files], "size": sum(file.stat().st_size for file in files)}
        write_text(Path(unfinished) / DESCRIPTION, json.dumps(values, indent=2) + "\n")
    return folder


def _encoder_decoder(model: EncoderDecoder, maps: list[Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    config, graphs = model.config, {}
    sources, axes = _sources(model)
    example = started(model.decoder, annotations_of(model, sources["source"], sources["lengths"]))
    values = tensors(example)
    if config.encoder.kind == "none":
        values = {name: x for name, x in values.items() if name.startswith("state.")}
    else:
        graphs["encoder"], _ = _graph(StartGraph(model, maps), sources, axes)
    axes = {name: axes_of(name, x) for name, x in values.items()}
    described = {
        name: {
            "dtype": str(x.dtype).removeprefix("torch."),
            "shape": [axis or size for axis, size in zip(axes[name], x.shape, strict=True)],
        }
        for name, x in values.items()
    }
    step = StepGraph(model, example, maps)
    values, axes = {"token": torch.full((2,), BEGIN), **values}, {"token": ("rows",), **axes}
    for _ in range(3):  # the exporter takes sizes of 0 and 1 for fixed ones
        values |= {name.replace("next.", "state."): x for name, x in step(values).items() if name.startswith("next.")}
    graphs["decoder"], _ = _graph(step, values, axes)
    sides: list[tuple[str, Any]] = [("encoder", config.encoder), ("decoder", config.decoder)]
    return graphs, {
        "memory": {name[7:]: x for name, x in described.items() if name.startswith("memory.")},
        "state": {name[6:]: x for name, x in described.items() if name.startswith("state.")},
        "most_steps": model.decoder.most_steps,
        "slots": config.slots,  # the last ids, for unknown words of the source
        "tags": {},  # of several decoders
        "layers": {side: getattr(part, "layers", 1) for side, part in sides},
        "picture": getattr(config.encoder, "size", None),
    }
