"""Which errors of a job pass by themselves, so that the job is repeated instead of failed."""

import errno
from typing import Final

from deltahub.registry.errors import StorageFull, Unavailable
from deltahub.registry.storage.base import StoreFull, StoreUnavailable

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The machine lacks something for a moment, or a disk or connection fails for a moment.
_PASSING: Final = _NO_ROOM | {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET,
    errno.EHOSTUNREACH, errno.EIO, errno.EMFILE, errno.ENETUNREACH, errno.ENFILE, errno.ENOMEM,
    errno.EPIPE, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed later: no room, or the store or database is away."""
    if isinstance(error, OSError):
        return error.errno in _PASSING
    passing = (Unavailable, StorageFull, StoreUnavailable, StoreFull, MemoryError)
    return isinstance(error, passing)


def code_of(error: BaseException) -> str:
    """The stable code of a transient error."""
    has_no_room = isinstance(error, OSError) and error.errno in _NO_ROOM
    if has_no_room or isinstance(error, StorageFull | StoreFull):
        return StorageFull.code
    return Unavailable.code
