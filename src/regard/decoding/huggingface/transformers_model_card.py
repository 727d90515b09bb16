"""The model card of a folder for `transformers`, README.md: that of our model, with how to use it there."""

from __future__ import annotations

from .transformers_tokenizer import TARGET

OURS, THEIRS = "library_name: regard", "library_name: transformers"
TRANSLATE = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("{name}"), AutoTokenizer.from_pretrained("{name}")
batch = tokenizer(["A sentence to translate."], padding=True, return_tensors="pt")
print({decoder}.batch_decode(model.generate(**batch), skip_special_tokens=True))
"""
WRITE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{name}"), AutoTokenizer.from_pretrained("{name}")
batch = tokenizer(["The beginning of a text"], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, do_sample=True), skip_special_tokens=True))
"""
TARGET_TOKENIZER = 'AutoTokenizer.from_pretrained("{name}", subfolder="{folder}")'


def model_card(card: str | None, name: str, *, has_source: bool, joint: bool) -> str:
    """`card` is the one of our model, where it has one; `name` that of the folder."""
    task = "translation" if has_source else "text-generation"
    if card is None or not card.startswith("---\n"):
        card = f"---\n{OURS}\npipeline_tag: {task}\n---\n\n# {name}\n" + (f"\n{card}" if card else "")
    decoder = "tokenizer" if joint or not has_source else TARGET_TOKENIZER.format(name=name, folder=TARGET)
    script = (TRANSLATE if has_source else WRITE).format(name=name, decoder=decoder)
    section = f"\n## With transformers\n\n```python\n{script}```\n\nWritten by `regard export --to transformers`.\n"
    return card.replace(OURS, THEIRS, 1).rstrip("\n") + "\n" + section
