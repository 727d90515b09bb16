"""Two translators that ship with regard, and the attention weights of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ..decoding import load_model_and_tokenizers, translate
from ..seeing.alignment.word_level_weights import translation_word_weights
from ..seeing.drawing.terminal_heatmap import heatmap
from .terminal_layout import answer, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

MODELS = {"Bahdanau 2014": "tatoeba-bahdanau-en-fr", "Transformer 2017": "tatoeba-transformer-en-fr"}
SENTENCES = [
    "Where is the library?",
    "My brother bought a small white house near the sea.",
    "I would have called you if I had known that you were here.",
]


def sections() -> Iterator[RenderableType]:
    rows = table("English", *MODELS)
    for column in rows.columns:
        column.justify = "left"
        column.overflow = "fold"
    translations = {}
    for name, shipped in MODELS.items():
        loaded = load_model_and_tokenizers.load(shipped)
        translations[name] = list(translate(loaded.model, loaded.tokenizers, SENTENCES, weights=True))
    for number, sentence in enumerate(SENTENCES):
        rows.add_row(sentence, *(answer(translations[name][number].text) for name in MODELS), end_section=True)
    yield section(
        "Two translators",
        "encoder → annotations → attention → decoder",
        rows,
        "Both were trained on sentences from tatoeba.org (CC BY 2.0) and came with the package.",
    )
    weights, target, source = translation_word_weights(translations["Bahdanau 2014"][1])
    yield section(
        "Where Bahdanau's model looks",
        "w_t = softmax_j(v·tanh(W s_{t−1} + U h_j))",
        heatmap(weights, target, source),
        "Each row is a word it writes, each column one it reads. The training data do not say which belong together.",
    )
    yield Text('Try it: regard translate --show --model tatoeba-bahdanau-en-fr "A sentence."\n', style="bold")
