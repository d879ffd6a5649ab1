"""Bounds the uploads and xorbs of one user that wait for a commit, and the room they take.

Counting all of them for each new one would take longer and longer. So each process remembers an
upper bound for each user: the last count, plus all that was announced to this process since. It
counts again only when the bound exceeds a limit. Several processes together may let a user exceed
a limit by what was announced to them since their last counts.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Select, exists, func, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Landing, Xorb, utc_now
from deltahub.registry.errors import LimitExceeded, StorageFull
from deltahub.registry.registry import Registry
from deltahub.registry.sizes import human_size

# A user at the limit is counted at most once in this time, because a count may take 0.5 s.
_RECOUNT_S: Final = 1.0


@dataclass
class _Tally:
    """Upper bounds of what one user has waiting. first_expiry: as the last count found it."""

    n: int
    n_bytes: int = 0
    first_expiry: datetime | None = None
    # Until this time.monotonic(), refusals follow from the last count.
    refused_until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


_tallies: Final[WeakKeyDictionary[Registry, dict[tuple[str, int], _Tally]]] = WeakKeyDictionary()
_adding: Final = threading.Lock()


def announce(reg: Registry, caller: Caller, sizes: Mapping[str, int]) -> None:
    """Count uploads, SHA-256 -> size in bytes, that are announced now, unless they were before.

    LimitExceeded if the user would have more unused uploads, or more bytes of them, than the
    settings allow; StorageFull if the disk has no room for them.
    """
    new = unannounced(reg, caller, sizes)
    if new:
        require_room(reg, reg.spool.local_bytes(new.values()))
        _take(reg, "uploads", caller, len(new), sum(new.values()))


def require_room(reg: Registry, n_bytes: int, who: str = "this upload has") -> None:
    """StorageFull if the disk has no room for n_bytes more bytes. who: begins what its text says
    of these bytes.
    """
    free = reg.disk.free_bytes(reg.data_dir) + reg.reclaimable_bytes()
    if n_bytes > free:
        raise StorageFull(
            f"the hub's disk is full: it has room for {human_size(free)}, and {who}"
            f" {human_size(n_bytes)}; nothing was changed; the hub's operator must free space"
        )


def unannounced(reg: Registry, caller: Caller, sizes: Mapping[str, int]) -> dict[str, int]:
    """Those of the uploads that the user has not announced with this size or a larger one."""
    known: dict[str, int] = {}
    with reg.db.read() as session:
        for batch in batches(sizes):
            rows = session.execute(
                select(Landing.sha256, Landing.size).where(
                    Landing.user_id == caller.user_id, Landing.sha256.in_(batch)
                )
            )
            known.update((sha256, size) for sha256, size in rows)
    return {sha256: size for sha256, size in sizes.items() if known.get(sha256, -1) < size}


def announce_xorb(reg: Registry, caller: Caller, size: int) -> None:
    """Count a xorb that is stored now; LimitExceeded as in announce()."""
    _take(reg, "xorbs", caller, 1, size)


def check(reg: Registry, caller: Caller, n: int, n_bytes: int) -> None:
    """LimitExceeded if the user may not announce n further uploads of n_bytes bytes in all."""
    _take(reg, "uploads", caller, n, n_bytes, is_kept=False)


def forget(reg: Registry, caller: Caller) -> None:
    """Count the user's uploads again before the next refusal, because one was dropped."""
    _tally(reg, "uploads", caller).refused_until = 0.0


def _take(
    reg: Registry, kind: str, caller: Caller, n: int, n_bytes: int, *, is_kept: bool = True
) -> None:
    if not caller.token_mark:
        return  # the hub itself acts for the user, for example in a job
    tally = _tally(reg, kind, caller)
    with tally.lock:
        if not _fits(reg, tally, n, n_bytes):
            if time.monotonic() >= tally.refused_until:
                _count(reg, kind, caller, tally)
                if not _fits(reg, tally, n, n_bytes):
                    tally.refused_until = time.monotonic() + _RECOUNT_S
            if not _fits(reg, tally, n, n_bytes):
                raise LimitExceeded(_refusal(reg, kind, tally, n, n_bytes))
        if is_kept:
            tally.n += n
            tally.n_bytes += n_bytes


def _tally(reg: Registry, kind: str, caller: Caller) -> _Tally:
    with _adding:
        # Everything counts as full at first, so that the first call counts.
        return _tallies.setdefault(reg, {}).setdefault(
            (kind, caller.user_id), _Tally(reg.settings.max_user_uploads + 1)
        )


def _fits(reg: Registry, tally: _Tally, n: int, n_bytes: int) -> bool:
    settings = reg.settings
    return (
        tally.n + n <= settings.max_user_uploads
        and tally.n_bytes + n_bytes <= settings.max_user_upload_bytes
    )


def _count(reg: Registry, kind: str, caller: Caller, tally: _Tally) -> None:
    query = _waiting_uploads(caller) if kind == "uploads" else _waiting_xorbs(caller)
    with reg.db.read() as session:
        tally.n, tally.n_bytes, tally.first_expiry = session.execute(query).one()


def _waiting_uploads(caller: Caller) -> Select[int, int, datetime]:
    is_used = exists().where(File.landing_id == Landing.id)
    return select(func.count(), total(Landing.size), func.min(Landing.expires_at)).where(
        Landing.user_id == caller.user_id,
        Landing.state.in_(("receiving", "complete")),
        Landing.expires_at > utc_now(),
        ~is_used,
    )


def _waiting_xorbs(caller: Caller) -> Select[int, int, datetime]:
    return select(func.count(), total(Xorb.size), func.min(Xorb.expires_at)).where(
        Xorb.user_id == caller.user_id,
        Xorb.state.in_(("writing", "live")),
        Xorb.expires_at > utc_now(),
    )


def _refusal(reg: Registry, kind: str, tally: _Tally, n: int, n_bytes: int) -> str:
    settings = reg.settings
    limits = f"{settings.max_user_uploads} {kind} and {human_size(settings.max_user_upload_bytes)}"
    have = f"you have {tally.n} ({human_size(tally.n_bytes)})"
    if kind == "uploads":
        text = (
            f"a user may have {limits} that no commit uses; {have}, and announce {n}"
            f" ({human_size(n_bytes)}): commit them, or drop one with"
            " DELETE /v1/uploads/<its SHA-256>"
        )
    else:
        text = f"a user may have {limits} that have not expired; {have}: send the rest later"
    if tally.first_expiry is not None:
        text += f"; the first expires at {tally.first_expiry:%Y-%m-%d %H:%M} UTC"
    return text
