"""Import paths that earlier versions documented: they still import, from where their names are now."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

MOVED = {
    "regard.data.corpora.phrasebook.lecture_sentences": "regard.data.corpora.phrasebook.lecture_grammar",
    "regard.data.inverse_document_frequency": "regard.data.tokenizer_pair",
    "regard.decoding.explainable_answers": "regard.decoding.answer_scores",
    "regard.decoding.load_model_and_tokenizers": "regard.decoding.model_folders",
    "regard.layers.log_mel": "regard.layers.sound",
    "regard.models.annotations": "regard.models.configurations",
    "regard.models.decoders_by_tag": "regard.models.several_decoders",
    "regard.seeing.alignment.word_alignment": "regard.seeing.align",
    "regard.seeing.capture.huggingface_text_model": "regard.seeing.text_models",
    "regard.seeing.drawing.picture_overlay": "regard.seeing.figures",
    "regard.training.score.forced_alignment": "regard.training.evaluation",
    "regard.viewer.data.library": "regard.viewer.library",
    "regard.viewer.data.trace_view": "regard.viewer.trace_view",
    "regard.viewer.http.server": "regard.viewer.server",
}


class MovedModules:
    """A finder and loader that is asked last, where no file has the name of a module.

    It has no base class: importlib.abc takes longer to import than the command line.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_folder = any(old.startswith(f"{name}.") for old in MOVED)
        return ModuleSpec(name, self, is_package=is_folder) if name in MOVED or is_folder else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in MOVED:
            there = vars(import_module(MOVED[module.__name__]))
            vars(module).update({name: value for name, value in there.items() if not name.startswith("__")})


def install() -> None:
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
