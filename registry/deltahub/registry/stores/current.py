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
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import MARK, Store, StoreUnavailable
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import is_made
from deltahub.registry.storage.open import open_store
from deltahub.registry.stores.deferring import DeferringStore

OBJECTS = "objects"
# A file of the data folder while `deltahub restore` fills it.
UNFINISHED = "restore.unfinished"


class WrongStore(StoreUnavailable):
    """The store is not the one of this hub."""

    code = "wrong_store"


class HalfRestored(StoreUnavailable):
    """A restore into this data folder was cut short."""

    code = "half_restored"


def refuse_half_restored(data_dir: Path) -> None:
    """HalfRestored unless the folder is one that a hub may use."""
    if (data_dir / UNFINISHED).exists():
        raise HalfRestored(
            f"a restore into {data_dir} is not finished: run the same `deltahub restore` again,"
            " which goes on from there, or delete the folder"
        )


def current_store(
    database: Database,
    data_dir: Path,
    settings: Settings,
    disk: Disk,
    *,
    cache: ObjectCache | None,
    is_read_only: bool,
) -> DeferringStore:
    """The store of the hub's objects. A new hub's is the one of the settings, and gets a mark.

    cache: of packs that are read from a bucket.

    WrongStore if the settings name another one, or the store belongs to another hub.
    """
    with database.read() as session:
        record = session.scalar(select(ObjectStore).where(ObjectStore.state == "current"))
        has_objects = _has_objects(session)
    url = _url(record, settings, data_dir, has_objects=has_objects)
    known = record.mark if record is not None and record.url == url else None
    folder = data_dir / OBJECTS
    if has_objects and not url and not is_made(folder):  # opening it would make it a store
        raise _away(folder, f"make the folder {folder / '.tmp'}")
    store = open_store(url, folder, settings, disk, cache=cache, is_read_only=is_read_only)
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
    return DeferringStore(store, database)


def _url(
    record: ObjectStore | None, settings: Settings, data_dir: Path, *, has_objects: bool
) -> str:
    if record is None and not has_objects:
        return settings.store_url or ""
    url = "" if record is None else record.url
    if settings.store_url in (None, url):
        return url
    if not has_objects:
        return settings.store_url or ""
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
