"""Switches: parts of a Transformer that a recipe can leave out, each with a small task that shows what it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .recipe_loader import load_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .recipe import Recipe


class Switch(NamedTuple):
    """`recipe` with `settings` is the whole model; `off` are the keys that leave the part out."""

    about: str
    recipe: str
    settings: tuple[str, ...]
    off: tuple[str, ...]
    generates: bool = False
    """Whether a text is generated, too: the loss alone does not show what is wrong."""

    def load(self, *, broken: bool, settings: Sequence[str] = ()) -> Recipe:
        """The recipe of one of the two runs; `settings` are the reader's own and come last."""
        return load_recipe(self.recipe, [*self.settings, *(self.off if broken else ()), *settings])


_CURVE = ("training.updates=150", "training.validate_every=25", "training.save_every=150", "training.average=1")
_DEEP = (
    *_CURVE,
    "training.tokens=512",
    "encoder.layers=12",
    "encoder.width=32",
    "encoder.hidden=64",
    "encoder.dropout=0.0",
    "head.dropout=0.0",
)

SWITCHES: dict[str, Switch] = {
    "positions": Switch(
        "no positions: the words of a review are a set",
        "transformer-opinions",
        (*_CURVE, "training.updates=400", "training.save_every=400"),
        ("encoder.positions=none",),
    ),
    "norm": Switch("no layer norms, in twelve layers", "transformer-opinions", _DEEP, ("encoder.norm=none",)),
    "residual": Switch(
        "no residual connections, in twelve layers", "transformer-opinions", _DEEP, ("encoder.residual=false",)
    ),
    "scaling": Switch(
        "energies of one head, 128 wide, are not divided by √128",
        "transformer-opinions",
        (*_CURVE, "encoder.heads=1"),
        ("encoder.scaled=false",),
    ),
    "mask": Switch(
        "no mask: in training every token sees the one it is to predict",
        "transformer-phrases",
        (*_CURVE, "training.updates=300", "training.save_every=300"),
        ("decoder.masked=false",),
        generates=True,
    ),
    "heads": Switch("one head as wide as the four", "transformer-opinions", _CURVE, ("encoder.heads=1",)),
}
