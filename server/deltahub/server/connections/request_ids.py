"""The id of a request, by which an answer and the lines of the log about it are found.

The caller may choose it, so that a proxy, the hub and a client use the same one.
"""

import re
import secrets
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final, TypeVar

T = TypeVar("T")

HEADER: Final = b"x-request-id"
# By which Hugging Face clients name their requests.
_TRACE: Final = b"x-amzn-trace-id"
# Ids are written into logs and headers, so a caller's has no other characters than these.
_VALID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")

_current: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)


def new_id() -> str:
    return secrets.token_hex(8)


def id_for(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that a request asks for, or a new one if it asks for none that is valid."""
    asked = {name: value for name, value in headers if name in (HEADER, _TRACE)}
    for name in (HEADER, _TRACE):
        if _VALID.fullmatch(asked.get(name, b"")):
            return asked[name].decode("ascii")
    return new_id()


def use(request_id: str) -> None:
    """Let current_id() return this id in the current context, and in threads that copy it."""
    _current.set(request_id)


def current_id() -> str | None:
    """Return the id of the request that this code works for; None outside of requests."""
    return _current.get()


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """Return `work` for a thread of a pool, which then works for the same request as the caller.

    Nothing else of the caller's context is carried over.
    """
    request_id = _current.get()

    def run() -> T:
        token = _current.set(request_id)
        try:
            return work()
        finally:
            _current.reset(token)

    return run
