"""Which store holds the hub's objects: the database knows it, and the store itself knows its hub.

A store holds a mark, a random number that is also in the database. So a bucket of another hub, an
empty mount point, and a database beside the wrong objects are refused before anything is written.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db.models import Landing, Pack
from deltahub.registry.db.session import Database, ReadSession
from deltahub.registry.db.tables.stores import ObjectStore
from deltahub.registry.db.versioned_cache import Memo
from deltahub.registry.errors import DataLost
from deltahub.registry.measures import Measures
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import MARK, Store, StoreUnavailable
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import is_made
from deltahub.registry.storage.open import open_store
from deltahub.registry.stores.deferring import DeferringStore
from deltahub.registry.stores.moving import MovingStore
from deltahub.registry.stores.places import Place, Places, places_left, read_places
from deltahub.registry.stores.unknown import UnknownStore
from deltahub.registry.stores.write_locks import write_locks_of

OBJECTS = "objects"
# Is in a data folder while a hub is being restored into it.
UNFINISHED: Final = "restore.unfinished"


class WrongStore(StoreUnavailable):
    """The store is not the one of this hub."""

    code = "wrong_store"
    place = "store"


class HalfRestored(StoreUnavailable):
    """A restore into this data folder was cut short."""

    code = "half_restored"


def refuse_half_restored(data_dir: Path) -> None:
    """HalfRestored unless the folder is one that a hub may use."""
    if (data_dir / UNFINISHED).exists():
        raise HalfRestored(
            f"a restore into {data_dir} is not finished: wait for its end, or, if it was cut short,"
            " run the same `deltahub restore` again, which goes on from there, or delete the folder"
        )


@dataclass(frozen=True)
class StoreOpener:
    """Opens the stores of one hub.

    cache: of packs that are read from a bucket. is_read_only: create and delete nothing.
    measures: where the operations of the stores are counted.
    """

    database: Database
    data_dir: Path
    settings: Settings
    disk: Disk
    cache: ObjectCache | None = None
    is_read_only: bool = False
    measures: Measures | None = None

    def current(self) -> DeferringStore:
        """The store of the hub's objects, which follows them when they move to another place.

        A new hub's is the one of the settings, and gets a mark. WrongStore if the settings name
        another one, or the store belongs to another hub.
        """
        with self.database.read() as session:
            places = read_places(session)
            left = places_left(session)
            has_objects = _has_objects(session)
        record = None if places is None else places.current
        url = self._url(record, left, has_objects=has_objects)
        known = record.mark if record is not None and record.url == url else None
        if has_objects:
            self._refuse_empty_folder(url, known)
        store = self._open(url)
        try:
            mark = self._checked_mark(store, url, known, has_objects=has_objects)
            return DeferringStore(self._following(store, Place(mark, url)), self.database)
        except BaseException:
            store.close()
            raise

    def of_damaged_database(self) -> DeferringStore:
        """The store of a hub whose database cannot be read as a whole.

        If it does not even say where the objects lie, every read is StoreUnavailable, because a
        store that is chosen by a guess would lack them all.
        """
        try:
            with self.database.read() as session:
                places = read_places(session)
        except (DataLost, SQLAlchemyError):
            places = None
        store = UnknownStore() if places is None else self.place(places.current)
        return DeferringStore(store, self.database)

    def place(self, place: Place) -> Store:
        """The store of a record. WrongStore if it does not hold the record's mark."""
        self._refuse_empty_folder(place.url, place.mark)
        store = self._open(place.url)
        try:
            if store.mark() == place.mark:
                return store
        except BaseException:
            store.close()
            raise
        store.close()
        raise WrongStore(f"{self._named(place.url)} does not hold the objects of this hub")

    @property
    def _folder(self) -> Path:
        return self.data_dir / OBJECTS

    def _named(self, url: str) -> str:
        return url or str(self._folder)

    def _open(self, url: str) -> Store:
        return open_store(
            url,
            self._folder,
            self.settings,
            self.disk,
            cache=self.cache,
            measures=self.measures,
            is_read_only=self.is_read_only,
        )

    def _refuse_empty_folder(self, url: str, mark: str | None) -> None:
        """WrongStore if the folder is a mount point without its disk: to open it makes a store."""
        if not url and not is_made(self._folder):
            raise _away(self._folder, _way_to_mark(self._folder, mark))

    def _checked_mark(self, store: Store, url: str, known: str | None, *, has_objects: bool) -> str:
        """The store's mark. WrongStore unless it is the known one; a new store gets a mark."""
        mark = store.mark()
        if mark is not None and mark != known:
            known = self._mark_of_now(url)  # a process on another machine may have made the hub
        if mark is not None and mark != known:
            raise WrongStore(
                f"{self._named(url)} holds the objects of another hub, or this hub's database is"
                " not the one that belongs to them: name another place with DELTAHUB_STORE_URL,"
                " or restore the database"
            )
        if mark is not None:
            return mark
        if has_objects and known is not None:
            place = url.partition("?")[0].rstrip("/")
            way = f"put an object {place}/{MARK} with the content {known}"
            raise _away(place or self._folder, way if url else _way_to_mark(self._folder, known))
        return known or "" if self.is_read_only else _adopt(self.database, store, url, known)

    def _mark_of_now(self, url: str) -> str | None:
        with self.database.read() as session:
            places = read_places(session)
        is_there = places is not None and places.current.url == url
        return places.current.mark if places is not None and is_there else None

    def _following(self, store: Store, place: Place) -> MovingStore:
        """The open store in what makes it follow a move, perhaps one since it was opened."""
        memo: Memo[str, Places] = Memo(self.database)
        opened = Places(place)

        def read() -> Places:
            with self.database.read() as session:
                return read_places(session) or opened  # a hub that never opened for writing

        locks = write_locks_of(self.database, self.data_dir)
        return MovingStore(
            opened,
            store,
            read_places=lambda: memo.get("", read),
            open_place=self.place,
            writing=locks.writing,
            close_locks=locks.close,
        )

    def _url(self, record: Place | None, left: list[Place], *, has_objects: bool) -> str:
        wanted = self.settings.store_url
        if record is None and not has_objects:
            return wanted or ""
        url = "" if record is None else record.url
        if wanted in (None, url):
            return url
        if not has_objects:
            return wanted or ""
        was_there = any(place.url == wanted for place in left)
        if was_there and record is not None and record.since is not None:
            raise WrongStore(
                f"DELTAHUB_STORE_URL names {wanted}, but `deltahub store copy` moved the hub: its"
                f" objects lie in {self._named(url)} since {record.since:%F %T} UTC. Leave the"
                " variable out"
            )
        raise WrongStore(
            f"the hub's objects lie in {self._named(url)}, and DELTAHUB_STORE_URL names {wanted}:"
            f" leave it out, or move the objects with `deltahub store copy --to {wanted}`"
        )


def _adopt(database: Database, store: Store, url: str, mark: str | None) -> str:
    """Give the store a mark, in the database first: a crash between leaves no strange mark."""
    if mark is None:
        if url and next(iter(store.list("")), None) is not None:
            raise WrongStore(
                f"{url} holds objects that are not this hub's, perhaps under a longer prefix: name"
                " an empty place with DELTAHUB_STORE_URL, such as another prefix"
            )
        mark = secrets.token_hex(16)
        with database.write() as session:
            # Two machines may start a new hub at once: both use the mark of the first.
            found = session.scalar(
                select(ObjectStore.mark).where(
                    ObjectStore.state == "current", ObjectStore.url == url
                )
            )
            if found is None:
                session.execute(delete(ObjectStore).where(ObjectStore.state == "current"))
                session.add(ObjectStore(mark=mark, url=url, state="current"))
        mark = found or mark
    store.set_mark(mark)
    return mark


def _way_to_mark(folder: Path, mark: str | None) -> str:
    made = f"make the folder {folder / '.tmp'}"
    return made if mark is None else f"{made} and a file {folder / MARK} with the line {mark}"


def _away(place: object, way_to_mark: str) -> WrongStore:
    return WrongStore(
        f"the hub's objects are not in {place}: is its disk mounted, is it the right bucket? If"
        f" this is a copy of a hub without its objects, {way_to_mark}"
    )


def _has_objects(session: ReadSession) -> bool:
    uploads = select(Landing.id).where(Landing.state == "complete")
    return bool(session.scalar(select(or_(exists(select(Pack.id)), exists(uploads)))))
