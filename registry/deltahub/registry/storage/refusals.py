"""Translates errors of the store into registry errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from deltahub.registry.errors import Conflict, StorageFull, Unavailable
from deltahub.registry.storage.base import SpoolBusy, StoreFull, StoreUnavailable


@contextmanager
def translated_store_errors() -> Iterator[None]:
    """A context in which errors of the store and the spool are raised as registry errors."""
    try:
        yield
    except SpoolBusy as exc:
        raise Conflict(f"{exc}; wait for it, or try again") from exc
    except StoreFull as exc:
        raise StorageFull(f"the hub's {exc.place} is full; nothing was changed ({exc})") from exc
    except StoreUnavailable as exc:
        raise Unavailable(f"the hub's {exc.place} does not answer ({exc}); try again") from exc
