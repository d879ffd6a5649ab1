"""Which store holds the hub's objects: the database knows it, and the store itself knows its hub.

A store holds a mark, a random number that is also in the database. So a bucket of another hub, an
empty mount point, and a database beside the wrong objects are refused before anything is written.
"""

import secrets
from pathlib import Path

from sqlalchemy import delete, exists, or_, select

from deltahub.registry.db.models import Landing, Pack
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.db.tables.stores import ObjectStore
from deltahub.registry.db.versioned_cache import Memo
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import MARK, Store, StoreUnavailable
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import is_made
from deltahub.registry.storage.open import open_store
from deltahub.registry.stores.moving import MovingStore
from deltahub.registry.stores.places import Place, Places, places_left, read_places
from deltahub.registry.stores.write_locks import WriteLocks

OBJECTS = "objects"


class WrongStore(StoreUnavailable):
    """The store is not the one of this hub."""

    code = "wrong_store"


def current_store(
    database: Database, data_dir: Path, settings: Settings, disk: Disk, *, is_read_only: bool
) -> Store:
    """The store of the hub's objects, which follows them when they move to another place.

    A new hub's is the one of the settings, and gets a mark. WrongStore if the settings name another
    one, or the store belongs to another hub.
    """
    with database.read() as session:
        places = read_places(session)
        left = places_left(session)
        has_objects = _has_objects(session)
    record = None if places is None else places.current
    url = _url(record, left, settings, data_dir, has_objects=has_objects)
    known = record.mark if record is not None and record.url == url else None
    folder = data_dir / OBJECTS
    if has_objects and not url and not is_made(folder):  # opening it would make it a store
        raise _away(folder, f"make the folder {folder / '.tmp'}")
    store = open_store(url, folder, settings, disk, is_read_only=is_read_only)
    mark = store.mark()
    if mark is not None and mark != known:
        raise WrongStore(
            f"{_named(url, data_dir)} holds the objects of another hub, or this hub's database is"
            " not the one that belongs to them: name another place with DELTAHUB_STORE_URL, or"
            " restore the database"
        )
    if has_objects and url and mark is None:
        place = url.partition("?")[0].rstrip("/")
        raise _away(place, f"put an object {place}/{MARK} with the content {known}")
    if mark is None and not is_read_only:
        _adopt(database, store, url, known)
    return _following(database, data_dir, settings, disk, store, url, is_read_only=is_read_only)


def open_place(
    place: Place, data_dir: Path, settings: Settings, disk: Disk, *, is_read_only: bool = False
) -> Store:
    """The store of a record. WrongStore if it does not hold the record's mark."""
    store = open_store(place.url, data_dir / OBJECTS, settings, disk, is_read_only=is_read_only)
    if store.mark() == place.mark:
        return store
    store.close()
    raise WrongStore(f"{_named(place.url, data_dir)} does not hold the objects of this hub")


def _following(
    database: Database,
    data_dir: Path,
    settings: Settings,
    disk: Disk,
    store: Store,
    url: str,
    *,
    is_read_only: bool,
) -> Store:
    """The open store in what makes it follow a move."""
    memo: Memo[str, Places] = Memo(database)
    without_record = Places(Place("", url))  # a hub that never opened for writing

    def read() -> Places:
        with database.read() as session:
            return read_places(session) or without_record

    def places() -> Places:
        return memo.get("", read)

    return MovingStore(
        places(),
        store,
        read_places=places,
        open_place=lambda place: open_place(
            place, data_dir, settings, disk, is_read_only=is_read_only
        ),
        writing=WriteLocks(data_dir).writing,
    )


def _url(
    record: Place | None,
    left: list[Place],
    settings: Settings,
    data_dir: Path,
    *,
    has_objects: bool,
) -> str:
    if record is None and not has_objects:
        return settings.store_url or ""
    url = "" if record is None else record.url
    if settings.store_url in (None, url):
        return url
    if not has_objects:
        return settings.store_url or ""
    was_there = any(place.url == settings.store_url for place in left)
    if was_there and record is not None and record.since is not None:
        raise WrongStore(
            f"DELTAHUB_STORE_URL names {settings.store_url}, but `deltahub store copy` moved the"
            f" hub: its objects lie in {_named(url, data_dir)} since {record.since:%F %T} UTC."
            " Leave the variable out"
        )
    raise WrongStore(
        f"the hub's objects lie in {_named(url, data_dir)}, and DELTAHUB_STORE_URL names"
        f" {settings.store_url}: leave it out, or move the objects with `deltahub store copy --to"
        f" {settings.store_url}`"
    )


def _adopt(database: Database, store: Store, url: str, mark: str | None) -> None:
    """Give the store a mark, in the database first: a crash between leaves no strange mark."""
    if mark is None:
        mark = secrets.token_hex(16)
        with database.write() as session:
            session.execute(delete(ObjectStore).where(ObjectStore.state == "current"))
            session.add(ObjectStore(mark=mark, url=url, state="current"))
    store.set_mark(mark)


def _named(url: str, data_dir: Path) -> str:
    return url or str(data_dir / OBJECTS)


def _away(place: object, way_to_mark: str) -> WrongStore:
    return WrongStore(
        f"the hub's objects are not in {place}: is its disk mounted, is it the right bucket? If"
        f" this is a copy of a hub without its objects, {way_to_mark}"
    )


def _has_objects(session: ReadSession) -> bool:
    uploads = select(Landing.id).where(Landing.state == "complete")
    return bool(session.scalar(select(or_(exists(select(Pack.id)), exists(uploads)))))
