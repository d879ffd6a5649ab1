"""Two processes put, read and delete while objects are copied, in any order: none is lost.

The database, its rows, the locks and the copier are the real ones; the stores are in memory.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import integers, sampled_from
from sqlalchemy import delete, select, update

from deltahub.registry.db.models import Domain, Pack
from deltahub.registry.maintenance.move.copier import Copier
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.storage.keys import pack_key
from deltahub.registry.storage.memory import MemoryStore
from deltahub.registry.stores import places as records
from deltahub.registry.stores.moving import MovingStore
from deltahub.registry.stores.places import Place, Places
from deltahub.registry.stores.write_locks import WriteLocks
from support.registry.opened import opened_registry
from support.stores.store_contract import read_all

PROCESSES = integers(0, 1)


class _Busy(Exception):
    pass


class SlowPut:
    """A put in a thread, which has written nothing yet."""

    def __init__(self, store: MovingStore, key: str, data: bytes) -> None:
        self.key, self.data = key, data
        self._may_end, self._has_begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=store.put, args=(key, self._chunks()))
        self._thread.start()
        assert self._has_begun.wait(10)

    def _chunks(self) -> Iterator[bytes]:
        self._has_begun.set()
        self._may_end.wait(10)
        yield self.data

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


class Moves(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(TemporaryDirectory()))
        self.reg = self.stack.enter_context(opened_registry(folder))
        with self.reg.db.write() as session:
            domain = Domain(key="public") if session.scalar(select(Domain)) is None else None
            if domain is not None:
                session.add(domain)
            session.flush()
            self.domain_id = session.scalars(select(Domain.id)).first()
        self.locks = WriteLocks(folder)
        self.stores: dict[str, MemoryStore] = {}
        self.objects: dict[str, bytes] = {}
        self.slow: list[SlowPut] = []
        self.copier: Copier | None = None
        self.processes = [self._process(), self._process()]

    def _places(self) -> Places:
        with self.reg.db.read() as session:
            places = records.read_places(session)
        assert places is not None
        return places

    def _store(self, place: Place) -> MemoryStore:
        return self.stores.setdefault(place.mark, MemoryStore())

    def _process(self) -> MovingStore:
        places = self._places()
        return MovingStore(
            places,
            self._store(places.current),
            read_places=self._places,
            open_place=self._store,
            writing=self.locks.writing,
        )

    def _new_row(self, data: bytes) -> str:
        pack_id = secrets.token_hex(16)
        with self.reg.db.write() as session:
            session.add(
                Pack(
                    id=pack_id, domain_id=self.domain_id, state="live", size=len(data),
                    hash=blake3(data).digest(),
                )
            )  # fmt: skip
        return pack_key(pack_id)

    @rule(process=PROCESSES)
    def put(self, process: int) -> None:
        data = secrets.token_bytes(9)
        key = self._new_row(data)
        self.processes[process].put(key, [data])
        self.objects[key] = data

    @rule(process=PROCESSES)
    def begin_put(self, process: int) -> None:
        data = secrets.token_bytes(9)
        self.slow.append(SlowPut(self.processes[process], self._new_row(data), data))

    @precondition(lambda self: self.slow)
    @rule()
    def end_put(self) -> None:
        put = self.slow.pop(0)
        put.end()
        self.objects[put.key] = put.data

    @precondition(lambda self: self.objects)
    @rule(process=PROCESSES, number=integers(0, 99))
    def delete(self, process: int, number: int) -> None:
        key = list(self.objects)[number % len(self.objects)]
        del self.objects[key]
        pack_id = key.rsplit("/", 1)[-1]
        with self.reg.db.write() as session:
            session.execute(update(Pack).where(Pack.id == pack_id).values(state="condemned"))
        self.processes[process].delete(key)
        with self.reg.db.write() as session:
            session.execute(delete(Pack).where(Pack.id == pack_id))

    @rule(process=PROCESSES)
    def let_the_record_age(self, process: int) -> None:
        self.processes[process]._known_until = 0.0

    @rule(process=PROCESSES)
    def restart(self, process: int) -> None:
        if not self.slow:
            self.processes[process] = self._process()

    @rule()
    def begin_copy(self) -> None:
        places = self._places()
        if places.previous is not None or places.target is not None:
            return
        with self.reg.db.write() as session:
            left = records.places_left(session)
            records.begin(session, "", left[0].mark if left else None)

    @rule()
    def copy(self) -> None:
        copier = self._copier()
        if copier is not None:
            copier.copy_all()

    @rule(is_swept=sampled_from((True, False)))
    def switch(self, is_swept: bool) -> None:
        places = self._places()
        copier = self._copier()
        if places.target is None or copier is None:
            return
        if is_swept:
            copier.delete_strays()
        with self.reg.db.write() as session:
            records.switch(session, places.current, places.target)
        copier.is_live = True

    @rule()
    def finish(self) -> None:
        self._try_to_finish()

    def _try_to_finish(self) -> None:
        places = self._places()
        copier = self._copier()
        if places.previous is None or copier is None:
            return

        def busy() -> None:
            raise _Busy

        try:
            self.locks.wait_for_writers(places.previous.mark, busy)
        except _Busy:
            return
        copier.copy_all()
        copier.delete_strays()
        copier.check_all()
        missing = set(copier.copied.damaged) - {put.key for put in self.slow}
        assert not missing, "a row whose put has ended has its object"
        if copier.copied.damaged:
            return  # their writers have the row and not the object yet
        with self.reg.db.write() as session:
            records.finish(session, places.previous)
        self._store(places.previous)._objects.clear()  # nobody needs them any more
        self.copier = None

    @rule()
    def kill_the_copy(self) -> None:
        self.copier = None

    @rule()
    def give_up(self) -> None:
        places = self._places()
        if places.target is not None:
            with self.reg.db.write() as session:
                records.give_up(session, places.target)
            self.copier = None

    def _copier(self) -> Copier | None:
        """The running copy, or a new one that goes on by the records."""
        places = self._places()
        if self.copier is None and (places.target or places.previous):
            is_live = places.previous is not None
            source = places.previous or places.current
            target = places.target or places.current
            self.copier = Copier(
                self.reg.db, self._store(source), self._store(target), lambda copied: None
            )
            self.copier.is_live = is_live
        return self.copier

    @invariant()
    def every_acknowledged_object_is_there(self) -> None:
        for process in getattr(self, "processes", ()):
            for key, data in self.objects.items():
                assert read_all(process, key) == data
            listed = {info.key for info in process.list("")}
            assert self.objects.keys() <= listed

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            while self.slow:
                self.end_put()
            self.copy()
            self.switch(True)
            self._try_to_finish()
            places = self._places()
            assert places.previous is None
            stored = {info.key for info in self._store(places.current).list("")}
            assert stored == self.objects.keys()  # and nothing that was deleted came back
            self.every_acknowledged_object_is_there()
            for process in self.processes:
                try:
                    process.size(pack_key("0" * 32))
                except ObjectNotFound:
                    continue
                raise AssertionError("a missing object must be missing")
        finally:
            self.stack.close()


def test_no_acknowledged_object_is_ever_unreadable() -> None:
    run_state_machine_as_test(
        Moves,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
