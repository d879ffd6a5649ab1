"""What a process counts for monitoring: the store, the database, caches; and the worker's file."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.errors import Unavailable
from deltahub.registry.jobs.worker_measures import FILE, MeasuresFile, read_measures
from deltahub.registry.measures import Durations, Measures, Numbers, Spread
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.storage.base import ObjectNotFound, StoreUnavailable
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.cache.store import CachedStore
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.measured.store import MeasuredStore
from deltahub.registry.storage.memory import MemoryStore
from support.registry.opened import opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


def test_durations_fall_below_the_next_bound() -> None:
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        durations.add(("a",), seconds)
    durations.expect(("b",))
    durations.expect(("a",))
    found = durations.read()
    assert found[("a",)].counts == [2, 1, 1]
    assert found[("a",)].total_s == pytest.approx(7.65)
    assert found[("b",)] == Spread([0, 0, 0])


def test_many_threads_lose_no_count() -> None:
    measures = Measures()

    def count(_: int) -> None:
        measures.store_bytes.add(("read",), 2)
        measures.job_seconds.add(("ingest", "done"), 1.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(4000)))
    assert measures.store_bytes.read() == {("read",): 8000}
    assert sum(measures.job_seconds.read()[("ingest", "done")].counts) == 4000


def test_operations_bytes_and_errors_of_a_store_are_counted(tmp_path: Path) -> None:
    measures = Measures()
    store = MeasuredStore(MemoryStore(), measures)
    store.put("a", [b"12", b"345"])
    store.put_together({"b": b"1", "c": b"23"})
    (tmp_path / "file").write_bytes(b"1234")
    store.take_file("d", tmp_path / "file")
    store.get_into("a", 1, memoryview(bytearray(4)))
    store.get_cached_into("b", 0, memoryview(bytearray(1)))
    with pytest.raises(ObjectNotFound):
        store.size("e")
    assert len(list(store.list(""))) == 4
    store.delete("a")

    def chunks() -> Iterator[bytes]:
        yield b"12"
        raise ValueError("the caller's fault")

    with pytest.raises(ValueError, match="fault"):
        store.put("f", chunks())
    numbers = measures.read()
    counts = {operation: sum(each.counts) for (operation,), each in numbers.store_seconds.items()}
    assert counts == {
        "put": 2, "put_together": 1, "take_file": 1, "get": 2, "size": 1, "list": 1, "delete": 1,
    }  # fmt: skip
    assert numbers.store_bytes == {("written",): 5 + 3 + 4 + 2, ("read",): 5}
    assert numbers.store_errors == {("size", "object_not_found"): 1, ("put", "other"): 1}


def test_an_error_in_the_middle_of_a_list_is_counted_once() -> None:
    class Failing(MemoryStore):
        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            yield from super().list(prefix)
            raise StoreUnavailable("gone")

    measures = Measures()
    store = MeasuredStore(Failing(), measures)
    store.put("a", [b"1"])
    with pytest.raises(StoreUnavailable):
        list(store.list(""))
    next(iter(store.list("")))  # whoever needs only one
    assert measures.store_errors.read() == {("list", "store_unavailable"): 1}


def test_reads_through_the_cache_of_a_bucket_are_hits_or_misses(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache", 64 << 20, Disk(), keep_free=0)
    store = CachedStore(MemoryStore(), cache)
    store.put("packs/ab/x", [bytes(3 << 20)])
    for _ in range(3):
        store.get_cached_into("packs/ab/x", 0, memoryview(bytearray(1 << 20)))
    reads = cache.reads
    assert (reads.n_misses, reads.n_hits) == (1, 2)
    assert (reads.miss_bytes, reads.hit_bytes) == (1 << 20, 2 << 20)
    store.close()


def test_a_cache_in_memory_counts_its_reads() -> None:
    cache: ByteCache[str, int] = ByteCache(100)
    cache.put("a", 1, 60)
    assert [cache.get("a"), cache.get("b")] == [1, None]
    assert (cache.n_hits, cache.n_misses, cache.used_bytes) == (1, 1, 60)


def test_transactions_are_timed_with_their_wait_and_by_their_end(reg: Registry) -> None:
    def n_ended() -> dict[str, int]:
        found = reg.measures.read().write_seconds
        return {outcome: sum(each.counts) for (outcome,), each in found.items()}

    before = n_ended()  # a start looks at the schema
    with reg.db.write() as session:
        session.execute(text("SELECT 1"))
    with pytest.raises(RuntimeError), reg.db.write():
        raise RuntimeError
    with reg.db.read() as session:
        session.execute(text("SELECT 1"))
    assert n_ended() == {
        outcome: before.get(outcome, 0) + 1 for outcome in ("committed", "rolled_back")
    }


def test_a_locked_database_is_an_error(reg: Registry) -> None:
    with reg.db.write_engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        connection.rollback()
    with opened_registry(reg.data_dir.parent) as other, other.db.write():
        with pytest.raises(Unavailable), reg.db.write():
            raise AssertionError("both have the lock")
    assert reg.measures.database_errors.read() == {("unavailable",): 1}
    with pytest.raises(Exception, match="no such table"), reg.db.read() as session:
        session.execute(text("SELECT * FROM nowhere"))
    assert reg.measures.database_errors.read() == {("unavailable",): 1}


def test_the_worker_s_file_has_its_numbers_and_is_replaced_whole(reg: Registry) -> None:
    assert read_measures(reg) is None
    file = MeasuresFile(reg)
    reg.measures.job_seconds.add(("ingest", "done"), 3.0)
    reg.measures.store_errors.add(("get", "store_unavailable"))
    file.write()
    assert read_measures(reg) == reg.measures.read()
    written = (reg.data_dir / FILE).stat().st_mtime_ns
    file.write()  # nothing has changed
    assert (reg.data_dir / FILE).stat().st_mtime_ns == written
    reg.measures.job_seconds.add(("ingest", "done"), 3.0)
    threads = [threading.Thread(target=file.write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_measures(reg) == reg.measures.read()


@pytest.mark.parametrize("junk", ["", "[]", "{}", "null", '{"store_seconds": 1}', "\0" * 50])
def test_a_damaged_file_of_a_worker_is_no_file(reg: Registry, junk: str) -> None:
    (reg.data_dir / FILE).write_text(junk)
    assert read_measures(reg) is None


def test_numbers_survive_json() -> None:
    measures = Measures()
    measures.write_seconds.add(("committed",), 0.3)
    measures.store_bytes.add(("read",), 12345678901)
    numbers = measures.read()
    assert Numbers.from_json(numbers.to_json()) == numbers
