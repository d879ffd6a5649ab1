"""Checks the depth and the number of values of a hostile JSON text before it is parsed.

A parser makes objects of some hundred bytes from a few characters. So 100 MB of JSON could
otherwise take gigabytes, or a recursion as deep as the text is long.
"""

import re
from typing import Final

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def json_fault(text: bytes, max_depth: int, max_containers: int, max_values: int) -> str | None:
    """Why this JSON text must not be parsed, or None.

    max_depth: of nested arrays and objects; a mix of both may pass up to twice the depth.
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
    for _ in range(max_depth):  # each round removes the innermost pairs
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        return f"its brackets do not match, or nest deeper than {max_depth}"
    return None
