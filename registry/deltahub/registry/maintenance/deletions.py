"""Keeps all objects while a backup copies them, and carries deferred deletions out afterwards.

The hold is a row that expires ten minutes after its last renewal, so that a killed backup does not
hold deletions off for ever. One backup runs at a time, which a lock in the data folder ensures.
"""

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, update
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db.models import utc_now
from deltahub.registry.db.tables.stores import DeletionHold
from deltahub.registry.errors import RegistryError
from deltahub.registry.leases.locks import alone
from deltahub.registry.maintenance.object_rows import has_row
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError

log = logging.getLogger(__name__)

BACKUP_LOCK: Final = "backup.lock"
BACKUP: Final = "deltahub backup"
HOLD: Final = timedelta(minutes=10)
RENEW_S: Final = 60.0
_PURPOSE: Final = "backup"


class HoldLost(Exception):
    """The hold expired before the backup was done, so objects may be gone."""

    code = "hold_lost"


class Hold:
    """A hold on all deletions, renewed by a thread of its own until it is released."""

    def __init__(self, reg: Registry) -> None:
        self._reg = reg
        self._id = secrets.token_hex(16)
        self._is_ended = threading.Event()
        self._is_lost = threading.Event()
        self._thread = threading.Thread(target=self._renew_often, name="hold", daemon=True)

    def take(self) -> None:
        """Begin to hold. A hold that a killed backup left ends, because the caller has its lock."""
        with self._reg.db.write() as session:
            session.execute(delete(DeletionHold).where(DeletionHold.purpose == _PURPOSE))
            session.add(DeletionHold(id=self._id, purpose=_PURPOSE, expires_at=utc_now() + HOLD))
        self._thread.start()

    def require(self) -> None:
        """HoldLost if objects may have been deleted meanwhile."""
        if self._is_lost.is_set() or not self._renew():
            raise HoldLost(
                f"the backup stood still for more than {int(HOLD.total_seconds())} s, so its hold"
                " on deletions has expired and objects may be gone: run it again"
            )

    def release(self) -> None:
        self._is_ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._reg.db.write() as session:
            session.execute(delete(DeletionHold).where(DeletionHold.id == self._id))

    def _renew_often(self) -> None:
        while not self._is_ended.wait(RENEW_S):
            try:
                if not self._renew():
                    self._is_lost.set()
                    return
            except RegistryError as exc:  # the next attempt is a minute away, the end nine
                log.warning("the hold on deletions could not be renewed: %s", exc)

    def _renew(self) -> bool:
        with self._reg.db.write() as session:
            now = utc_now()
            renewed = session.scalar(
                update(DeletionHold)
                .where(DeletionHold.id == self._id, DeletionHold.expires_at > now)
                .values(expires_at=now + HOLD)
                .returning(DeletionHold.id)
                .execution_options(synchronize_session=False)
            )
        return renewed is not None


def carry_out_deferred(reg: Registry) -> int:
    """Delete the objects that wait for it and have no row, unless a backup is still at work;
    returns how many.
    """
    return reg.store.carry_out(has_row)


@contextmanager
def deletions_held(reg: Registry) -> Iterator[Hold]:
    """A context in which the hub deletes no object; DataFolderBusy beside another backup.

    At its end, also after an error, the deferred deletions are carried out. If that fails, the log
    says so and the deletions go on waiting: the hold lapses, and the next backup or gc deletes.
    """
    with alone(reg, BACKUP_LOCK, BACKUP):
        hold = Hold(reg)
        hold.take()
        try:
            yield hold
        finally:
            _let_go(reg, hold)


def _let_go(reg: Registry, hold: Hold) -> None:
    # What was done under the hold is done, or has failed with an error of its own.
    try:
        hold.release()
        carry_out_deferred(reg)
    except (RegistryError, StoreError, SQLAlchemyError) as exc:
        log.warning(
            "objects whose deletion waited for the backup could not be deleted at its end (%s):"
            " the next backup, or `deltahub gc --apply`, deletes them",
            exc,
        )
