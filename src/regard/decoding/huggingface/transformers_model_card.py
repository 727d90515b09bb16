"""The model card of a folder for `transformers`, README.md: that of our model, with how to use it there."""

from __future__ import annotations

from .transformers_tokenizer import TARGET

REGARD_LINE, TRANSFORMERS_LINE = "library_name: regard", "library_name: transformers"
TRANSLATE = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

name = {name!r}  # the path of this folder, or its name on a hub
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
{target}batch = tokenizer(["A sentence to translate."], padding=True, return_tensors="pt")
print({decoder}.batch_decode(model.generate(**batch), skip_special_tokens=True))
"""
WRITE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

name = {name!r}  # the path of this folder, or its name on a hub
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
batch = tokenizer(["The beginning of a text"], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, do_sample=True), skip_special_tokens=True))
"""


def model_card(card: str | None, name: str, *, has_source: bool, joint: bool) -> str:
    """`card` is the one of our model, where it has one; `name` that of the folder.

    How to use the folder stands before the first section: what the card says of regard is about the model as it was.
    """
    task = "translation" if has_source else "text-generation"
    if card is None or not card.startswith("---\n"):
        card = f"---\n{REGARD_LINE}\npipeline_tag: {task}\n---\n\n# {name}\n" + (f"\n{card}" if card else "")
    decoder, target = "tokenizer", ""
    if has_source and not joint:
        decoder, target = "target", f'target = AutoTokenizer.from_pretrained(name, subfolder="{TARGET}")\n'
    script = (TRANSLATE if has_source else WRITE).format(name=name, decoder=decoder, target=target)
    section = (
        "## With transformers\n\nThis folder was written by `regard export --to transformers`; regard itself loads the "
        f"model that it was made from.\n\n```python\n{script}```\n"
    )
    introduction, heading, rest = card.replace(REGARD_LINE, TRANSFORMERS_LINE, 1).partition("\n## ")
    return introduction.rstrip("\n") + f"\n\n{section}" + (heading + rest if heading else "")
