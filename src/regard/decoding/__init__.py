"""Decoding: greedy and beam search, sampling, translation, text generation, classification, export."""

from .beam import Hypothesis as Hypothesis
from .beam import search as search
from .ctranslate2 import CTranslate2 as CTranslate2
from .ctranslate2 import export_ctranslate2 as export_ctranslate2
from .ensemble import Ensemble as Ensemble
from .rescoring import rescore as rescore
from .rescoring import target_logprobs as target_logprobs
from .sampling import Sample as Sample
from .text_generation import generate as generate
from .translation import Translation as Translation
from .translation import translate as translate
