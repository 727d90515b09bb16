"""Seen: every call of attention inside a `watch` block, in the order of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from ...viewer.export.widget import Widget
    from ..analysis.token_kinds import Text
    from .call import Call
    from .storage import Keeper

HEADER = ("layer", "kind", "heads", "queries", "keys", "computed by", "fidelity")


class Seen:
    """A list of `Call`s that can be asked by name: `seen["encoder.layer.3"]`. Printed, it is a table of them."""

    def __init__(self, model: str = "", keeper: Keeper | None = None) -> None:
        self._keeper = keeper  # its files are removed with it
        self.calls: list[Call] = []
        self.model = model
        self.tokens: list[list[str]] | None = None
        """The words beside the rows and columns, one list for each entry of the batch, where somebody gave them."""
        self.sides: dict[str, list[str]] = {}
        """Where queries and keys are different texts: the tokens that were read ("source"), that each row wrote
        ("target"), and that it had read of its own by then ("read")."""
        self.text: Text | None = None
        """What the model read, where one text was read and is known."""
        self.missed: list[str] = []
        """What could not be kept or understood, and why."""
        self.advice = ""
        """What to do where nothing was seen at all."""

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    def __getitem__(self, name: str | int | tuple[str, int]) -> Call:
        """By number, by name (any whole part of the dotted path), or by name and which of several of that name."""
        if isinstance(name, int):
            return self.calls[name]
        key, which = name if isinstance(name, tuple) else (name, None)
        found = [call for call in self.calls if f".{key}." in f".{call.name}."]
        exact = [call for call in found if call.name == key]
        found = exact or found
        if which is not None and -len(found) <= which < len(found):
            return found[which]
        if which is None and len(found) == 1:
            return found[0]
        if not found:
            there = f"there are {_some([call.name for call in self.calls])}" if self.calls else self._nothing()
            raise KeyError(f"no attention was called in {key!r}; {there}")
        names = _some([call.name for call in found])
        raise KeyError(f"{key!r} is {len(found)} calls: {names}; take seen[{key!r}, 0] and so on")

    @property
    def names(self) -> list[str]:
        """The modules that attended, each once, in order."""
        return list(dict.fromkeys(call.name for call in self.calls))

    @property
    def prompt(self) -> int:
        """How many queries the first forward pass had: the prompt's tokens, before the generated ones."""
        return self.calls[0].steps[0] if self.calls else 0

    @property
    def faithful(self) -> bool | None:
        """Whether every call is what was computed, up to rounding, measured on its output.

        None where nothing speaks against it and something was not measured: see `unproven`.
        """
        verdicts = [call.fidelity().kept for call in self.calls]
        if self.missed or False in verdicts:
            return False
        return None if not verdicts or None in verdicts else True

    @property
    def unproven(self) -> list[Call]:
        """The calls whose output was not seen, or was not W·v (dropout): what is shown of them was not measured."""
        return [call for call in self.calls if call.fidelity().kept is None]

    def save(self, path: str | Path) -> None:
        """Write everything to a folder, which `regard.load_trace` reads: safetensors and JSON.

        A call that can no longer be computed is named among the missed instead.
        """
        from .trace import save

        lost = [call for call in self.calls if call.fidelity().lost]
        if lost:
            rest = Seen(self.model, self._keeper)
            rest.calls = [call for call in self.calls if call not in lost]
            rest.tokens, rest.sides, rest.text = self.tokens, self.sides, self.text
            rest.missed = [*self.missed, *(f"{call.name}: {call.fidelity().word}" for call in lost)]
            save(rest, path)
        else:
            save(self, path)

    def show(self) -> Widget:
        """The viewer in a notebook: Jupyter, VS Code, Colab, marimo."""
        from ...viewer.export.widget import widget

        return widget(self)

    def to_html(self, path: str | Path, size: int = 256) -> None:
        """One file with the viewer and all it takes, for a browser without a network.

        Matrices are kept whole up to `size` tokens, and pooled to `size` × `size` cells beyond.
        """
        from ...viewer.export.single_file import write

        write(self, path, size)

    # Printed

    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells: one row per call."""
        return [_cells(call) for call in self.calls]

    def __repr__(self) -> str:
        if not self.calls:
            return "\n".join([f"Seen: nothing. {self._nothing()}", *self.missed])
        rows = [HEADER, *self.rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(HEADER))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"! {word}" for word in self.missed)])

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text as Words  # names are not markup

        table = Table(*HEADER, caption=Words("\n".join(self.missed), style="red") if self.missed else None, box=None)
        for call, row in zip(self.calls, self.rows(), strict=True):
            table.add_row(*map(Words, row), style="red" if call.fidelity().kept is False else None)
        return table

    def _nothing(self) -> str:
        return self.advice or "no attention was called inside the block"


def _cells(call: Call) -> tuple[str, ...]:
    faith = call.fidelity()
    try:
        *_, queries, keys = call.shape
    except Exception:  # it is worked out only now, and what it takes is gone; fidelity says why
        return call.name, "?", "?", "?", "?", "?", f"NOT known: {faith.word}"
    if faith.lost:
        word = f"NOT known: {faith.word}"
    elif faith.error is None:
        word = f"? ({faith.word})"
    elif faith.kept:
        word = f"{faith.error:.1e}"
    else:
        word = f"{faith.error:.1e} NOT what was computed"
    if faith.error is not None and faith.word:
        word += f" ({faith.word})"
    steps = call.steps
    shown = str(queries) if len(steps) == 1 else f"{steps[0]} + {queries - steps[0]}"
    return call.name, call.kind, str(call.heads), shown, str(keys), call.origin, word


def _some(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
