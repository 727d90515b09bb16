"""Training and translating beside JoeyNMT 2.3: the same architecture, batches, search and machine, in one run.

    PYTHONPATH=<folder with joeynmt 2.3.0 and importlib_metadata> python -m benchmarks.joeynmt [--device cuda]

JoeyNMT's models are built by its own `build_model`, trained with its own loss, and searched by its own `search`. On a
GPU it runs in float32 and in its own mixed precision (float16 with a gradient scaler), and the faster of both counts.
Both libraries take turns, and the median of the ratios is printed. On a CPU it is CPU seconds, which other work on the
machine changes less.
Sentences are random ids with the lengths of ordinary ones: what is timed does not depend on which words they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from regard.data.batch import BEGIN, END, PAD, Batch
from regard.decoding import search
from regard.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.training.trainer.cuda_graphs import CudaGraphs

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.decoding import Hypothesis
    from regard.models import Loss

VOCABULARY = 8000


def batches(count: int, tokens: int, seed: int = 0) -> list[Batch]:
    """Batches of about `tokens` target tokens; sentences of one batch are of like length, as after bucketing."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        middle = int(torch.randint(8, 28, (), generator=random))
        rows = tokens // (middle + 2)
        lengths = [torch.randint(max(2, middle - 2), middle + 3, (rows,), generator=random) for _ in range(2)]
        source, target = (
            torch.randint(4, VOCABULARY, (rows, int(n.max())), generator=random) for n in (lengths[0], lengths[1] + 1)
        )
        target[:, 0] = BEGIN
        for ids, n in ((source, lengths[0]), (target, lengths[1] + 1)):
            ids[torch.arange(rows), n - 1] = END
            ids[torch.arange(ids.shape[1]) >= n[:, None]] = PAD
        made.append(Batch(source, lengths[0], target, lengths[1] + 1, torch.arange(rows)))
    return made


def ours(kind: str) -> EncoderDecoder:
    if kind == "bahdanau":
        encoder: EncoderConfig = RecurrentEncoderConfig(embedding=256, width=256, dropout=0.2)
        decoder: DecoderConfig = RecurrentDecoderConfig(embedding=256, width=512, dropout=0.2)
    else:
        settings: dict[str, Any] = {"width": 256, "heads": 4, "hidden": 1024, "layers": 4, "dropout": 0.2}
        encoder, decoder = TransformerEncoderConfig(**settings), TransformerDecoderConfig(**settings)
    return EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, encoder, decoder))


def theirs(like: EncoderDecoderConfig) -> Any:
    """JoeyNMT's model of the same sizes. Its recurrent decoder steps first, looks afterwards and feeds that back."""
    from types import SimpleNamespace

    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    vocabularies = [
        Vocabulary([f"w{n}" for n in range(size - 4)], special)
        for size in (like.source_vocabulary, like.target_vocabulary)
    ]
    parts = []
    for part in (like.encoder, like.decoder):
        if isinstance(part, RecurrentEncoderConfig | RecurrentDecoderConfig):
            parts.append({
                "type": "recurrent", "rnn_type": part.cell,
                "embeddings": {"embedding_dim": part.embedding, "scale": False}, "hidden_size": part.width,
                "bidirectional": True, "num_layers": part.layers, "dropout": part.dropout,
                "hidden_dropout": part.dropout, "attention": "bahdanau", "input_feeding": True, "init_hidden": "bridge",
            })  # fmt: skip
        else:
            parts.append({
                "type": "transformer", "embeddings": {"embedding_dim": part.width, "scale": True},
                "hidden_size": part.width, "ff_size": part.hidden, "num_layers": part.layers, "num_heads": part.heads,
                "dropout": part.dropout, "layer_norm": part.norm,
            })  # fmt: skip
    model = build_model({"encoder": parts[0], "decoder": parts[1]}, *vocabularies)
    model.loss_function = ("crossentropy", 0.1)
    return model


# Its vocabularies begin with <unk>, <pad>, <s>, </s>; ours with <pad>, <s>, </s>, <unk>.
THEIR_IDS = [1, 2, 3, 0]


def their_batch(batch: Batch, device: torch.device) -> Any:
    from joeynmt.batch import Batch as Theirs

    ids = torch.arange(VOCABULARY)
    ids[:4] = torch.tensor(THEIR_IDS)
    made = Theirs(
        src=ids[batch.source].to(device), src_length=batch.source_lengths.to(device), src_prompt_mask=None,
        trg=ids[batch.target].to(device), trg_prompt_mask=None, indices=batch.rows.to(device), device=device,
        pad_index=1, eos_index=3, is_train=True,
    )  # fmt: skip
    made.sort_by_src_length()  # its recurrent encoder wants that
    return made


def sentences(size: int, seed: int = 0) -> list[Batch]:
    """Batches of `size` sentences of ordinary lengths; several of one sentence, so that lengths vary."""
    return [
        Batch(*(x[:size] for x in (b.source, b.source_lengths, b.target, b.target_lengths, b.rows)))
        for b in batches(8 if size == 1 else 2, size * 30, seed)
    ]


def trainer(model: torch.nn.Module, loss: Callable[[Any], torch.Tensor], half: bool = False) -> Callable[[Any], None]:
    """One update; `half`: as JoeyNMT does it with `fp16: True`."""
    on_gpu = next(model.parameters()).is_cuda
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=on_gpu)
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, enabled=half):
            result = loss(batch)
        scaler.scale(result).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


@dataclass
class Work:
    """What is timed: a function and the inputs that it is called with, one after the other."""

    run: Callable[[Any], object]
    inputs: list[Any]

    def seconds(self, device: torch.device) -> float:
        """For all inputs, CPU seconds on a CPU."""
        on_gpu = device.type == "cuda"
        clock = time.perf_counter if on_gpu else time.process_time
        if on_gpu:
            torch.cuda.synchronize()
        start = clock()
        for x in self.inputs:
            self.run(x)
        if on_gpu:
            torch.cuda.synchronize()
        return clock() - start


def seconds_in_turns(works: dict[str, Work], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """The seconds of each, round by round, after some rounds that do not count: a GPU records graphs in them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + (3 if device.type == "cuda" else 1)):
        for name in list(seconds):
            try:
                seconds[name].append(works[name].seconds(device))
            except RuntimeError as error:  # JoeyNMT's recurrent decoder fails in float16
                print(f"{name}: {error}".splitlines()[0], flush=True)
                del seconds[name]
    return {name: each[-rounds:] for name, each in seconds.items()}


def their_works(work: Callable[[bool], Callable[[Any], object]], inputs: list[Any]) -> dict[str, Work]:
    """JoeyNMT's part, by precision; float16 on a GPU only."""
    works = {"JoeyNMT in float32": Work(work(False), inputs)}
    if inputs[0].src.is_cuda:
        works["JoeyNMT in float16"] = Work(work(True), inputs)
    return works


def speeds(tokens: int, seconds: dict[str, list[float]]) -> str:
    """Tokens per second of each, and the median of the ratios of the faster JoeyNMT and regard."""
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    fastest = min((name for name in seconds if name != "regard"), key=lambda name: middle[name])
    ratios = [other / own for other, own in zip(seconds[fastest], seconds["regard"], strict=True)]
    each = ", ".join(f"{name} {tokens / middle[name]:,.0f}" for name in seconds)
    return f"{each} tokens/s: {statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"


def our_search(model: EncoderDecoder, batch: Batch, longest: int) -> list[list[Hypothesis]]:
    with torch.no_grad():
        return search(model, model.encode(batch.source, batch.source_lengths), beams=5, longest=longest)


def their_search(model: Any, batch: Any, longest: int, half: bool = False) -> Any:
    from joeynmt.search import search

    autocast = {"device_type": "cuda", "enabled": half, "dtype": torch.float16}
    with torch.no_grad():
        return search(model, batch, max_output_length=longest, beam_size=5, beam_alpha=1.0, autocast=autocast)


def searcher(model: Any, longest: int, half: bool) -> Callable[[Any], object]:
    return partial(their_search, model, longest=longest, half=half)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=30, help="tokens of each translation")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32, 256], help="sentences translated at once")
    parser.add_argument("--search-only", action="store_true", help="no training")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--models", nargs="+", default=["bahdanau", "transformer"])
    given = parser.parse_args()
    device = torch.device(given.device)
    if given.threads:
        torch.set_num_threads(given.threads)
    data = batches(given.batches, given.tokens)
    tokens = sum(int((b.target_lengths - 1).sum()) for b in data)
    for kind in given.models:
        model = ours(kind).to(device).train()

        # As `regard train` does it: mixed precision in CUDA graphs on a GPU, plain float32 on a CPU.
        on_gpu = device.type == "cuda"
        loss_of = (
            CudaGraphs(model, smoothing=0.1, autocast=torch.bfloat16) if on_gpu else partial(model.loss, smoothing=0.1)
        )

        def our_loss(batch: Batch, loss_of: Callable[[Batch], Loss] = loss_of) -> torch.Tensor:
            loss = loss_of(batch)
            return loss.total / loss.tokens

        joey = theirs(model.config).to(device).train()

        def their_loss(batch: Any, joey: Any = joey) -> torch.Tensor:
            total: torch.Tensor = joey(return_type="loss", **vars(batch))[0]
            return total / batch.ntokens

        works = {"regard": Work(trainer(model, our_loss), [b.to(device) for b in data])}
        works |= their_works(partial(trainer, joey, their_loss), [their_batch(b, device) for b in data])
        if not given.search_only:
            print(f"{kind} training: {speeds(tokens, seconds_in_turns(works, device, given.rounds))}", flush=True)
        # Models as they are made: trained for a few steps, they would end their sentences anywhere. These never do.
        model = ours(kind).to(device).eval()
        joey = theirs(model.config).to(device).eval()
        for size in given.sizes:
            texts = sentences(size)
            count = size * len(texts) * given.longest
            works = {"regard": Work(partial(our_search, model, longest=given.longest), [b.to(device) for b in texts])}
            works |= their_works(partial(searcher, joey, given.longest), [their_batch(b, device) for b in texts])
            line = speeds(count, seconds_in_turns(works, device, given.rounds))
            print(f"{kind} beam 5, {size} sentences: {line}", flush=True)


if __name__ == "__main__":
    main()
