"""Packs of a far store are kept on this machine, and never come back with a wrong byte."""

import errno
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    StoreUnavailable,
)
from deltahub.registry.storage.cache.entry import SEGMENT_BYTES
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.cache.store import FETCH_BYTES, CachedStore
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import FileStore
from deltahub.registry.storage.memory import MemoryStore
from support.stores.cached_stores import GIB, cached, pack, read
from support.stores.counting_store import CountingStore
from support.stores.small_disk import SmallDisk
from support.stores.store_contract import StoreContract

KEY = "packs/ab/x"


def cached_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.fixture
def inner() -> CountingStore:
    return CountingStore()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class TestCachedStore(StoreContract):
    @pytest.fixture
    def store(self, folder: Path, inner: CountingStore) -> Iterator[CachedStore]:
        store = cached(folder, inner)
        yield store
        store.close()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_ranges_are_right_and_are_asked_for_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    inner = CountingStore()
    size = data.draw(st.integers(1, 5 * SEGMENT_BYTES))
    whole = pack(size, size)
    inner.put(KEY, [whole])
    store = cached(tmp_path_factory.mktemp("any"), inner)
    for _ in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.integers(0, size - 1))
        end = data.draw(st.integers(start + 1, size))
        if data.draw(st.booleans()):
            store.prefetch(KEY, start, end)
        assert read(store, KEY, start, end) == whole[start:end]
    store.close()
    asked = sorted((start, start + n) for _, start, n in inner.requests)
    assert all(end <= start for (_, end), (start, _) in pairwise(asked))


def test_a_second_process_asks_the_store_for_nothing(folder: Path, inner: CountingStore) -> None:
    whole = pack(1, 3 * FETCH_BYTES + 5)
    inner.put(KEY, [whole])
    assert read(cached(folder, inner), KEY, 0, len(whole)) == whole
    assert len(inner.requests) == 4  # of FETCH_BYTES each, and the rest
    inner.is_away = True
    assert read(cached(folder, inner), KEY, 0, len(whole)) == whole


def test_what_proves_reads_the_store_itself(folder: Path, inner: CountingStore) -> None:
    inner.put(KEY, [b"right"])
    store = cached(folder, inner)
    assert read(store, KEY, 0, 5) == b"right"
    inner.is_away = True
    with pytest.raises(StoreUnavailable):
        store.get_into(KEY, 0, memoryview(bytearray(5)))
    with pytest.raises(StoreUnavailable):
        store.size(KEY)


def test_uploads_are_not_cached(folder: Path, inner: CountingStore) -> None:
    inner.put("landing/x", [b"upload"])
    store = cached(folder, inner)
    for _ in range(2):
        assert read(store, "landing/x", 0, 6) == b"upload"
    assert len(inner.requests) == 2


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None)
def test_the_cache_keeps_its_limit(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, inner = random.Random(seed), CountingStore()
    folder = tmp_path_factory.mktemp("limit")
    limit = rng.randrange(1, 24) * SEGMENT_BYTES
    store = cached(folder, inner, limit)
    whole = {}
    for i in range(12):
        key = f"packs/ab/{i}"
        whole[key] = pack(i, rng.randrange(1, 6 * SEGMENT_BYTES))
        inner.put(key, [whole[key]])
    for _ in range(30):
        key = rng.choice(sorted(whole))
        assert read(store, key, 0, len(whole[key])) == whole[key]
        assert cached_bytes(folder) <= limit + 2 * 4096  # the lock and the usage have files, too
        if rng.random() < 0.1:
            (folder / "usage").unlink(missing_ok=True)
        if rng.random() < 0.1:
            (folder / "usage").write_bytes(rng.randbytes(16))
    store.close()


def test_what_was_used_longest_ago_goes_first(folder: Path, inner: CountingStore) -> None:
    for i in range(5):
        inner.put(f"packs/ab/{i}", [pack(i, 8 * SEGMENT_BYTES)])
    store = cached(folder, inner, 36 * SEGMENT_BYTES)
    for i in range(4):
        read(store, f"packs/ab/{i}", 0, 8 * SEGMENT_BYTES)
        used_at = time.time() - 1000 + i
        os.utime(folder / f"of-packs,ab,{i}", (used_at, used_at))
    read(store, "packs/ab/0", 0, 1)  # used again
    inner.requests.clear()
    read(store, "packs/ab/4", 0, 8 * SEGMENT_BYTES)
    read(store, "packs/ab/0", 0, 8 * SEGMENT_BYTES)
    assert {key for key, _, _ in inner.requests} == {"packs/ab/4"}
    assert not (folder / "of-packs,ab,1").exists()


def test_readers_go_on_when_the_disk_is_full(folder: Path, inner: CountingStore) -> None:
    whole = pack(1, 4 * SEGMENT_BYTES)
    inner.put(KEY, [whole])
    disk = SmallDisk(room=2 * SEGMENT_BYTES, free=GIB)
    store = cached(folder, inner, disk=disk)
    for _ in range(2):
        assert read(store, KEY, 0, len(whole)) == whole
    disk.room = GIB
    assert read(store, KEY, 0, len(whole)) == whole
    inner.is_away = True
    assert read(store, KEY, 0, len(whole)) == whole


def test_the_cache_makes_way_when_the_disk_gets_full(folder: Path, inner: CountingStore) -> None:
    whole = pack(1, 4 * SEGMENT_BYTES)
    inner.put(KEY, [whole])
    disk = SmallDisk(free=GIB)
    cache = ObjectCache(folder, GIB, disk, keep_free=1 << 20)
    store = CachedStore(inner, cache)
    read(store, KEY, 0, len(whole))
    cache.leave_room()
    assert cache.kept_bytes >= len(whole)
    disk.free = 1000
    cache.leave_room()
    assert cache.kept_bytes == 0
    assert cached_bytes(folder) <= 2 * 4096
    assert read(store, KEY, 0, len(whole)) == whole
    assert cached_bytes(folder) <= 2 * 4096


class BrokenDisk(Disk):
    def open(self, path: Path, flags: int) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_folder_that_cannot_be_written_is_logged_and_readers_go_on(
    folder: Path, inner: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    inner.put(KEY, [b"right"])
    store = cached(folder, inner, disk=BrokenDisk())
    for _ in range(3):
        assert read(store, KEY, 0, 5) == b"right"
    [record] = caplog.records
    assert "Read-only file system" in record.getMessage()
    assert str(folder) in record.getMessage()


def test_a_limit_of_0_keeps_nothing(folder: Path, inner: CountingStore) -> None:
    inner.put(KEY, [b"right"])
    store = cached(folder, inner, 0)
    store.prefetch(KEY, 0, 5)
    assert read(store, KEY, 0, 5) == b"right"
    assert not folder.exists()


def test_threads_that_read_the_same_ask_once(folder: Path) -> None:
    inner = CountingStore(delay_s=0.05)
    whole = pack(1, 3 * SEGMENT_BYTES)
    inner.put(KEY, [whole])
    store = cached(folder, inner)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(read(store, KEY, 0, len(whole))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [whole] * 8
    assert len(inner.requests) == 1


def test_a_hint_fetches_neighbours_in_few_requests(folder: Path, inner: CountingStore) -> None:
    whole = pack(1, 2 * FETCH_BYTES)
    inner.put(KEY, [whole])
    store = cached(folder, inner)
    store.prefetch(KEY, 100, len(whole))
    deadline = time.monotonic() + 20
    while sum(n for _, _, n in inner.requests) < len(whole) and time.monotonic() < deadline:
        time.sleep(0.01)
    for start in range(0, len(whole), SEGMENT_BYTES):
        read(store, KEY, start, start + SEGMENT_BYTES)
    store.close()
    assert len(inner.requests) <= 3
    assert max(n for _, _, n in inner.requests) <= FETCH_BYTES + SEGMENT_BYTES


def test_a_hint_for_what_is_gone_is_no_error(folder: Path, inner: CountingStore) -> None:
    store = cached(folder, inner)
    store.prefetch(KEY, 0, 100)
    store.close()
    store.prefetch(KEY, 0, 100)


def test_a_fetch_that_a_put_overtakes_does_not_bring_old_bytes_back(folder: Path) -> None:
    old, new = pack(1, 100), pack(2, 100)
    inner = CountingStore()
    inner.put(KEY, [old])
    ours, others = cached(folder, inner), cached(folder, inner)
    has_read, may_go_on = threading.Event(), threading.Event()
    get_into = inner.get_into

    def slow(key: str, start: int, out: memoryview) -> None:
        get_into(key, start, out)
        has_read.set()
        may_go_on.wait(20)

    inner.get_into = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=read, args=(others, KEY, 0, 100))
    thread.start()
    has_read.wait(20)
    inner.get_into = get_into  # type: ignore[method-assign]
    ours.put(KEY, [new])
    may_go_on.set()
    thread.join()
    assert read(others, KEY, 0, 100) == new
    assert read(ours, KEY, 0, 100) == new


def test_a_copy_longer_than_its_object_is_no_reason_to_fail(
    folder: Path, inner: CountingStore
) -> None:
    inner.put(KEY, [b"old and long"])
    store = cached(folder, inner)
    assert read(store, KEY, 0, 3) == b"old"
    inner.delete(KEY)  # by another machine
    store.forget(KEY)
    with pytest.raises(ObjectNotFound):
        read(store, KEY, 0, 3)
    inner.put(KEY, [b"new"])
    assert read(store, KEY, 0, 3) == b"new"
    with pytest.raises(ShortObject):
        read(store, KEY, 0, 4)


def _read_at_random(folder: Path, objects: Path, sizes: dict[str, int], seed: int) -> None:
    rng, store = random.Random(seed), cached(folder, FileStore(objects), 24 * SEGMENT_BYTES)
    for _ in range(60):
        key = rng.choice(sorted(sizes))
        start = rng.randrange(sizes[key])
        end = rng.randrange(start, sizes[key]) + 1
        whole = pack(int(key.rpartition("/")[2]), sizes[key])
        assert read(store, key, start, end) == whole[start:end]
        if rng.random() < 0.05:
            store.forget(key)
    store.close()


def test_processes_share_a_cache_that_is_too_small(folder: Path, tmp_path: Path) -> None:
    objects = FileStore(tmp_path / "objects")
    sizes = {f"packs/ab/{i}": (i + 1) * SEGMENT_BYTES - i for i in range(9)}
    for i, (key, size) in enumerate(sizes.items()):
        objects.put(key, [pack(i, size)])
    start = multiprocessing.get_context("spawn").Process
    arguments = (folder, tmp_path / "objects", sizes)
    processes = [start(target=_read_at_random, args=(*arguments, seed)) for seed in range(2)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        if folder.exists():
            assert cached_bytes_now(folder) <= 24 * SEGMENT_BYTES + 2 * 4096
        time.sleep(0.01)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def cached_bytes_now(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_a_cache_whose_disk_fails_to_read_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, data = MemoryStore(), pack(1, 300_000)
    inner.put(KEY, [data])
    store = cached(tmp_path / "cache", inner)
    assert read(store, KEY, 0, 300_000) == data

    def fail(fd: int, buffers: object, offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    for _ in range(2):
        assert read(store, KEY, 1000, 200_000) == data[1000:200_000]


def test_what_is_dropped_is_not_counted_any_more(tmp_path: Path) -> None:
    inner = MemoryStore()
    cache = ObjectCache(tmp_path / "cache", GIB, Disk(), keep_free=0)
    store = CachedStore(inner, cache)
    for n in range(5):
        key = f"packs/aa/{n}"
        inner.put(key, [pack(n, 1 << 20)])
        read(store, key, 0, 1 << 20)
    assert cache.kept_bytes >= 5 << 20
    store.delete_together([f"packs/aa/{n}" for n in range(5)])
    assert cache.kept_bytes < 1 << 17
