"""Seen: the attention calls recorded by a `watch` block, in order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..recorder import CallRecorder
from .tensor_storage import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from ...viewer.export.widget import Widget
    from ..result_table import ResultTable
    from .attention_call import Call
    from .tokenized_text import TokenizedText

HEADER = ("layer", "kind", "heads", "queries", "keys", "computed by", "fidelity")


class Seen:
    """A list of `Call`s, indexed by number or name: `seen["encoder.layer.3"]`. It prints as a table."""

    def __init__(self, model: str = "", recorder: CallRecorder | None = None) -> None:
        self._recorder = CallRecorder() if recorder is None else recorder
        self.model = model
        self.tokens: list[list[str]] | None = None
        """Labels of rows and columns, one list for each entry of the batch, if set."""
        self.sides: dict[str, list[str]] = {}
        """Labels for encoder-decoder models: the tokens of the encoder ("source"), the token each decoder row
        generates ("target"), and the tokens the decoder reads ("read")."""
        self.text: TokenizedText | None = None
        """The text that the model read, if it was one text and is known."""

    @property
    def calls(self) -> list[Call]:
        """All calls, in order."""
        return self._recorder.settle().calls

    @property
    def missed(self) -> list[str]:
        """Calls that could not be recorded or kept, and modules that ran unseen, each with its reason."""
        return self._recorder.settle().missed

    @property
    def advice(self) -> str:
        """What to do if no call was recorded."""
        return self._recorder.settle().advice

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    def __getitem__(self, name: str | int | tuple[str, int]) -> Call:
        """By number, by name (whole components of the dotted path), or by name and index among calls of that name."""
        if isinstance(name, int):
            return self.calls[name]
        key, index = name if isinstance(name, tuple) else (name, None)
        matches = [call for call in self.calls if f".{key}." in f".{call.name}."]
        matches = [call for call in matches if call.name == key] or matches
        if index is not None and -len(matches) <= index < len(matches):
            return matches[index]
        if index is None and len(matches) == 1:
            return matches[0]
        if not matches:
            known = f"there are {_first_names(self.calls)}" if self.calls else self._empty_message()
            raise KeyError(f"no attention was called in {key!r}; {known}")
        raise KeyError(f"{key!r} is {len(matches)} calls: {_first_names(matches)}; take seen[{key!r}, 0] and so on")

    @property
    def names(self) -> list[str]:
        """The modules that called attention, each once, in order."""
        return list(dict.fromkeys(call.name for call in self.calls))

    @property
    def nbytes(self) -> int:
        """The memory that is held: of queries, keys, values, masks, and some rows of each output.

        Memory that several calls share, or that the model itself still holds, is counted once.
        """
        storages = [x.untyped_storage() for call in self.calls for x in call.tensors() if not x.is_nested]
        return sum({x.data_ptr(): x.nbytes() for x in storages}.values())

    @property
    def matrices(self) -> list[str]:
        """The calls whose weights are held as a whole, T_q × T_k numbers for each head, with their size and reason.

        All others hold queries and keys, and grow with the length.
        """
        return [
            f"{call.name}: {format_bytes(_weight_bytes(call))}, {call.matrix}" for call in self.calls if call.matrix
        ]

    @property
    def prompt(self) -> int:
        """The number of queries of the first forward pass: the tokens of the prompt, before generated ones."""
        return self.calls[0].steps[0] if self.calls else 0

    @property
    def faithful(self) -> bool | None:
        """Whether all calls reproduce the model's outputs up to rounding, and every attention module that ran was seen.

        None if some were not measured (see `unproven`) and no other differs.
        """
        verdicts = [call.fidelity().faithful for call in self.calls]
        if self.missed or False in verdicts:
            return False
        return None if not verdicts or None in verdicts else True

    @property
    def unproven(self) -> list[Call]:
        """The calls whose fidelity cannot be measured here: their output was not seen, or was not W·v (dropout), or it
        was measured before they were written to a trace."""
        return [call for call in self.calls if call.fidelity().faithful is None]

    def save(self, path: str | Path) -> None:
        """Write a trace to a folder, as safetensors and JSON; `regard.load_trace` reads it.

        A call that can no longer be computed is listed in `missed` instead.
        """
        from .trace_folder import save

        save(self, path)

    def show(self) -> Widget:
        """Show the viewer in a notebook: Jupyter, VS Code, Colab, marimo."""
        from ...viewer.export.widget import widget

        return widget(self)

    def to_html(self, path: str | Path, size: int = 256) -> None:
        """Write the viewer and its data to one HTML file, which needs no network.

        Matrices of more than `size` tokens are pooled to `size` × `size` cells.
        """
        from ...viewer.export.single_file import write

        write(self, path, size)

    def table(self) -> ResultTable:
        """One row per call: shapes, what computed it, and the fidelity error (None if it cannot be measured)."""
        from ..result_table import ResultTable

        rows = []
        for call in self.calls:
            measured, (*_, queries, keys) = call.fidelity(), call.shape
            row = call.name, call.layer, call.kind, call.heads, queries, keys, call.origin, measured.error
            rows.append((*row, measured.faithful))
        names = ("name", "layer", "kind", "heads", "queries", "keys", "computed by", "fidelity", "faithful")
        return ResultTable({name: [row[at] for row in rows] for at, name in enumerate(names)})

    def to_frame(self) -> Any:
        """The table as a data frame of pandas or polars."""
        return self.table().to_frame()

    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells: one row per call."""
        return [_cells(call) for call in self.calls]

    def __repr__(self) -> str:
        if not self.calls:
            return "\n".join([f"Seen: nothing. {self._empty_message()}", *self.missed])
        rows = [HEADER, *self.rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(HEADER))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"! {message}" for message in self.missed)])

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text  # so that names are not read as markup

        table = Table(*HEADER, caption=Text("\n".join(self.missed), style="red") if self.missed else None, box=None)
        for call, row in zip(self.calls, self.rows(), strict=True):
            table.add_row(*map(Text, row), style="red" if call.fidelity().faithful is False else None)
        return table

    def _empty_message(self) -> str:
        return self.advice or "no attention was called inside the block"


def _cells(call: Call) -> tuple[str, ...]:
    fidelity = call.fidelity()
    try:
        *_, queries, keys = call.shape
    except Exception:  # a deferred call whose inputs are gone; fidelity says why
        return call.name, "?", "?", "?", "?", "?", f"NOT known: {fidelity.remark}"
    if fidelity.lost:
        verdict = f"NOT known: {fidelity.remark}"
    elif fidelity.error is None:
        verdict = f"? ({fidelity.remark})"
    elif fidelity.faithful is not False:
        verdict = f"{fidelity.error:.1e}"
    else:
        verdict = f"{fidelity.error:.1e} NOT what was computed"
    if fidelity.error is not None and fidelity.remark:
        verdict += f" ({fidelity.remark})"
    steps = call.steps
    rows = str(queries) if len(steps) == 1 else f"{steps[0]} + {queries - steps[0]}"
    origin = f"{call.origin}, without {call.ablated}" if call.ablated else call.origin
    heads, whole = str(call.heads), call.all_heads
    if whole != call.heads:
        heads += f" of {whole}, from {call.head_numbers.start}"
    return call.name, call.kind, heads, rows, str(keys), origin, verdict


def _weight_bytes(call: Call) -> int:
    return math.prod(call.shape) * call.record.energies.a.element_size()


def _first_names(calls: Sequence[Call]) -> str:
    names = list(dict.fromkeys(call.name for call in calls))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
