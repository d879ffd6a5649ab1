"""The records of where the hub's objects lie, and how a move changes them.

A move goes through three states, each written by one transaction:

    begin()   current A                     -> current A, target B
    switch()  current A, target B           -> current B, previous A
    finish()  current B, previous A         -> current B, left A

`give_up()` turns a target into a place that was left. A place that was left keeps its mark, so that
a later move to it knows the objects that still lie there as the hub's own.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from deltahub.registry.db.columns import utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.stores import DeletionHold, ObjectStore
from deltahub.registry.storage.base import StoreUnavailable

FOLDER = "folder"


class MoveChanged(StoreUnavailable):
    """Another process began, switched or gave up a move meanwhile, or holds deletions."""

    code = "move_changed"


@dataclass(frozen=True)
class Place:
    """A store by its record. url: "" is the folder `objects` of the data folder."""

    mark: str
    url: str
    since: datetime | None = None

    @property
    def name(self) -> str:
        """How `deltahub store copy --to` names it."""
        return self.url or FOLDER


@dataclass(frozen=True)
class Places:
    """current holds the objects. At most one of `previous` and `target` is there."""

    current: Place
    previous: Place | None = None
    target: Place | None = None

    def in_order_of_copying(self) -> tuple[Place, ...]:
        """The places that may hold an object. Objects are copied from each to the next."""
        found = (self.previous, self.current, self.target)
        return tuple(place for place in found if place is not None)


def read_places(session: ReadSession) -> Places | None:
    """None before the hub has a store."""
    rows = {
        row.state: Place(row.mark, row.url, row.changed_at)
        for row in session.scalars(select(ObjectStore).where(ObjectStore.state != "left"))
    }
    if "current" not in rows:
        return None
    return Places(rows["current"], rows.get("previous"), rows.get("target"))


def places_left(session: ReadSession) -> list[Place]:
    """The places that held the hub's objects, or were to hold them; the last one first."""
    query = select(ObjectStore).where(ObjectStore.state == "left")
    rows = session.scalars(query.order_by(ObjectStore.changed_at.desc()))
    return [Place(row.mark, row.url, row.changed_at) for row in rows]


def begin(session: WriteSession, url: str, mark: str | None) -> Place:
    """Make a place the target. mark: of a place that was left, None for one that has none."""
    row = session.get(ObjectStore, mark) if mark is not None else None
    if row is None:
        session.execute(
            delete(ObjectStore).where(ObjectStore.url == url, ObjectStore.state == "left")
        )
        row = ObjectStore(mark=secrets.token_hex(16), url=url)
        session.add(row)
    row.url, row.state, row.changed_at = url, "target", utc_now()
    return Place(row.mark, url, row.changed_at)


def switch(session: WriteSession, current: Place, target: Place) -> None:
    """Make the target current. MoveChanged if these are not the two, or deletions are held."""
    _require_no_hold(session)
    _require(session, current, "current").state = "previous"
    row = _require(session, target, "target")
    row.state, row.changed_at = "current", utc_now()


def finish(session: WriteSession, previous: Place) -> None:
    """Read nothing from the previous place any more. MoveChanged as from switch()."""
    _require_no_hold(session)
    row = _require(session, previous, "previous")
    row.state, row.changed_at = "left", utc_now()


def give_up(session: WriteSession, target: Place) -> None:
    """No target any more. MoveChanged if it is not the one."""
    row = _require(session, target, "target")
    row.state, row.changed_at = "left", utc_now()


def _require_no_hold(session: WriteSession) -> None:
    """Who holds deletions reads objects without rows, which a move leaves behind."""
    hold = session.scalars(select(DeletionHold).where(DeletionHold.expires_at > utc_now())).first()
    if hold is not None:
        raise MoveChanged(
            f"`{hold.purpose}` is at work, until {hold.expires_at:%F %T} UTC at the latest: run the"
            " command again after its end"
        )


def _require(session: WriteSession, place: Place, state: str) -> ObjectStore:
    row = session.get(ObjectStore, place.mark)
    if row is None or row.state != state:
        raise MoveChanged(f"{place.name} is not the {state} place any more; run the command again")
    return row
