"""Turns errors of the store into errors that callers of the registry see."""

from collections.abc import Iterator
from contextlib import contextmanager

from deltahub.registry.errors import Conflict, StorageFull, Unavailable
from deltahub.registry.storage.base import StoreFull, StoreUnavailable
from deltahub.registry.storage.spool import SpoolBusy


@contextmanager
def translated_store_errors() -> Iterator[None]:
    """Turn what the store and the spool refuse into the registry's refusals."""
    try:
        yield
    except SpoolBusy as exc:
        raise Conflict(f"{exc}; wait for it, or try again") from exc
    except StoreFull as exc:
        raise StorageFull(f"the hub's disk is full; nothing was changed ({exc})") from exc
    except StoreUnavailable as exc:
        raise Unavailable(f"the hub's disk does not answer ({exc}); try again") from exc
