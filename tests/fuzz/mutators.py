"""Mutators: small random changes of bytes, of text and of JSON values, and the values that programs forget."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    10**40,
    -(2**63),
    0.0,
    0.5,
    1e-320,
    1e308,
    -0.0,
]
TEXTS = [
    "",
    " ",
    "a",
    "\x00",
    "\ud800",
    "🙂" * 50,
    "../../etc/passwd",
    "a" * 5000,
    "true",
    "[[[",
    "NaN",
    "\x1b[31m",
    "ﷺ",
]
VALUES: list[Any] = [None, True, False, [], {}, [[]], {"a": {}}, float("inf"), float("nan"), *NUMBERS, *TEXTS]


def mutated_bytes(content: bytes, chance: Random) -> bytes:
    """Flipped bits, bytes that were cut out, repeated, inserted or zeroed, or a file that ends early."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(len(data) + 1)
        size = chance.choice([1, 1, 4, 16, 300])
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size]
            case 3:
                data[at:at] = chance.randbytes(size)
            case 4:
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 5:
                data[at : at + size] = b"\xff" * len(data[at : at + size])
            case _ if chance.random() < 0.2:
                del data[at:]
    return bytes(data)


def mutated_text(text: str, chance: Random) -> str:
    """Lines that were removed, repeated or exchanged, and pieces of other texts."""
    lines = text.split("\n")
    for _ in range(chance.choice([1, 2, 4])):
        at = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                lines[at] = ""
            case 1:
                lines.insert(at, chance.choice(lines))
            case 2:
                place = chance.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + str(chance.choice(VALUES)) + lines[at][place:]
            case 3 if "=" in lines[at]:
                lines[at] = lines[at].split("=")[0] + "= " + json.dumps(chance.choice(VALUES))
            case _:
                lines[at] = (
                    lines[at][::-1] if chance.random() < 0.1 else lines[at][: chance.randrange(len(lines[at]) + 1)]
                )
    return "\n".join(lines)


def mutated_json(value: Any, chance: Random) -> Any:
    """A copy with some values replaced, removed, repeated or nested."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice([1, 1, 2, 4])):
        places = list(_places(value))
        if not places:
            return chance.choice(VALUES)
        holder, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del holder[key]
            case 1:
                holder[key] = [holder[key]]
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 3 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
                holder[key] += chance.choice([-1, 1, 2, 1000])
            case _:
                holder[key] = copy.deepcopy(chance.choice(VALUES))
    return value


def _places(value: Any) -> Any:
    """Every key of every object and list below a value."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, child in items:
        yield value, key
        yield from _places(child)
