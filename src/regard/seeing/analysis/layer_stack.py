"""Stack: the layers of self-attention that one text went through, one after the other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..capture.call import layer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..capture.call import Call


def stack(calls: Sequence[Call]) -> list[Call]:
    """These calls, where they are the layers of one stack over one forward pass; else what to do instead.

    A module called several times in a row is several layers (ALBERT). One that comes back after others have been
    called is a second forward pass.
    """
    names = [call.name for call in calls]
    turns = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    again = next((name for at, name in enumerate(turns) if name in turns[:at]), None)
    if again is not None:
        raise ValueError(
            f"{again} was called again after other layers: these are several forward passes. Watch each in a block of "
            "its own"
        )
    numbered = [name for name in names if layer_of(name) is not None]
    stacks = list(dict.fromkeys(re.split(r"(?:^|\.)\d+(?:\.|$)", name)[0] for name in numbered))
    if len(stacks) > 1:
        raise ValueError(
            f"layers of several stacks were seen: {', '.join(stacks)}. Watch one of them, with "
            f"watch(model, layers={stacks[0]!r})"
        )
    return list(calls)
