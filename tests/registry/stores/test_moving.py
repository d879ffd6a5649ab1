"""The store that follows a move fulfils the contract in each phase, and finds each object."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from deltahub.registry.storage.base import ObjectNotFound, Store, StoreUnavailable
from deltahub.registry.storage.local import FileStore
from deltahub.registry.storage.memory import MemoryStore
from deltahub.registry.stores.moving import MovingStore
from deltahub.registry.stores.places import Place, Places
from deltahub.registry.stores.write_locks import WriteLocks
from support.stores.store_contract import StoreContract, read_all

OLD, NEW = Place("a" * 32, ""), Place("b" * 32, "s3://bucket/hub")
PHASES = {
    "before": Places(OLD),
    "copied": Places(OLD, target=NEW),
    "switched": Places(NEW, previous=OLD),
    "after": Places(NEW),
}


class Move:
    """Two stores, and the records of where the objects lie."""

    def __init__(self, old: Store, new: Store) -> None:
        self.places = PHASES["before"]
        self.stores = {OLD.mark: old, NEW.mark: new}
        self.old, self.new = old, new

    def process(self) -> MovingStore:
        """The store as a process sees it that starts now."""
        return MovingStore(
            self.places,
            self.stores[self.places.current.mark],
            read_places=lambda: self.places,
            open_place=lambda place: self.stores[place.mark],
            writing=lambda mark: nullcontext(),
        )


@pytest.fixture
def move() -> Move:
    return Move(MemoryStore(), MemoryStore())


@pytest.mark.parametrize("phase", PHASES)
class TestMovingStore(StoreContract):
    @pytest.fixture
    def store(self, phase: str, tmp_path: Path) -> MovingStore:
        found = Move(FileStore(tmp_path / "old"), FileStore(tmp_path / "new"))
        store = found.process()  # it has to learn of the move by itself
        found.places = PHASES[phase]
        return store


def test_a_process_that_knows_an_old_record_finds_what_another_wrote(move: Move) -> None:
    slow = move.process()
    slow.put("packs/aa/before", [b"1"])
    move.places = PHASES["switched"]
    fast = move.process()
    fast.put("packs/aa/after", [b"2"])
    for process in (slow, fast):
        assert read_all(process, "packs/aa/before") == b"1"
        assert read_all(process, "packs/aa/after") == b"2"
        assert sorted(info.key for info in process.list("")) == [
            "packs/aa/after", "packs/aa/before",
        ]  # fmt: skip
        with pytest.raises(ObjectNotFound):
            process.size("packs/aa/never")
    slow.put("packs/aa/later", [b"3"])
    assert read_all(move.new, "packs/aa/later") == b"3"


def test_a_process_that_opened_its_store_before_the_switch_writes_into_the_new_place(
    move: Move,
) -> None:
    late = move.process()  # it has read the records, and takes a second to start
    move.places = PHASES["after"]
    late.put("packs/aa/x", [b"1"])
    assert read_all(move.new, "packs/aa/x") == b"1"
    move.new.put("packs/aa/y", [b"2"])
    assert read_all(late, "packs/aa/y") == b"2"


def test_a_place_that_does_not_answer_is_not_tried_by_every_reader(move: Move) -> None:
    n_tries = 0

    def open_place(place: Place) -> Store:
        nonlocal n_tries
        n_tries += 1
        raise StoreUnavailable("no answer")

    process = MovingStore(
        PHASES["before"],
        move.old,
        read_places=lambda: PHASES["after"],
        open_place=open_place,
        writing=lambda mark: nullcontext(),
    )
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="no answer"):
            process.size("packs/aa/x")
    assert n_tries == 1


def test_a_file_is_taken_into_the_place_that_is_current(move: Move, tmp_path: Path) -> None:
    process = move.process()
    move.places = PHASES["switched"]
    (tmp_path / "file").write_bytes(b"bytes")
    process.take_file("landing/x", tmp_path / "file")
    process.put_together({"landing/y": b"y"})
    assert sorted(info.key for info in move.new.list("")) == ["landing/x", "landing/y"]
    assert list(move.old.list("")) == []


def test_nothing_is_asked_of_a_place_that_was_left(move: Move) -> None:
    process = move.process()
    process.put("a", [b"old"])
    move.places = PHASES["after"]
    fresh = move.process()
    with pytest.raises(ObjectNotFound):
        fresh.size("a")


def test_a_deletion_reaches_a_place_that_came_while_it_deleted(move: Move) -> None:
    class Switching(MemoryStore):
        """Meanwhile the copy wrote the object to a target, and switched."""

        def delete(self, key: str) -> None:
            super().delete(key)
            if move.places == PHASES["before"]:
                move.new.put(key, [b"copied"])
                move.places = PHASES["switched"]

    move.old = move.stores[OLD.mark] = Switching()
    process = move.process()
    process.put("a", [b"1"])
    process.delete("a")
    assert list(move.new.list("")) == []
    assert list(move.old.list("")) == []


def test_a_target_that_fails_does_not_keep_the_hub_from_deleting(
    move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryStore):
        asked = 0

        def delete(self, key: str) -> None:
            self.asked += 1
            raise StoreUnavailable("no route to host")

    away = move.stores[NEW.mark] = Away()
    process = move.process()
    process.put("a", [b"1"])
    move.places = PHASES["copied"]
    process.delete("a")
    process.delete("b")
    assert list(move.old.list("")) == []
    assert away.asked == 1  # a service that is away would slow each deletion down
    assert "s3://bucket/hub" in caplog.text


def test_a_store_that_is_away_is_no_missing_object(move: Move) -> None:
    class Away(MemoryStore):
        def size(self, key: str) -> int:
            raise StoreUnavailable("no route to host")

    move.stores[OLD.mark] = Away()
    move.places = PHASES["switched"]
    with pytest.raises(StoreUnavailable):
        move.process().size("a")


@pytest.fixture
def in_a_write(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A thread holds the write lock of the old place until the returned function is called."""
    locks, has_it, may_end = WriteLocks(tmp_path), threading.Event(), threading.Event()

    def hold() -> None:
        with locks.writing(OLD.mark):
            has_it.set()
            may_end.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_it.wait(10)
    yield may_end.set
    may_end.set()
    thread.join()


def test_the_wait_for_writers_ends_with_the_last_write(
    tmp_path: Path, in_a_write: Callable[[], None]
) -> None:
    locks = WriteLocks(tmp_path)
    with locks.writing(OLD.mark):  # writers do not keep each other out
        pass
    waited = []

    def waits() -> None:
        waited.append(1)
        in_a_write()

    locks.wait_for_writers(OLD.mark, waits)
    assert waited
    locks.wait_for_writers(NEW.mark, lambda: pytest.fail("nobody writes there"))
