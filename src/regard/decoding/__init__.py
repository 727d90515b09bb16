"""Decoding: greedy and beam search, sampling, translation, text generation, classification, export."""

from .beam import Hypothesis as Hypothesis
from .ctranslate2_export import CTranslate2 as CTranslate2
from .ctranslate2_export import export_ctranslate2 as export_ctranslate2
from .sampling import Sample as Sample
from .search import search as search
from .text_generation import generate as generate
from .translation import Translation as Translation
from .translation import translate as translate
