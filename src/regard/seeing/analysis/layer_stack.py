"""The self-attention layers that one text passed through, in order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..capture.attention_call import layer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...attention import Weights
    from ..capture.attention_call import Call


def layer_stack(calls: Sequence[Call]) -> list[Call]:
    """The calls, if they are the layers of one stack over one forward pass; otherwise a ValueError.

    A module called several times in a row is several layers (ALBERT). A module called again after others is a second
    forward pass.
    """
    names = [call.name for call in calls]
    distinct = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    repeated = next((name for at, name in enumerate(distinct) if name in distinct[:at]), None)
    if repeated is not None:
        raise ValueError(
            f"{repeated} was called again after other layers: these are several forward passes. Watch each in a block "
            "of its own"
        )
    numbered = [name for name in names if layer_of(name) is not None]
    stacks = list(dict.fromkeys(re.split(r"(?:^|\.)\d+(?:\.|$)", name)[0] for name in numbered))
    if len(stacks) > 1:
        raise ValueError(
            f"these are layers of several stacks: {', '.join(stacks)}. Watch one of them, with "
            f"watch(model, layers={stacks[0]!r})"
        )
    return list(calls)


def entry_weights(call: Call, entry: int) -> Weights:
    """[heads, T_q, T_k]: one entry of the batch, and the first of any dimension before it, as in `Call.head`."""
    lead = len(call.shape) - 2
    return call.weights[(*(0,) * (lead - 2), entry)] if lead > 1 else call.weights
