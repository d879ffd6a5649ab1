"""Bounding a hostile JSON text before it is parsed: depth and the number of values in it.

A parser makes objects of some hundred bytes out of a few characters; whoever may send 100 MB of
JSON may otherwise ask for gigabytes, or for a recursion as deep as the text is long.
"""

import re
from typing import Final

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def json_fault(text: bytes, max_depth: int, max_containers: int, max_values: int) -> str | None:
    """What keeps this JSON text from being parsed, or None.

    max_depth: nested arrays and objects; mixed ones may get by at up to twice the depth.
    max_containers: arrays and objects in all. max_values: strings, numbers and keys, counted by
    their separators.
    """
    bare = _STRING.sub(b"", text)
    if b'"' in bare:
        return "a string in it does not end"
    n_containers = bare.count(b"[") + bare.count(b"{")
    if n_containers > max_containers:
        return f"it has {n_containers} arrays and objects; at most {max_containers} are allowed"
    n_values = bare.count(b",") + bare.count(b":")
    if n_values > max_values:
        return f"it has {n_values} values; at most {max_values} are allowed"
    brackets = bare.translate(None, _NOT_BRACKETS)
    for _ in range(max_depth):  # each round takes away the innermost pairs
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        return f"its brackets do not match, or nest deeper than {max_depth}"
    return None
