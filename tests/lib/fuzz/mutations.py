"""Hostile values, and sound ones that are damaged: bytes, texts, and JSON by its structure."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, Final

from fuzz.engine import Chance

NUMBERS: Final = (0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**70, 1.5, -0.0, 1e308)
TEXTS: Final = (
    "", " ", "0", "-1", "x", "\x00", "ä\U0001f600", "\ud800", "a" * 3000, "null", "true", "{", "[]",
    "../../etc/passwd", "<script>alert(1)</script>", "\x1b[2J", "\u202e", "' OR 1=1 --", "%s%n",
    "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9" * 400, "1e999", "NaN", "\n", "a\tb\r\n",
)  # fmt: skip


def any_value(chance: Chance) -> Any:
    """A value of JSON that stands where another one should."""
    if chance.random() < 0.4:
        return chance.choice(NUMBERS)
    if chance.random() < 0.5:
        return chance.choice(TEXTS)
    odd: list[Any] = [None, True, False, [], {}, [[]], [None], {"": None}, [1, 2, 3], ["x"] * 9]
    return chance.choice([*odd, {"a": {"b": []}}])


def damage_json(value: Any, chance: Chance, times: int = 1) -> Any:
    """Change some places of parsed JSON: other values, types and keys, fewer or more of them."""
    value = copy.deepcopy(value)
    for _ in range(times):
        holders = _list_holders(value)
        if not holders:
            return any_value(chance)
        holder = chance.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        _change(holder, keys, chance, value)
    return value


def _list_holders(value: Any) -> list[Any]:
    found, left = [], [value]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            found.append(each)
            left += each.values() if isinstance(each, dict) else each
    return found


def _change(holder: Any, keys: Sequence[Any], chance: Chance, whole: Any) -> None:
    how = chance.randrange(6) if keys else 5
    if how == 5:
        if isinstance(holder, dict):
            holder[chance.choice(["", "more", *TEXTS[:6]])] = any_value(chance)
        else:
            holder.insert(chance.randrange(len(holder) + 1), any_value(chance))
        return
    key = chance.choice(keys)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = copy.deepcopy(chance.choice([whole, holder, *_list_holders(whole)]))
    elif how == 2:
        old = holder[key]
        holder[key] = str(old) if isinstance(old, int | float) else [old]
    elif how == 3 and isinstance(holder, dict):
        holder[chance.choice(TEXTS)] = holder.pop(key)
    else:
        holder[key] = any_value(chance)


def damage_bytes(content: bytes, chance: Chance) -> bytes:
    """Flip bits, cut, repeat, put in or take out."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(changed) + 1)
        how = chance.randrange(5)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del changed[at:]
        elif how == 2:
            changed[at:at] = chance.randbytes(chance.choice([1, 2, 8, 200]))
        elif how == 3:
            del changed[at : at + chance.choice([1, 4, 100])]
        else:
            changed[at:at] = changed[at : at + chance.choice([1, 8, 1000])]
    return bytes(changed)


def damage_text(text: str, chance: Chance) -> str:
    """Change characters of a text, or put hostile ones between."""
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(text) + 1)
        how = chance.randrange(4)
        if how == 0:
            text = text[:at] + text[at + chance.choice([1, 3]) :]
        elif how == 1:
            text = text[:at] + chance.choice(TEXTS) + text[at:]
        elif how == 2:
            text = text[:at] + chance.choice("'\"`\\(){}[],;:=-+*/.%_ \0\n") + text[at:]
        else:
            text = text[:at] + text[at:][: chance.randrange(20)] + text[at:]
    return text


def damage_json_text(value: Any, chance: Chance) -> str:
    """A text of JSON that is damaged in its structure, as a text, or both."""
    if chance.random() < 0.85:
        value = damage_json(value, chance, chance.choice([1, 1, 1, 2, 4]))
    text = json.dumps(value)
    if chance.random() < 0.2:
        text = damage_text(text, chance)
    return text
