"""Weights: the matrix w = normalize(energy(q, k)) that is never stored.

A normalizer leaves one number per row, after which any weight is a pointwise function of its energy; for softmax
w_ij = exp(e_ij − lse_i). So keeping q, k and that number is keeping the matrix, in O(T) memory instead of O(T²).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from .block_indices import positions, span
from .energy_forms import TanhForm
from .kernels.statistics import statistics_gpu as kernel
from .masks import interval
from .modifiers import Bias
from .normalizers.hard import Hard
from .normalizers.normalizer import Softmax
from .weight_statistics import Block, Entropy, Fidelity, Largest, Map, Offsets, On, Received, Stats, Top

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from .block_indices import Index
    from .energy_matrix import Scores
    from .normalizers.normalizer import Normalizer
    from .weight_statistics import Statistic

BLOCK = 1 << 20
"""Numbers in one block of rows: 4 MiB of float32, which stay in cache between the statistics that read them."""


STEP = 512
"""Rows that see few keys are computed up to the next multiple of it: blocks of one shape are cheaper to add up."""


class Weights:
    """The weights of one call of `attend`, answered exactly from q, k and the row state.

    Shapes are [*batch, T_q, T_k]. `w[0, 3]` picks from the leading dimensions (batch entry 0, head 3) and
    `w.rows(1000)` picks queries; both give `Weights` again, and cost nothing. Only `dense` and `log_prob` build a
    graph for gradients. Dropout is not part of the weights. Queries, keys and a mask of booleans are not copied:
    changed in place since, they make every question an error, unless they were made in `torch.inference_mode`, where
    PyTorch does not count changes.
    """

    def __init__(self, scores: Scores, normalize: Normalizer, state: Tensor | None = None) -> None:
        self._scores, self._normalize = scores, normalize
        self._kept = _kept(scores)
        self._versions = _versions(scores)
        self._flat: Scores | None = None
        self._state = None if state is None else state.detach().reshape(scores.count, scores.queries)
        self._own: Tensor | None = None  # the state of the rows chosen here
        self._shape = scores.batch
        self._entries: Sequence[int] = range(scores.count)  # which matrices, counted over the flattened batch
        self._rows: Sequence[int] = range(scores.queries)  # which queries

    @property
    def shape(self) -> tuple[int, ...]:
        """[*batch, T_q, T_k]"""
        return (*self._shape, len(self._rows), self._scores.keys)

    def __repr__(self) -> str:
        return f"Weights({list(self.shape)}, {type(self._normalize).__name__}, keeps {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """Bytes kept: queries, keys and one number per row. The matrix would take 4 · T_q · T_k per head in float32."""
        state = self._own if self._state is None else self._state
        kept = (self._scores.a, self._scores.b, *(() if state is None else (state,)))
        return sum(x.numel() * x.element_size() for x in kept)

    # Choosing a part

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> Weights:
        """Pick from the leading dimensions: `w[0]`, `w[0, 3]`, `w[:, 2:4]`."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > len(self._shape) or not all(isinstance(x, int | slice) for x in index):
            raise IndexError(
                f"the leading shape is {list(self._shape)}, got the index {index}; pick queries with .rows(…)"
            )
        every = torch.tensor(list(self._entries)).view(self._shape)
        try:
            chosen = every[index]
        except IndexError as error:
            raise IndexError(f"{error}; the leading shape is {list(self._shape)}") from None
        part = self._part()
        part._shape, part._entries = tuple(chosen.shape), _run(chosen.flatten().tolist())
        return part

    def rows(self, queries: int | slice | Sequence[int]) -> Weights:
        """Only these queries; one query stays a row: shape [*batch, 1, T_k]."""
        part = self._part()
        part._rows = _chosen(queries, self._rows, "query")
        return part

    def _part(self) -> Weights:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__, _own=None)
        return part

    # The matrix itself

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, differentiable. The one answer that takes O(T²) memory."""
        e = self._live().block(*self._index(), slice(0, self._scores.keys), self._normalize.absent)
        if isinstance(self._normalize, Hard):  # the keys that were drawn, not new ones
            w = self._normalize.weigh(e, self._own_state()[..., None], torch.arange(e.shape[-1], device=e.device))
        else:
            w = self._normalize(e)
        return w.reshape(self.shape)

    @torch.no_grad()
    def tile(
        self,
        rows: int | slice | Sequence[int],
        cols: int | slice | Sequence[int],
        size: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
    ) -> Float[Tensor, "*batch rows cols"]:
        """Any rectangle of it: `w.tile(slice(100, 164), slice(0, 64))`; single indices keep their dimension.

        With a `size` it is pooled to at most that many cells, as `map` pools the whole matrix.
        """
        part = self.rows(rows)
        chosen = _chosen(cols, range(self._scores.keys), "key")
        device = self._scores.a.device
        if size is not None:
            return part._pooled(chosen, size, pool)
        fast = kernel.tile(part, chosen)
        if fast is None:
            j = span(chosen, device)
            e = self._detached().block(*part._index(), j, self._normalize.absent)
            fast = self._normalize.weigh(e, part._own_state()[..., None], positions(j, device))
        return fast.reshape(*self._shape, len(part._rows), len(chosen))

    def log_prob(self) -> Float[Tensor, "*batch q"]:
        """log softmax(e_i) at the key that `Hard` chose, differentiable: what REINFORCE multiplies by a reward."""
        if not isinstance(self._normalize, Hard):
            raise TypeError(
                f"log_prob is the probability of a sampled key; {type(self._normalize).__name__} does not sample. "
                'Use attend(..., normalize=Hard("reinforce"))'
            )
        e = self._live().block(*self._index(), slice(0, self._scores.keys), -torch.inf)
        picked = self._own_state()
        empty = picked < 0
        chosen = e.gather(-1, picked.clamp_min(0)[..., None]).squeeze(-1)
        total = e.masked_fill(empty[..., None], 0).logsumexp(-1)
        return (chosen.masked_fill(empty, 0) - total).masked_fill(empty, 0).reshape(self.shape[:-1])

    # Questions

    def entropy(self) -> Float[Tensor, "*batch q"]:
        """−Σ_j w_ij log w_ij in nats: 0 looks at one key, log T_k at all alike."""
        return self.stats(entropy=True).entropy  # type: ignore[return-value]

    def top(self, k: int) -> Top:
        """The k largest weights of every row, `(values, indices)`, largest first.

        Where a row has fewer than k weights that are not zero, the rest are zeros at keys of no meaning.
        """
        return self.stats(top=k).top  # type: ignore[return-value]

    def received(self) -> Float[Tensor, "*batch k"]:
        """Σ_i w_ij: how much attention each key receives."""
        return self.stats(received=True).received  # type: ignore[return-value]

    def offset(self, n: int) -> Float[Tensor, "*batch q"]:
        """w_{i, i+n}: what each query gives to the key n places on; 0 where there is none."""
        return self.stats(offsets=[n]).offsets[..., 0]  # type: ignore[index]

    def on(self, columns: Sequence[int] | Tensor) -> Float[Tensor, "*batch q"]:
        """Σ_j w_ij over chosen keys: indices, or a boolean tensor [T_k] or [*batch, T_k]."""
        return self.stats(on=columns).on  # type: ignore[return-value]

    def map(self, size: tuple[int, int], pool: Literal["max", "mean"] = "max") -> Float[Tensor, "*batch rows cols"]:
        """The matrix pooled to at most rows × cols cells. Cell r of R covers queries r·T//R up to (r+1)·T//R."""
        return self.stats(map=size, pool=pool).map  # type: ignore[return-value]

    def fidelity(self, v: Tensor, out: Tensor) -> Float[Tensor, " *batch"]:
        """|W v − out| / |out|, one number per matrix: the proof that what is shown is what was computed."""
        return self.stats(fidelity=(v, out)).fidelity  # type: ignore[return-value]

    @torch.no_grad()
    def stats(
        self,
        *,
        entropy: bool = False,
        top: int | None = None,
        received: bool = False,
        offsets: Sequence[int] | None = None,
        on: Sequence[int] | Tensor | None = None,
        map: tuple[int, int] | None = None,
        pool: Literal["max", "mean"] = "max",
        fidelity: tuple[Tensor, Tensor] | None = None,
        also: Sequence[Statistic] = (),
    ) -> Stats:
        """Several questions in one pass over q and k; see the methods of the same names.

        `also` are statistics of your own (`weight_statistics.Statistic`), computed in the same pass.
        """
        if top is not None and not 1 <= top <= self._scores.keys:
            raise ValueError(f"top needs 1 ≤ k ≤ {self._scores.keys}, the number of keys; got {top}")
        fast = (
            None
            if also
            else kernel.stats(
                self,
                entropy=entropy,
                top=top,
                received=received,
                offsets=offsets,
                on=on,
                map=map,
                pool=pool,
                fidelity=fidelity,
            )
        )
        if fast is not None:
            return fast
        scores, count, queries, keys = (
            self._detached(),
            len(self._entries),
            len(self._rows),
            self._scores.keys,
        )
        like = torch.empty(0, dtype=scores.precision, device=scores.a.device)
        asked: dict[str, Entropy | Largest | Received | Offsets | On | Map | Fidelity] = {}
        if entropy:
            asked["entropy"] = Entropy(count, queries, like)
        if top is not None:
            asked["top"] = Largest(count, queries, top, like)
        if received:
            asked["received"] = Received(count, keys, like)
        if offsets is not None:
            asked["offsets"] = Offsets(count, queries, list(offsets), like)
        if on is not None:
            asked["on"] = On(count, queries, self._columns(on), like)
        if map is not None:
            asked["map"] = Map(count, queries, keys, self._size(map, pool), pool, like)
        if fidelity is not None:
            asked["fidelity"] = Fidelity(count, *self._values(*fidelity), like)
        every: list[Statistic] = [*asked.values(), *also]
        # A map is made of cells that reach to the last key; every other statistic can do without keys nobody sees.
        for block in self._blocks(with_log=entropy, least=top or 1, whole=map is not None) if every else ():
            for statistic in every:
                statistic.add(block)
        return Stats(**{name: self._shaped(statistic.result) for name, statistic in asked.items()})  # type: ignore[arg-type]

    # Inside

    def _pooled(self, cols: Sequence[int], size: tuple[int, int], pool: Literal["max", "mean"]) -> Tensor:
        rows, columns = self._size(size, pool)
        size = rows, min(columns, len(cols))
        cells = kernel.pooled(self, cols, size, pool)
        if cells is None:
            like = torch.empty(0, dtype=self._scores.precision, device=self._scores.a.device)
            map = Map(len(self._entries), len(self._rows), len(cols), size, pool, like)
            j = span(cols, like.device)
            for block in self._blocks(with_log=False, whole=True):
                map.add(block._replace(w=block.w[..., j]))
            cells = map.result
        return cells.reshape(*self._shape, *size)

    def _blocks(self, with_log: bool, least: int = 1, whole: bool = False) -> Iterator[Block]:
        scores, normalize, state = self._detached(), self._normalize, self._own_state()
        device = scores.a.device
        j = torch.arange(scores.keys, device=device)
        # Two buffers for the whole walk: a fresh 4 MiB tensor per operation costs more in page faults than in work.
        first = scores.a.new_empty(0, dtype=scores.precision)
        second = torch.empty_like(first)
        for n, rows in scores.blocks(len(self._entries), len(self._rows), BLOCK):
            own_n, own_rows = slice(n.start, n.stop), slice(rows.start, rows.stop)
            queries, entries = span(self._rows[own_rows], device), span(self._entries[own_n], device)
            last = scores.keys if whole else max(least, self._reach(scores, entries, queries))
            e = scores.block(entries, queries, slice(0, last), normalize.absent, first)
            mine, log = state[own_n, own_rows, None], None
            if isinstance(normalize, Softmax):
                log = normalize.log_weigh_(e, mine)
                w = torch.exp(log, out=second.resize_(log.shape)) if with_log else log.exp_()
            else:
                w = normalize.weigh(e, mine, j[:last])
                log = w.log() if with_log else None
            yield Block(w, log, own_n, own_rows, positions(queries, device))

    def _reach(self, scores: Scores, entries: Index, queries: Index) -> int:
        """How many keys, counted from the first, these queries can see at most, rounded up to whole steps of `STEP`."""
        device = scores.a.device
        if scores.mask is None or scores.keys <= STEP or device.type != "cpu":  # a look at a GPU's numbers waits for it
            return scores.keys
        found = interval(scores.mask, positions(entries, device), positions(queries, device), scores)
        if found is None:
            return scores.keys
        return min(scores.keys, -(-int(found[1].max()) // STEP) * STEP)

    def _live(self) -> Scores:
        """Flat scores with their graph, for what is differentiable."""
        self._check_unchanged((*_held(self._scores), *_learned(self._scores)))
        return self._scores.flat()

    def _detached(self) -> Scores:
        """Flat scores without a graph, as they were when `attend` was called."""
        fixed = [x for x in _learned(self._scores) if not x.requires_grad]
        self._check_unchanged((*_held(self._scores), *fixed))
        if self._flat is None:
            self._flat = self._kept.flat()
        return self._flat

    def _check_unchanged(self, tensors: Iterable[Tensor]) -> None:
        if any(self._versions[id(x)] != _version(x) for x in tensors):
            raise RuntimeError(
                "queries, keys, the mask or learned parts of the energy were changed in place since attend() was "
                "called, so these weights would be others than it used; ask before changing them (before "
                "optimizer.step())"
            )

    def _index(self) -> tuple[slice | Tensor, slice | Tensor]:
        device = self._scores.a.device
        return span(self._entries, device), span(self._rows, device)

    def _own_state(self) -> Float[Tensor, "n rows"]:
        """One number per chosen row: what the kernel left, or found now by one pass over the rows chosen."""
        if self._own is None:
            (entries, rows), scores = self._index(), self._detached()
            if self._state is not None:
                self._own = self._state[entries][:, rows]
                return self._own
            self._own = kernel.row_state(self)
            if self._own is not None:
                return self._own
            device, every = scores.a.device, slice(0, scores.keys)
            self._own = torch.empty(len(self._entries), len(self._rows), dtype=scores.precision, device=device)
            with torch.no_grad():
                for n, i in scores.blocks(len(self._entries), len(self._rows), BLOCK):
                    part = slice(n.start, n.stop), slice(i.start, i.stop)
                    chosen = span(self._entries[part[0]], device), span(self._rows[part[1]], device)
                    self._own[part] = self._normalize.state(scores.block(*chosen, every, self._normalize.absent))
        return self._own

    def _shaped(self, answer: Tensor | Top) -> Tensor | Top:
        if isinstance(answer, Top):
            return Top(*(x.reshape((*self._shape, *x.shape[1:])) for x in answer))
        return answer.reshape((*self._shape, *answer.shape[1:]))

    def _columns(self, on: Sequence[int] | Tensor) -> Tensor:
        """Chosen columns as a boolean [n or 1, T_k]."""
        keys = self._scores.keys
        chosen = torch.as_tensor(on, device=self._scores.a.device)
        if chosen.dtype == torch.bool:
            if chosen.shape[-1:] != (keys,):
                raise ValueError(f"on needs a boolean for each of {keys} keys, got shape {list(chosen.shape)}")
            return chosen[None] if chosen.dim() == 1 else chosen.expand(*self._shape, keys).reshape(-1, keys)
        if chosen.is_floating_point() and chosen.numel():
            raise TypeError(f"on needs whole indices or booleans, got {chosen.dtype}")
        columns = _chosen(chosen.flatten().tolist(), range(keys), "key")
        seen = torch.zeros(1, keys, dtype=torch.bool, device=chosen.device)
        seen[0, list(columns)] = True
        return seen

    def _size(self, size: tuple[int, int], pool: str) -> tuple[int, int]:
        rows, cols = size
        if rows < 1 or cols < 1:
            raise ValueError(f"a map needs at least one row and one column, got {size}")
        if pool not in ("max", "mean"):
            raise ValueError(f'pool is {pool!r}; expected "max" or "mean"')
        return min(rows, len(self._rows)), min(cols, self._scores.keys)

    def _values(self, v: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """v and out, flat: [n, T_k, D_v] and [n, rows, D_v] of the matrices and queries chosen."""
        groups, heads = self._scores.groups, self._scores.batch[-1:]
        if groups > 1 and v.dim() >= 3 and v.shape[-3] * groups == heads[0]:
            v = v.repeat_interleave(groups, dim=-3)
            if self._shape != self._scores.batch:  # v is given whole: take the heads that were chosen
                v = v.expand(*self._scores.batch, *v.shape[-2:]).reshape(-1, *v.shape[-2:])[list(self._entries)]
                v = v.reshape(*self._shape, *v.shape[-2:])
        wanted = (*self._shape, self._scores.keys), (*self._shape, len(self._rows))
        try:
            v, out = (x.expand(*lead, x.shape[-1]) for x, lead in zip((v, out), wanted, strict=True))
        except RuntimeError:
            raise ValueError(
                f"fidelity needs v [{_list(wanted[0])}, D_v] and out [{_list(wanted[1])}, D_v]; "
                f"given v {list(v.shape)} and out {list(out.shape)}"
            ) from None
        return v.reshape(-1, *v.shape[-2:]), out.reshape(-1, *out.shape[-2:])


def _held(scores: Scores) -> list[Tensor]:
    """What is kept by reference, whether or not gradients go through it."""
    return [scores.a, scores.b, *(() if scores.mask is None else scores.mask.tensors())]


def _learned(scores: Scores) -> list[Tensor]:
    """What the energies depend on besides those, as far as it can be known."""
    weight = [scores.form.weight] if isinstance(scores.form, TanhForm) else []
    return weight + [modifier.bias for modifier in scores.modifiers if isinstance(modifier, Bias)]


def _kept(scores: Scores) -> Scores:
    """The scores to answer from: queries and keys as they are, what the energy learns copied.

    An optimizer changes that in place, and asking after a training step is natural.
    """
    form = scores.form
    if isinstance(form, TanhForm) and form.weight.requires_grad:
        form = TanhForm(form.weight.detach().clone())
    modifiers = tuple(
        Bias(x.bias.detach().clone()) if isinstance(x, Bias) and x.bias.requires_grad else x for x in scores.modifiers
    )
    return replace(scores, a=scores.a.detach(), b=scores.b.detach(), form=form, modifiers=modifiers)


def _versions(scores: Scores) -> dict[int, int | None]:
    return {id(x): _version(x) for x in (*_held(scores), *_learned(scores))}


def _version(x: Tensor) -> int | None:
    """How often a tensor was changed in place, where PyTorch counts it."""
    if torch.compiler.is_compiling() or x.is_inference():
        return None
    return x._version


def _list(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _chosen(index: int | slice | Sequence[int], among: Sequence[int], what: str) -> Sequence[int]:
    """The chosen of these, with Python's rules for negative indices and slices."""
    if isinstance(index, slice):
        picked: Sequence[int] = among[index]
    else:
        wanted = [index] if isinstance(index, int) else list(index)
        wrong = [x for x in wanted if not -len(among) <= x < len(among)]
        if wrong:
            raise IndexError(f"{what} {wrong[0]} is out of range: there are {len(among)}")
        picked = _run([among[x] for x in wanted])
    if not len(picked):
        raise IndexError(f"no {what} chosen: {index} of {len(among)}")
    return picked


def _run(indices: list[int]) -> Sequence[int]:
    """A range where the indices follow one another, so that cutting them out is a view."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices
