"""Models and batches of comparisons with JoeyNMT: regard's models, JoeyNMT's of the same sizes, random sentences."""

from __future__ import annotations

from typing import Any

import torch

from regard.data.batches import Batch
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
from regard.special_tokens import BEGIN, END, PAD

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


def their_parts(like: EncoderDecoderConfig) -> list[dict[str, Any]]:
    """Encoder and decoder of the same sizes, as JoeyNMT's configuration describes them."""
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
    return parts


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
    encoder, decoder = their_parts(like)
    model = build_model({"encoder": encoder, "decoder": decoder}, *vocabularies)
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
