"""WeightMatrix: what is kept of a call instead of its weights, and which matrices and queries are selected."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ..block_indices import as_range, select, span
from ..kernels.statistics.matrix_region import row_state as kernel_row_state
from ..normalizers.normalizer import RowState
from ..tensor_versions import TensorVersions
from .weight_blocks import row_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from jaxtyping import Float
    from torch import Tensor

    from ..energies.lazy_energy_matrix import EnergyMatrix
    from ..normalizers.normalizer import Normalizer


class WeightMatrix:
    """The energies, the normalizer and the row states of the selected rows of a call of `attend`."""

    def __init__(
        self, energies: EnergyMatrix, normalize: Normalizer, state: Tensor | None = None, *, vector: bool = False
    ) -> None:
        self.energies = energies
        self.normalize = normalize.map_tensors(lambda x: x.detach().clone() if x.requires_grad else x)
        """The normalizer as it was: learned tensors are copied, because an optimizer changes them in place."""
        self.detached = energies.detached()
        """The energies that weights are computed from: no graph, learned tensors copied."""
        self.kernel_state = None if state is None else state.detach().reshape(energies.count, energies.queries)
        """The state [n, T_q] that the kernel left, one number per row, for all matrices and queries."""
        self._kernel = None if self.kernel_state is None else _KernelState(self.kernel_state, normalize)
        self.entries: Sequence[int] = range(energies.count)
        """Which matrices are selected, counted over the flattened batch."""
        self.queries: Sequence[int] = range(energies.queries)
        """Which queries are selected."""
        learned = [*energies.learned(), *normalize.tensors()]
        self._live_normalize = normalize
        used = [*energies.references(), *normalize.function_tensors()]
        self._fixed = TensorVersions([*used, *self.detached.learned(), *self.normalize.tensors()])
        self._learned = TensorVersions([x for x in learned if x.requires_grad])
        self._flat: EnergyMatrix | None = None
        self._own: RowState | None = None  # the state of the selected rows
        self._shape = energies.batch
        self._vector = vector  # one query, given as a vector: results have no dimension for queries

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k], and [*batch, T_k] where the query was one vector."""
        return (*self._shape, *(() if self._vector else (len(self.queries),)), self.energies.keys)

    @property
    def sinks(self) -> Float[Tensor, " n"] | None:
        """The energy of the sink of each selected matrix; None where the softmax has none."""
        sink = self.normalize.sink
        if sink is None:
            return None
        every = torch.as_tensor(sink, dtype=self.energies.precision, device=self.device).expand(self.energies.batch)
        return every.reshape(-1)[span(self.entries, self.device)]

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """[*batch]"""
        return self._shape

    @property
    def nbytes(self) -> int:
        """Bytes kept: queries, keys and the row state. The matrix would take 4 · T_q · T_k per head in float32."""
        state = self._own or () if self.kernel_state is None else (self.kernel_state,)
        return sum(x.numel() * x.element_size() for x in (self.energies.a, self.energies.b, *state) if x is not None)

    # Selection

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Self:
        """Pick from the leading dimensions: `w[0]`, `w[0, 3]`, `w[:, 2:4]`."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > len(self._shape) or not all(isinstance(x, int | slice) for x in index):
            raise IndexError(
                f"the leading shape is {list(self._shape)}, got the index {index}; pick queries with .rows(…)"
            )
        every = torch.tensor(list(self.entries)).view(self._shape)
        try:
            chosen = every[index]
        except IndexError as error:
            raise IndexError(f"{error}; the leading shape is {list(self._shape)}") from None
        part = self._part()
        part._shape, part.entries = tuple(chosen.shape), as_range(chosen.flatten().tolist())
        return part

    def rows(self, queries: int | slice | Sequence[int]) -> Self:
        """Only these queries; one query stays a row: shape [*batch, 1, T_k]."""
        part = self._part()
        part.queries, part._vector = select(queries, self.queries, "query"), False
        return part

    def _part(self) -> Self:
        part = copy(self)
        part._own = None
        return part

    # What weights are computed from

    @property
    def device(self) -> torch.device:
        return self.energies.a.device

    def flat(self) -> EnergyMatrix:
        """`detached` with one leading dimension. Raises where the inputs of `attend` were changed since."""
        self.check_unchanged(learned=False)
        if self._flat is None:
            self._flat = self.detached.flat()
        return self._flat

    def row_state(self) -> RowState:
        """The state of the selected rows, [n, rows]: what the kernel left, or computed now by one pass over them."""
        if self._own is None:
            self._own = self._compute_state()
        return self._own

    def _compute_state(self) -> RowState:
        self.flat()  # raises where the inputs were changed
        state = None
        if self._kernel is not None and self._kernel.holds:
            entries, rows = self._index()
            state = RowState(self._kernel.state[entries][:, rows])
        if state is None:
            state = kernel_row_state(self)
        return row_state(self) if state is None else state

    def _needs_graph(self) -> bool:
        energies = self.energies
        normalize = self._live_normalize
        known = [*energies.references(), *energies.learned(), *normalize.tensors(), *normalize.function_tensors()]
        opaque = energies.form.opaque or any(x.opaque for x in energies.modifiers)  # may close over parameters
        return torch.is_grad_enabled() and (opaque or any(x.requires_grad for x in known))

    def _live(self) -> EnergyMatrix:
        """The energies with their graph and one leading dimension."""
        self.check_unchanged(learned=True)
        return self.energies.flat()

    def check_unchanged(self, *, learned: bool) -> None:
        """Raise where the inputs of `attend` were changed since; with `learned`, parameters of the energy, too."""
        for versions in (self._fixed, self._learned) if learned else (self._fixed,):
            versions.require_unchanged(
                "so the weights it used cannot be computed; read them before the change (before optimizer.step())"
            )

    def _index(self) -> tuple[slice | Tensor, slice | Tensor]:
        return span(self.entries, self.device), span(self.queries, self.device)


class _KernelState:
    """The state that the kernel left, shared by all selections of one `Weights`."""

    def __init__(self, state: Float[Tensor, "n q"], normalize: Normalizer) -> None:
        self.state, self._normalize = state, normalize

    @cached_property
    def holds(self) -> bool:
        """Whether one number per row is enough for these rows; else the state is computed from the energies."""
        return self._normalize.holds(self.state)
