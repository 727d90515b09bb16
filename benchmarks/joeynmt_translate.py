"""Translating a test set with beam 5 beside JoeyNMT 2.3: the same weights, sentences, batches, search and machine.

    PYTHONPATH=<folder with joeynmt 2.3.0 and importlib_metadata> python -m benchmarks.joeynmt_translate RUN …

RUN is a run of ours whose model JoeyNMT has too: a Transformer with pre-norm, or a GRU that looks with the additive
energy after its step and feeds that back, which is what JoeyNMT calls "bahdanau":

    regard train bahdanau-multi30k tied=none decoder.attention=luong decoder.readout=plain

Our weights are copied into JoeyNMT's own model, its own `search` translates, and both texts are scored alike. On a CPU
it is CPU seconds of one thread, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.joeynmt_models import THEIR_IDS, theirs
from regard.decoding import model_folders, translate
from regard.decoding.translation import ON_CPU, ON_GPU
from regard.models import EncoderDecoder, RecurrentDecoderConfig
from regard.special_tokens import END, PAD
from regard.training import scores
from regard.training.corpora import read
from regard.training.run_folder import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from regard.data import TokenizerPair

BEAMS, ALPHA = 5, 1.0


def converted(model: EncoderDecoder) -> Any:
    """JoeyNMT's model with the weights of ours."""
    joey = theirs(replace(model.config, tied="none"))
    weights = _recurrent(model) if isinstance(model.config.decoder, RecurrentDecoderConfig) else _transformer(model)
    order = torch.tensor([THEIR_IDS.index(i) for i in range(4)])  # our row of their id
    for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
        weights[name] = torch.cat([weights[name][order], weights[name][4:]])
    missing, unknown = joey.load_state_dict(weights, strict=False)
    if unknown or any(not name.endswith("pe.pe") for name in missing):  # the table of positions is theirs
        raise ValueError(f"JoeyNMT's model is another: it lacks {unknown} and wants {missing}")
    return joey.eval()


def _tables(model: EncoderDecoder) -> dict[str, Tensor]:
    return {
        "src_embed.lut.weight": model.encoder.embedding.weight,
        "trg_embed.lut.weight": model.decoder.embedding.weight,
        "decoder.output_layer.weight": model.decoder.output.weight,
    }


def _recurrent(model: EncoderDecoder) -> dict[str, Tensor]:
    decoder = model.config.decoder
    assert isinstance(decoder, RecurrentDecoderConfig)
    if (decoder.attention, decoder.energy, decoder.cell, decoder.layers) != ("luong", "additive", "gru", 1):
        raise ValueError("JoeyNMT has no such decoder: it wants attention = luong, energy = additive, one GRU layer")
    own = model.state_dict()
    weights = _tables(model)
    for direction, end in enumerate(("", "_reverse")):
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            weights[f"encoder.rnn.{name}{end}"] = own[f"encoder.layers.0.directions.{direction}.{name}"]
    own = {name.removeprefix("decoder."): value for name, value in own.items() if name.startswith("decoder.")}
    memory = own["bridges.0.weight"].shape[1]
    join = own["join.weight"]  # ours joins [context; state], theirs [state; context]
    weights |= {
        "decoder.rnn.weight_ih_l0": torch.cat([own["cells.0.early"], own["cells.0.late"]], 1),
        "decoder.rnn.weight_hh_l0": own["cells.0.recall"],
        "decoder.rnn.bias_ih_l0": own["cells.0.bias"],
        "decoder.rnn.bias_hh_l0": own["cells.0.recall_bias"],
        "decoder.att_vector_layer.weight": torch.cat([join[:, memory:], join[:, :memory]], 1),
        "decoder.att_vector_layer.bias": join.new_zeros(join.shape[0]),
        "decoder.attention.key_layer.weight": own["energy.key.weight"],
        "decoder.attention.query_layer.weight": own["energy.query.weight"],
        "decoder.attention.energy_layer.weight": own["energy.weight"][None],
        "decoder.bridge_layer.weight": own["bridges.0.weight"],
        "decoder.bridge_layer.bias": own["bridges.0.bias"],
    }
    return weights


def _transformer(model: EncoderDecoder) -> dict[str, Tensor]:
    weights = _tables(model)
    names = {  # theirs ← ours
        "encoder": {"src_src_att": "attention", "layer_norm": "around_attention.norm"},
        "decoder": {
            "trg_trg_att": "attention",
            "src_trg_att": "cross",
            "x_layer_norm": "around_attention.norm",
            "dec_layer_norm": "around_cross.norm",
        },
    }
    both = {
        "feed_forward.layer_norm": "around_feed_forward.norm",
        "feed_forward.pwff_layer.0": "feed_forward.0",
        "feed_forward.pwff_layer.3": "feed_forward.3",
    }
    for side, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        own = part.state_dict()
        for end in ("weight", "bias"):
            weights[f"{side}.layer_norm.{end}"] = own[f"norm.{end}"]
            for layer in range(part.config.layers if side == "decoder" else len(part.layers)):  # type: ignore[arg-type, union-attr]
                for name, ours in (names[side] | both).items():
                    there, here = f"{side}.layers.{layer}.{name}", f"layers.{layer}.{ours}"
                    if not name.endswith("att"):
                        weights[f"{there}.{end}"] = own[f"{here}.{end}"]
                        continue
                    keys, values = own[f"{here}.key_value.{end}"].chunk(2)
                    weights[f"{there}.q_layer.{end}"] = own[f"{here}.query.{end}"]
                    weights[f"{there}.k_layer.{end}"], weights[f"{there}.v_layer.{end}"] = keys, values
                    weights[f"{there}.output_layer.{end}"] = own[f"{here}.output.{end}"]
    return weights


def batches(lengths: list[int], tokens: int) -> list[list[int]]:
    """Sentences of like length, the longest first (its recurrent encoder wants that), of at most so many tokens."""
    made: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if made and lengths[made[-1][0]] * (len(made[-1]) + 1) <= tokens:
            made[-1].append(i)
        else:
            made.append([i])
    return made


def their_texts(
    joey: Any, tokenizers: TokenizerPair, sentences: list[str], device: torch.device, half: bool
) -> list[str]:
    """JoeyNMT's translations of sentences, in batches of like length as ours are."""
    from joeynmt.batch import Batch
    from joeynmt.search import search

    sources = [[*ids, END] for ids in tokenizers.source.encode_batch(sentences)]
    texts = [""] * len(sources)
    for rows in batches([len(source) for source in sources], ON_GPU if device.type == "cuda" else ON_CPU):
        lengths = torch.tensor([len(sources[i]) for i in rows])
        padded = torch.tensor([sources[i] + [PAD] * (int(lengths[0]) - len(sources[i])) for i in rows])
        padded = torch.where(padded < 4, torch.tensor(THEIR_IDS)[padded.clamp(max=3)], padded)
        batch = Batch(
            src=padded.to(device), src_length=lengths.to(device), src_prompt_mask=None, trg=None, trg_prompt_mask=None,
            indices=torch.arange(len(rows), device=device), device=device, pad_index=1, eos_index=3, is_train=False,
        )  # fmt: skip
        found, _, _ = search(
            joey, batch, max_output_length=2 * int(lengths[0]) + 10, beam_size=BEAMS, beam_alpha=ALPHA,
            autocast={"device_type": device.type, "enabled": half, "dtype": torch.float16},
        )  # fmt: skip
        for i, ids in zip(rows, found.tolist(), strict=True):
            kept = ids[: ids.index(3)] if 3 in ids else ids
            texts[i] = tokenizers.target.decode([THEIR_IDS.index(k) if k < 4 else k for k in kept])
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=None, help="only the first so many")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    for name in given.runs:
        compare(name, device, given.sentences, given.rounds)


def compare(name: str, device: torch.device, sentences: int | None, rounds: int) -> None:
    loaded = model_folders.load(name, str(device))
    if loaded.run is None or not isinstance(loaded.model, EncoderDecoder):
        raise ValueError(f"{name} is no run of a translator of ours")
    data = Run.open(loaded.run).recipe.data
    pairs = list(read(data, "test"))[:sentences]
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    model, tokenizers = loaded.model, loaded.tokenizers
    joey = converted(model.cpu()).to(device)
    model.to(device)

    def mine(sources: list[str]) -> list[str]:
        return [found.text for found in translate(model, tokenizers, sources, beams=BEAMS, length_penalty=ALPHA)]

    def other(sources: list[str], half: bool = False) -> list[str]:
        return their_texts(joey, tokenizers, sources, device, half)

    ways: dict[str, Callable[[list[str]], list[str]]] = {"regard": mine, "JoeyNMT": other}
    if device.type == "cuda":
        ways["JoeyNMT, fp16"] = partial(other, half=True)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times: dict[str, float] = {}
    for by, work in ways.items():
        try:
            work(sources[:20])  # what is set up at first use is not the work
        except RuntimeError as error:
            if "fp16" not in by:  # where JoeyNMT mixes precisions its recurrent decoder cannot
                raise
            print(f"{name}: {by:14} fails: {error}", flush=True)
            continue
        took = []
        for _ in range(rounds):
            start = clock()
            texts = work(sources)
            took.append(clock() - start)
        times[by] = statistics.median(took)
        bleu = scores.bleu(texts, references, tokenised=True).value
        slower = times[by] / times["regard"]
        print(f"{name}: {by:14} {times[by]:8.2f} s  BLEU {bleu:.2f}  {slower:.2f} × regard's time", flush=True)


if __name__ == "__main__":
    main()
