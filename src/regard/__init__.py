"""regard: attention you can build with, train with and look at.

    z = normalize(energy(q, k)) · v

`attend` computes it for any energy, normalizer and mask, on the fastest exact kernel for the request;
`Weights` answers questions about the matrix normalize(energy(q, k)) without ever storing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .moved import install

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .attention import *  # noqa: F403, I001
    from .seeing import Call, Coverage, Seen, load_trace, note
    from .seeing.analysis import (
        Patterns as Patterns,
        Site as Site,
        ablate as ablate,
        circuits as circuits,
        effects as effects,
        energy_attribution as energy_attribution,
        intervene as intervene,
        load_text_model as load_text_model,
        logit_attribution as logit_attribution,
        logit_lens as logit_lens,
        next_tokens as next_tokens,
        repeated_sequence_scores as repeated_sequence_scores,
        retrieval_scores as retrieval_scores,
    )
    from .seeing.coverage import prove
    from .seeing.watch import watch

# ruff: noqa: F405
__all__ = [
    "Additive",
    "Alibi",
    "Bias",
    "Call",
    "Concat",
    "ContributionStats",
    "Contributions",
    "Cosine",
    "Coverage",
    "Dot",
    "Energy",
    "Entmax",
    "Exact",
    "Gaussian",
    "General",
    "Hard",
    "InverseDistance",
    "Mask",
    "Memory",
    "Modified",
    "Normalizer",
    "Plan",
    "Proportional",
    "RelativeBias",
    "Rotary",
    "ScaledDot",
    "Seen",
    "Sigmoid",
    "SoftCap",
    "Softmax",
    "Softpick",
    "Sparsemax",
    "Stats",
    "StickBreaking",
    "Top",
    "Unnormalized",
    "Weights",
    "attend",
    "attend_step",
    "causal",
    "dense",
    "documents",
    "explain",
    "load_trace",
    "lookup",
    "mask_mod",
    "note",
    "padding",
    "prefix",
    "prove",
    "received",
    "watch",
    "window",
]

ANALYSIS = (
    "Patterns",
    "Site",
    "ablate",
    "circuits",
    "effects",
    "energy_attribution",
    "intervene",
    "load_text_model",
    "logit_attribution",
    "logit_lens",
    "next_tokens",
    "repeated_sequence_scores",
    "retrieval_scores",
)
"""Found here too, and not in `__all__`: they print tables with rich, and the core needs PyTorch only."""


install()


def __getattr__(name: str) -> object:
    # Importing torch takes a second; `regard --help` must not pay for it, so the names load on first use.
    if name in ANALYSIS or name in ("attention", "seeing"):
        from importlib import import_module

        try:
            module = import_module(".seeing.analysis" if name in ANALYSIS else f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != "rich":
                raise
            raise ImportError(f"regard.{name} needs rich; install it with: pip install 'regard[cli]'") from None
        return getattr(module, name) if name in ANALYSIS else module
    if name == "attend_packed":
        raise AttributeError(
            "regard.attend_packed is gone: attend(…, mask=documents(ids)) over all sequences in one row, where ids is "
            "torch.arange(len(lengths)).repeat_interleave(lengths)"
        )
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    from . import attention, seeing

    # All at once: afterwards this function is out of the way, also for torch.compile, which does not trace it.
    rooms = {public: seeing if public in seeing.__all__ else attention for public in __all__}
    globals().update({public: getattr(room, public) for public, room in rooms.items()})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *ANALYSIS, "__version__", "attention", "seeing"})
