"""Decoders: each reads annotations and predicts the target, token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..layers.kernels.packed_products import linear
from .configurations import PartConfig

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from .configurations import Annotations
    from .encoders import EncoderConfig


class SourceTargetBatch(Protocol):
    """A batch as `regard.data.Batch` holds it: sources are ids, samples of sound or pixels, targets are ids."""

    source: Tensor
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]


@dataclass
class Loss:
    """Sums over the target tokens of a batch: divide by `tokens` (of all processes) for the mean."""

    total: Float[Tensor, ""]  # with label smoothing; what is minimised
    nll: Float[Tensor, ""]  # without it, and without a gradient; exp(nll / tokens) is the perplexity
    tokens: Int[Tensor, ""]


class _CrossEntropy(torch.autograd.Function):
    """Both gradients are products with p − y, so forward computes them from p, a chunk of tokens at a time.

    With ε the smoothing, V the vocabulary and f, W the features and the matrix: logits = f Wᵀ, p = softmax(logits),
    total = Σ (1 − ε)(−log p_y) + ε/V Σ_v (−log p_v), and d total / d logits = p − (1 − ε) onehot(y) − ε/V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        matrix: Tensor,
        wanted: Tensor,
        real: Tensor | None,
        smoothing: float,
        rows: int,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        wide, w = torch.promote_types(f.dtype, torch.float32), matrix.to(f.dtype)
        total, nll = (torch.zeros((), dtype=wide, device=f.device) for _ in range(2))
        to_f, to_w = torch.empty_like(f) if learns else None, None
        even = smoothing / len(w)  # ε/V
        column = (even * w.sum(0, dtype=wide)).to(f.dtype) if learns and smoothing else None
        for at in range(0, len(f), rows):
            here = slice(at, at + rows)
            features, weight = f[here], None if real is None else real[here]
            logits = features @ w.mT  # [rows, vocabulary], in the dtype of the features
            target, spread = _log_likelihoods(logits, wanted[here], weight, smoothing, learns)
            nll -= target
            if spread is not None:
                total -= even * spread
            if to_f is None:
                continue
            torch.mm(logits, w, out=to_f[here])
            if column is not None:
                # ε/V is the same for every word, so its part of the products is a sum of columns or rows.
                to_f[here] -= column if weight is None else column * weight[:, None].to(column.dtype)
            to_w = _add_product(to_w, logits.mT, features)
        total += (1 - smoothing) * nll
        if learns:
            if to_w is None:  # no target at all
                to_w = torch.zeros_like(w, dtype=wide)
            if smoothing:
                to_w -= even * (f if real is None else f * real[:, None]).sum(0, dtype=wide)
            ctx.save_for_backward(to_f, to_w)
        ctx.dtype = matrix.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_f, to_w = ctx.saved_tensors
        return to_f * g.to(to_f.dtype), (to_w * g).to(ctx.dtype), None, None, None, None, None


def _add_product(total: Tensor | None, a: Float[Tensor, "n rows"], b: Float[Tensor, "rows m"]) -> Float[Tensor, "n m"]:
    """total + a b, in float32 at least; a b alone where `total` is None."""
    if total is None:
        return (a @ b).to(torch.promote_types(a.dtype, torch.float32))
    return total.addmm_(a, b) if total.dtype == a.dtype else total.add_(a @ b)


def _log_likelihoods(
    logits: Float[Tensor, "rows vocabulary"],
    wanted: Int[Tensor, "rows"],
    real: Float[Tensor, "rows"] | None,
    smoothing: float,
    learns: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
    """Σ log p_y over the rows, and with smoothing Σ_v log p_v; in float32 at least.

    With `learns` the logits are overwritten by p − (1 − ε) onehot(y).
    """
    x, y = logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted[:, None]
    p = torch.softmax(x, dim=-1)
    # The largest p is 1 / Σ exp(x − max x), which is never 0, whereas p_y may be. Differences of logits come first: a
    # loss far smaller than they are would be rounded away.
    largest, log_largest = x.amax(1), p.amax(1).log()
    target = x.gather(1, y)[:, 0] - largest + log_largest
    spread = x.sum(1) - x.shape[1] * (largest - log_largest) if smoothing else None
    if real is not None:
        target = target * real
        spread = None if spread is None else spread * real
    if learns:
        p.scatter_add_(1, y, torch.full_like(y, smoothing - 1, dtype=p.dtype))
        if real is not None:
            p *= real[:, None]
        logits.copy_(p)
    return target.sum(), None if spread is None else spread.sum()


def cross_entropy(
    features: Float[Tensor, "*batch width"],
    matrix: Float[Tensor, "vocabulary width"],
    wanted: Int[Tensor, "*batch"],
    real: Bool[Tensor, "*batch"],
    smoothing: float = 0.0,
) -> Loss:
    """−Σ log p(wanted) over the real positions, p = softmax(features · matrixᵀ), with label smoothing.

    Smoothing ε takes (1 − ε) of it plus ε of the mean over the vocabulary (Szegedy et al. 2016, section 7).
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        features = features.to(torch.get_autocast_dtype(device))
    if device == "cpu":
        # Padding is removed before the product. A GPU would have to wait for the count, so there it is multiplied by 0.
        kept, wanted, weight = features[real], wanted[real], None
        most = max(16, (1 << 24) // (features.element_size() * len(matrix)))  # 16 MB of logits, for a CPU's caches
        rows = -(-len(kept) // max(1, -(-len(kept) // most)))  # in chunks of one size
    else:
        kept, wanted, weight = features.flatten(0, -2), wanted.flatten(), real.flatten().to(torch.float32)
        rows = max(16, (1 << 28) // len(matrix))
    with torch.autocast(device, enabled=False):
        # An autograd.Function does not know whether gradients are enabled.
        learns = torch.is_grad_enabled() and (kept.requires_grad or matrix.requires_grad)
        total, nll = _CrossEntropy.apply(kept, matrix, wanted, weight, smoothing, max(rows, 1), learns)
    return Loss(total, nll, real.sum())


class DecoderConfig(PartConfig):
    """Base of the configurations of decoders."""

    @property
    def attends(self) -> bool:
        """Whether it attends to the annotations."""
        return getattr(self, "attention", None) != "none"

    @property
    def copies(self) -> bool:
        """Whether it can copy words of the source (`PointerDecoder`)."""
        return bool(getattr(self, "copy", False))

    @property
    def output_width(self) -> int:
        """Width of the features that the output matrix reads."""
        return self.embedding_width

    def encoder_problems(self, encoder: EncoderConfig) -> list[str]:
        """Why it cannot decode from this encoder; keys are given as encoder.KEY and decoder.KEY."""
        return []

    def build(self, vocabulary: int, memory: int, longest: int) -> Decoder[Any]:
        """The decoder over annotations `memory` wide, 0 where there are none."""
        raise NotImplementedError


class State(ABC):
    """A decoder's state between steps, for `sentences × beams` rows; beam b of sentence s is row s·beams + b.

    `step`, `reorder` and `keep` return a new state. The old one must not be used again: its memory may be reused.
    """

    @abstractmethod
    def reorder(self, rows: Int[Tensor, "rows"]) -> State:
        """Row i of the new state is row rows[i] of this one; a row stays within its sentence."""

    @abstractmethod
    def keep(self, sentences: Int[Tensor, "kept"]) -> State:
        """Only these sentences, with all their beams, continue."""


def beam_rows(sentences: Int[Tensor, "kept"], beams: int) -> Int[Tensor, "rows"]:
    """The rows of all beams of these sentences."""
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


S = TypeVar("S", bound=State)


@dataclass
class DecoderOutput:
    """Features of every target position, and the attention weights over the source where requested."""

    features: Float[Tensor, "batch target width"]
    weights: Float[Tensor, "batch maps target places"] | None  # one map per layer and head; one for an RNN
    _: KW_ONLY
    generation: Float[Tensor, "batch target"] | None = None  # p_gen of a decoder that copies
    source: Int[Tensor, "batch places"] | None = None  # the ids that it copies from


class Decoder(nn.Module, ABC, Generic[S]):
    """p(y_t | y_<t, source): `forward` for all t at once, or `start` and then `step` for one t after the other.

    The two agree to rounding. Both return features; `readout` maps them to logits over the vocabulary, so that a loss
    can skip padding and a search can compute the last position alone.
    """

    embedding: nn.Embedding
    output: nn.Linear
    most_steps: int | None = None
    """The number of positions it has; None where they are unlimited."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens of the target vocabulary."""
        return self.embedding.num_embeddings

    @abstractmethod
    def forward(
        self, tokens: Int[Tensor, "batch target"], annotations: Annotations, *, weights: bool = False
    ) -> DecoderOutput:
        """Features at t, from tokens 0..t (the first is <s>): what predicts token t + 1."""

    @abstractmethod
    def start(self, annotations: Annotations, *, beams: int = 1, steps: int = 256) -> S:
        """The state before the first token, for `beams` rows per sentence and at most `steps` steps."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows"], state: S, *, weights: bool = False
    ) -> tuple[Float[Tensor, "rows width"], S, Float[Tensor, "rows maps places"] | None]:
        """Feed one token per row: features that predict the next, the new state, the weights if requested."""

    def read(self, tokens: Int[Tensor, "rows n"], state: S) -> S:
        """The state after the tokens of a prompt. Some decoders read them all at once."""
        for token in tokens.unbind(1):
            _, state, _ = self.step(token, state)
        return state

    def target_logprobs(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target"]:
        """log p of each wanted token, in float32 at least. `loss` is minus its sum over the real positions."""
        logits = self.readout(decoded.features)
        log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_p.gather(-1, wanted[..., None])[..., 0]

    def loss(
        self,
        decoded: DecoderOutput,
        wanted: Int[Tensor, "batch target"],
        real: Bool[Tensor, "batch target"],
        smoothing: float = 0.0,
    ) -> Loss:
        """−Σ log p(wanted) over the real positions, with label smoothing."""
        return cross_entropy(decoded.features, self.output.weight, wanted, real, smoothing)

    def extra(
        self, decoded: DecoderOutput, wanted: Int[Tensor, "batch target"], real: Bool[Tensor, "batch target"]
    ) -> Tensor | None:
        """A term that the decoder adds to the loss, summed over the batch; None for most."""
        return None

    def updated(self) -> None:
        """Called after each update of the weights in training; most decoders ignore it."""

    def readout(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Logits over the target vocabulary."""
        return linear(self.output, features)


def output_matrix(width: int, vocabulary: int) -> nn.Linear:
    """The matrix from features to logits; its rows have length about 1, as those of an embedding table have."""
    matrix = nn.Linear(width, vocabulary, bias=False)
    nn.init.normal_(matrix.weight, std=width**-0.5)
    return matrix
