"""CTranslate2, a C++ library for Transformers: export to it, and translation with what was exported."""

from .ctranslate2_engine import CTranslate2 as CTranslate2
from .ctranslate2_export import export_ctranslate2 as export_ctranslate2
