"""ModuleOutputs: which modules leave their outputs unchanged, so that no copy is needed and their calls are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import call_routing
from ..call_inputs_and_output import some_rows
from .call_log import WHOLE_OUTPUTS

if TYPE_CHECKING:
    from torch import Tensor

    from .call_log import CallLog, LoggedCall
    from .captured_call import CapturedCall, CapturedSteps

NEW_OUTPUTS = 8
"""A module that calls attention this often before another one does is examined after these calls."""


class ModuleOutputs:
    """What one watch learns of the modules that call attention, for its next calls and for the next watch."""

    def __init__(
        self,
        fixed: dict[str, bool],
        names: dict[int, str],
        known: dict[int, LoggedCall | None] | None,
        log: CallLog | None,
        pending: dict[str, CapturedSteps],
    ) -> None:
        """`fixed` says of modules that ran before whether they left their output unchanged; `names` has the names of
        modules by id, and `known` the ids of those whose calls go into `log`. `pending` has the steps of each
        module that its next call may continue.
        """
        self._fixed, self._names, self._known, self._log, self._pending = fixed, names, known, log, pending
        self._loggable: dict[str, int] = {}  # modules that are known once they have left their output unchanged
        self._new: list[tuple[Tensor, int, CapturedCall]] = []  # of one module, which ran for the first time
        self._new_name = ""
        self._bytes = 0

    def keep(self, name: str, call: CapturedCall) -> None:
        """Copy some rows of the output, unless the module left its outputs unchanged before."""
        if self._new_name != name:
            self.check()
        if call.out_version is not None:  # not an inference tensor
            if self._fixed.get(name) and self._bytes < WHOLE_OUTPUTS:
                self._bytes += call.out.nbytes
                return
            if len(self._new) == NEW_OUTPUTS:
                self.check()
            elif name not in self._fixed:
                self._new.append((call.out, call.out_version, call))
                self._new_name = name
        call.copy_rows()

    def check(self) -> None:
        """After a module ran for the first time: whether its outputs are still as they were."""
        if not self._new:
            return
        new, self._new = self._new, []
        fixed = True
        if new[0][0].is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a comparison waits for the GPU, and would end the capture; the next run is examined
        try:
            with torch.no_grad(), call_routing.suspend_reports():
                for out, version, call in new:
                    fixed = fixed and out._version == version and torch.equal(some_rows(out)[1], call.out)
        except Exception:  # a tensor without values: meta, fake
            fixed = False
        self._fixed[self._new_name] = fixed
        number = self._loggable.pop(self._new_name, None)
        if fixed and number is not None:
            self._add_known(self._new_name, number)

    def learn(self, number: int) -> None:
        """A call of the module of this id went a way that can be logged: log them once its output is fixed."""
        name = self._names.get(number)
        if self._log is None or name is None:
            return
        if number in self._log.last or self._fixed.get(name):
            self._add_known(name, number)
        else:
            self._loggable[name] = number

    def add_changed(self, name: str) -> None:
        """The module changed an output: the next watch copies rows, and its calls are logged no more."""
        self._fixed[name] = False
        for number in [number for number, other in self._names.items() if other == name]:
            for known in (self._known, None if self._log is None else self._log.last):
                if known is not None:
                    known.pop(number, None)

    def _add_known(self, name: str, number: int) -> None:
        """Log the next calls of a module. The last one was captured, and may be continued by the next."""
        if self._log is not None and self._known is not None:
            steps = self._pending.get(name)
            self._known[number] = None
            self._log.last[number] = None if steps is None else steps.calls[-1].logged(number)
