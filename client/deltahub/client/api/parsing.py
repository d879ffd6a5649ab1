"""Reads the JSON in a hub's answers strictly: anything odd is a BadResponse.

The records say what belongs into an answer (deltahub.client.records).
"""

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from deltahub.client.errors import BadResponse

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]

_MAX_DEPTH: Final = 32
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. BadResponse if it is not JSON or not of a plausible form."""
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH:
        # Imported here, because the package of codecs takes as long to import as the client.
        from deltahub.codecs.files.json_bounds import json_fault

        # An object of a few characters takes some hundred bytes of memory.
        fault = json_fault(body, _MAX_DEPTH, 1000 + len(body) // 24, 1000 + len(body) // 4)
        if fault is not None:
            raise BadResponse(f"its JSON is refused: {fault}")
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as exc:
        raise BadResponse(f"it is not JSON: {exc}") from exc
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def record(kind: type[_T], value: Any) -> _T:
    """A record of this kind from parsed JSON. BadResponse if a field is missing or malformed."""
    return cast("_T", _reader(cast("Any", kind))(value))


def field_of(value: Any, key: str, hint: Any) -> Any:
    """The value of one key of an object. BadResponse unless the hint describes it."""
    if not isinstance(value, dict) or key not in value:
        raise BadResponse(f"it is not an object with {key}")
    return _named(key, _reader(hint), value[key])


def object_of(value: Any) -> dict[str, Any]:
    """An object of JSON as it is. BadResponse for anything else."""
    if not isinstance(value, dict):
        raise BadResponse("it is not an object")
    return value


def items_of(kind: type[_T], value: Any, key: str = "items") -> list[_T]:
    """A list of records in an object."""
    return [*field_of(value, key, tuple[kind, ...])]  # type: ignore[valid-type]  # mypy: a variable


@cache
def _reader(hint: Any) -> _Reader:
    """A function that returns a value of this type hint or raises BadResponse."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(_reader(arguments[0]), arguments[1])
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if dataclasses.is_dataclass(hint):
        return _record_reader(cast("type[Any]", hint))
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _exactly("a number", int, float)
    if hint is str:
        return _exactly("text", str)
    if hint is int:
        return _exactly("a whole number", int)
    if hint is bool:
        return _exactly("true or false", bool)
    return _exactly("an object", dict)  # a Mapping


def _exactly(what: str, *kinds: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) not in kinds:  # type(), because bool is a subclass of int
            raise BadResponse(f"{_shown(value)} is not {what}")
        return value

    return read


def _limited(read: _Reader, limit: Any) -> _Reader:
    """limit: a pattern for texts, a range for whole numbers, (least, most) for other numbers."""

    def limited(value: Any) -> Any:
        found = read(value)
        if isinstance(limit, re.Pattern):
            is_right = limit.fullmatch(found) is not None
        elif isinstance(limit, range):
            is_right = found in limit
        else:
            is_right = limit[0] <= found <= limit[1]
        if not is_right:
            raise BadResponse(f"{_shown(value)} cannot be")
        return found

    return limited


def _list_reader(read: _Reader) -> _Reader:
    def read_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise BadResponse(f"{_shown(value)} is not a list")
        return tuple([read(item) for item in value])

    return read_list


def _record_reader(kind: type[Any]) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (spec.name, _reader(hints[spec.name]), spec.default is dataclasses.MISSING)
        for spec in dataclasses.fields(kind)
        if spec.init
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BadResponse(f"{_shown(value)} is not a {kind.__name__}")
        known = {}
        for name, read_field, is_required in fields:
            if name in value:
                known[name] = _named(name, read_field, value[name])
            elif is_required:
                raise BadResponse(f"a {kind.__name__} has no {name}")
        return kind(**known)

    return read


def _named(name: str, read: _Reader, value: Any) -> Any:
    try:
        return read(value)
    except BadResponse as exc:
        raise BadResponse(f"{name}: {exc.message}") from None


def _shown(value: Any) -> str:
    return ascii(value)[:80] if isinstance(value, str | int | float | None) else _kind(value)


def _kind(value: Any) -> str:
    return "an object" if isinstance(value, Mapping) else "a list"
