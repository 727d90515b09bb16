"""Decoding: greedy and beam search, sampling, translation, text generation, classification, export."""

from .beam import Hypothesis as Hypothesis
from .beam import Sample as Sample
from .beam import search as search
from .ctranslate2 import CTranslate2 as CTranslate2
from .ctranslate2 import export_ctranslate2 as export_ctranslate2
from .ensemble import Ensemble as Ensemble
from .ensemble import target_logprobs as target_logprobs
from .generation import generate as generate
from .translation import Translation as Translation
from .translation import translate as translate


def __getattr__(name: str) -> object:
    if name == "rescore":
        raise ImportError(
            "regard.decoding.rescore is gone: add target_logprobs of the other model to the scores of "
            "translate(…, best=N), and sort"
        )
    raise AttributeError(f"module 'regard.decoding' has no attribute {name!r}")
