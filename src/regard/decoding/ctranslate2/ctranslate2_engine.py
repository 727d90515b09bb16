"""Translation with CTranslate2, a C++ library, from the folder that `export_ctranslate2` wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...data.batch import BEGIN, PAD
from ..beam_search import limits
from ..beam_state import Hypothesis

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from ...data import TokenizerPair
    from ...models.config_base import TaskName
    from ..beam_search import SearchSettings


class CTranslate2:
    """The engine, for `translate`: it reads a folder that `export_ctranslate2` wrote.

    Greedy search gives the same tokens as ours. Its beam search normalises by |y|^α, not by Wu et al.'s
    ((5 + |y|) / 6)^α, so the ranking can differ. It gives no weights and no `logprob` (NaN): its scores exclude <pad>
    and <s>, and </s> where the limit ended a sentence.
    """

    task: ClassVar[TaskName] = "translate"
    """As a `PretrainedModel` has it: `export_ctranslate2` writes translators only."""

    def __init__(self, folder: str | os.PathLike[str], tokenizers: TokenizerPair, device: str = "cpu") -> None:
        folder = Path(folder)
        if not (folder / "model.bin").is_file():
            raise ValueError(f"{folder} holds no model of CTranslate2 (model.bin); write one with: regard export")
        place, threads = torch.device(device), torch.get_num_threads()
        self._translator: Any = library().Translator(
            str(folder), device=place.type, device_index=place.index or 0, intra_threads=threads
        )
        self._source, self._target = vocabulary(tokenizers.source), vocabulary(tokenizers.target)
        self._ids = {piece: i for i, piece in enumerate(self._target)}

    def __call__(self, sources: list[Any], **how: Unpack[SearchSettings]) -> list[list[Hypothesis]]:
        if how.get("weights"):
            raise ValueError("the engine ctranslate2 gives no weights to show; use the engine torch")
        sample = how.get("sample")
        beams, best = how.get("beams", 5), how.get("best", 1)
        longest = limits(torch.tensor([len(source) for source in sources]), how.get("longest")).tolist()
        options: dict[str, Any] = {"beam_size": beams}
        if sample is not None:
            # It samples with a beam of one; several samples are its several hypotheses.
            options = {
                "beam_size": 1,
                "sampling_topk": sample.top_k,
                "sampling_topp": sample.top_p,
                "sampling_temperature": sample.temperature,
            }
            if sample.seed is not None:
                library().set_random_seed(sample.seed)
        results = self._translator.translate_batch(
            [[self._source[i] for i in source] for source in sources],
            **options,
            num_hypotheses=best,
            length_penalty=how.get("length_penalty", 1.0),
            coverage_penalty=how.get("coverage_penalty", 0.0),
            min_decoding_length=0,
            max_decoding_length=max(longest),
            max_input_length=0,
            suppress_sequences=[[self._target[PAD]], [self._target[BEGIN]]],
            return_scores=True,
        )
        return [
            [
                Hypothesis([self._ids[piece] for piece in pieces[:limit]], score, math.nan)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result, limit in zip(results, longest, strict=True)
        ]


def vocabulary(tokenizer: Any) -> list[str]:
    """The pieces of all ids, in order."""
    pieces: list[str] = tokenizer.pieces(range(len(tokenizer)))
    return pieces


def library() -> Any:
    """The package `ctranslate2`, or an error that says how to install it."""
    try:
        import ctranslate2  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ValueError("CTranslate2 is not installed; install it with: pip install 'regard[export]'") from missing
    return ctranslate2
