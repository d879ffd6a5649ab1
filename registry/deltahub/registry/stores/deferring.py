"""A store that deletes nothing while somebody holds deletions off: it notes the keys instead.

A backup copies the database, and then each object that the copy names. It needs that none of these
objects is deleted in between. This holds, with no lock and no waiting:

1. The hub makes an object unneeded by a transaction (the row is deleted or condemned), and calls
   delete() only after its commit.
2. delete() looks for holds in a transaction that begins after that, each time anew.
3. The backup commits its hold before it copies the database.

Let the copy name an object as needed. Then the transaction of step 1 is not in the copy, so it
committed after the copy began, so after the hold was committed. delete() looks even later, so it
sees the hold, and defers. A process that looked before the hold was there may still be deleting,
but only objects whose transaction of step 1 is in the copy, which therefore does not need them.

A hold ends or expires while its backup is alive only if the backup says so; a backup that could not
renew its hold in time is no backup (maintenance/backup/hold.py).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import delete, func, select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.db.tables.stores import DeferredDeletion, DeletionHold
from deltahub.registry.failpoints import reached
from deltahub.registry.storage.base import Buffer, Store
from deltahub.registry.storage.forwarding import ForwardingStore
from deltahub.registry.storage.keys import check_key

# Deferred deletions that are carried out between two looks for a hold.
_PAGE: Final = 500


class DeferringStore(ForwardingStore):
    """The store `inner`, whose deletions wait while a hold of the database has not expired.

    delete(), delete_together(), put() and their like write to the database, so the caller's thread
    has no write session open. An object whose deletion is deferred stays readable until then.
    """

    def __init__(self, inner: Store, database: Database) -> None:
        super().__init__(inner)
        self._db = database

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        self._keep([key])
        self.inner.put(key, chunks)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        self._keep(objects)
        self.inner.put_together(objects)

    def take_file(self, key: str, path: Path) -> None:
        self._keep([key])
        self.inner.take_file(key, path)

    def delete_together(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        if keys and self.held_until() is not None:
            self._defer(keys)
        else:
            self.inner.delete_together(keys)

    def held_until(self) -> datetime | None:
        """When the last hold expires; None if there is none, and objects may be deleted."""
        with self._db.read() as session:
            return session.scalar(
                select(func.max(DeletionHold.expires_at)).where(DeletionHold.expires_at > utc_now())
            )

    def n_deferred(self) -> int:
        """How many deletions wait."""
        with self._db.read() as session:
            return session.scalar(select(func.count()).select_from(DeferredDeletion)) or 0

    def carry_out(self, is_needed: Callable[[ReadSession, str], bool]) -> int:
        """Delete what was deferred, unless there is a hold; returns how many objects.

        is_needed(session, key): whether a row has this object. It is then not deleted, and whoever
        removes the row deletes it. An object without a row gets none again, because rows come
        before their objects and each object's key has a random id of its own (a second copy's,
        too), so it may be deleted after the question.
        """
        n_deleted = 0
        while True:
            if self.held_until() is not None:
                return n_deleted
            with self._db.read() as session:
                keys = session.scalars(
                    select(DeferredDeletion.key).order_by(DeferredDeletion.key).limit(_PAGE)
                ).all()
                unneeded = [key for key in keys if not is_needed(session, key)]
            if not keys:
                return n_deleted
            self.inner.delete_together(unneeded)
            reached("deferred.after_delete")
            n_deleted += len(unneeded)
            self._forget(keys)

    def _keep(self, keys: Iterable[str]) -> None:
        """Take back deferred deletions of objects that are written now."""
        with self._db.read() as session:
            if session.scalar(select(DeferredDeletion.key).limit(1)) is None:
                return
            found = [
                key
                for batch in batches(keys)
                for key in session.scalars(
                    select(DeferredDeletion.key).where(DeferredDeletion.key.in_(batch))
                )
            ]
        if found:
            self._forget(found)

    def _forget(self, keys: Iterable[str]) -> None:
        with self._db.write() as session:
            for batch in batches(keys):
                session.execute(delete(DeferredDeletion).where(DeferredDeletion.key.in_(batch)))

    def _defer(self, keys: Iterable[str]) -> None:
        with self._db.write() as session:
            for batch in batches(dict.fromkeys(keys)):
                known = set(
                    session.scalars(
                        select(DeferredDeletion.key).where(DeferredDeletion.key.in_(batch))
                    )
                )
                session.add_all(DeferredDeletion(key=key) for key in batch if key not in known)
