"""Answers of a real hub, made odd: a strategy for hypothesis."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

_NESTED: Any = "end"
for _ in range(200):
    _NESTED = [_NESTED]
# Values of the wrong type, too large, too deep, and of the right type with a wrong meaning.
VALUES = st.sampled_from([
    None, True, False, -1, 0, 1, 1 << 62, 1 << 70, 10**4000, 1e308, -0.5, "", "x", "../../x",
    "/etc",
    ".git/config", "\x1b[2J", "a\u202eb", "\ud800", "a" * 5000, "0" * 40, "f" * 64, "main", [], {},
    [None], ["x"], [[]], [{}], {"a": 1}, {"": []}, _NESTED,
])  # fmt: skip
# Texts that replace a whole answer, or stand before it.
TEXTS = st.sampled_from([
    b"", b"null", b"0", b'"x"', b"[]", b"{}", b"<html>", b"{", b'{"a":', b"NaN", b"\xff\xfe\x00",
    b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"[1e999]", b'{"a":1,"a":2}', b'"\\ud800"',
    b'{"items":[' + b"[]," * 100_000 + b"[]]}", b'{"items": NaN}', b'{"items": -Infinity}',
    b"\x00" * 100, b'{"error": {"code": 7, "message": []}}',
])  # fmt: skip


@st.composite
def odd_answers(draw: st.DrawFn, real: bytes) -> bytes:
    """A real answer with one or two changes somewhere in it."""
    kind = draw(st.sampled_from(["value", "value", "value", "text", "bytes"]))
    if kind == "text":
        return draw(TEXTS)
    if kind == "bytes":
        at = draw(st.integers(0, len(real)))
        edit = draw(st.sampled_from(["cut", "flip", "insert", "twice"]))
        if edit == "cut":
            return real[:at]
        if edit == "flip" and at < len(real):
            return real[:at] + bytes([real[at] ^ draw(st.integers(1, 255))]) + real[at + 1 :]
        return real[:at] + (real if edit == "twice" else draw(st.binary(max_size=8))) + real[at:]
    value = copy.deepcopy(json.loads(real))
    for _ in range(draw(st.integers(1, 2))):
        value = _changed(draw, value)
    return json.dumps(value).encode()


def _changed(draw: st.DrawFn, value: Any) -> Any:
    """The value with one place in it replaced, removed or repeated."""
    places = [(value, key) for key in _keys(value)]
    for holder, key in places:
        places.extend((holder[key], inner) for inner in _keys(holder[key]))
        if len(places) > 300:
            break
    if not places or draw(st.integers(0, 20)) == 0:
        return copy.deepcopy(draw(VALUES))  # the next change would change it for all examples
    holder, key = draw(st.sampled_from(places))
    edit = draw(st.sampled_from(["replace", "replace", "replace", "remove", "repeat"]))
    if edit == "remove":
        del holder[key]
    elif edit == "repeat" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = copy.deepcopy(draw(VALUES))
    return value


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []
