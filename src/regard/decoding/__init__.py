"""Decoding: greedy and beam search, sampling, translation, text generation, classification, export."""

from .beam_search import search as search
from .beam_state import Hypothesis as Hypothesis
from .ctranslate2 import CTranslate2 as CTranslate2
from .ctranslate2 import export_ctranslate2 as export_ctranslate2
from .ensemble import Ensemble as Ensemble
from .rescoring import rescore as rescore
from .rescoring import target_logprobs as target_logprobs
from .sampling import Sample as Sample
from .text_generation import generate as generate
from .translation import Translation as Translation
from .translation import translate as translate
