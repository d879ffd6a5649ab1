"""Who reads an object from front to back is read ahead of, and never gets a wrong or old byte."""

import contextvars
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry import cancellation
from deltahub.registry.errors import Cancelled
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, StoreUnavailable
from deltahub.registry.storage.sequential import MOST_STREAMS, WINDOW_BYTES, SequentialReads
from support.stores.cached_stores import pack
from support.stores.counting_store import CountingStore
from support.stores.store_contract import StoreContract

KEY = "landing/x"
MIB = 1 << 20


@pytest.fixture
def inner() -> CountingStore:
    return CountingStore()


@pytest.fixture
def store(inner: CountingStore) -> Iterator[SequentialReads]:
    store = SequentialReads(inner)
    yield store
    store.close()


class TestSequentialReads(StoreContract):
    @pytest.fixture
    def store(self, inner: CountingStore) -> Iterator[SequentialReads]:
        store = SequentialReads(inner)
        yield store
        store.close()


def read(store: SequentialReads, start: int, end: int, key: str = KEY) -> bytes:
    out = bytearray(end - start)
    store.get_into(key, start, memoryview(out))
    return bytes(out)


def test_small_reads_become_few_requests(store: SequentialReads, inner: CountingStore) -> None:
    whole = pack(1, 16 * MIB + 5)
    inner.put(KEY, [whole])
    step = 64 << 10
    found = b"".join(
        read(store, at, min(at + step, len(whole))) for at in range(0, len(whole), step)
    )
    assert found == whole
    assert len(inner.requests) <= 4 + 16 * MIB // WINDOW_BYTES


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_reads_of_any_readers_are_right(data: st.DataObject) -> None:
    inner = CountingStore()
    store = SequentialReads(inner)
    whole = {f"landing/{i}": pack(i, data.draw(st.integers(1, 4 * MIB))) for i in range(2)}
    for key, content in whole.items():
        inner.put(key, [content])
    position = dict.fromkeys(whole, 0)
    for _ in range(data.draw(st.integers(1, 40))):
        key = data.draw(st.sampled_from(sorted(whole)))
        size = len(whole[key])
        start = min(position[key] + data.draw(st.sampled_from([0, 0, 0, 1000, -5000])), size - 1)
        if data.draw(st.integers(0, 9)) == 0:
            start = data.draw(st.integers(0, size - 1))
        start = max(0, start)
        end = min(size, start + data.draw(st.integers(1, MIB)))
        assert read(store, start, end, key) == whole[key][start:end]
        position[key] = end
    store.close()


def test_who_reads_again_gets_the_bytes_of_the_store(
    store: SequentialReads, inner: CountingStore
) -> None:
    inner.put(KEY, [bytes(4 * MIB)])
    for at in (0, 1000, 2000):
        assert read(store, at, at + 1000) == bytes(1000)
    inner.put(KEY, [b"\1" * 4 * MIB])  # by another process
    assert read(store, 2000, 3000) == b"\1" * 1000
    assert read(store, 0, 1000) == b"\1" * 1000


def test_old_bytes_are_not_given_out(
    store: SequentialReads, inner: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner.put(KEY, [bytes(4 * MIB)])
    for at in (0, 1000, 2000):
        read(store, at, at + 1000)
    inner.delete(KEY)
    monkeypatch.setattr("deltahub.registry.storage.sequential.FRESH_S", -1.0)
    with pytest.raises(ObjectNotFound):
        read(store, 3000, 4000)


def test_a_put_or_a_delete_through_the_store_is_seen_at_once(
    store: SequentialReads, inner: CountingStore
) -> None:
    inner.put(KEY, [bytes(4 * MIB)])
    for at in (0, 1000, 2000):
        read(store, at, at + 1000)
    store.put(KEY, [b"\1" * 4 * MIB])
    for at in (3000, 4000, 5000):
        assert read(store, at, at + 1000) == b"\1" * 1000
    store.delete(KEY)
    with pytest.raises(ObjectNotFound):
        read(store, 6000, 7000)


def test_errors_are_those_of_the_store(store: SequentialReads, inner: CountingStore) -> None:
    inner.put(KEY, [bytes(3000)])
    read(store, 0, 1000)
    read(store, 1000, 2000)
    with pytest.raises(ShortObject):
        read(store, 2000, 3001)
    assert read(store, 2500, 3000) == bytes(500)
    inner.put(KEY, [bytes(4 * MIB)])
    read(store, 0, 1000)
    inner.is_away = True
    with pytest.raises(StoreUnavailable):
        read(store, 1000, 2000)
    inner.is_away = False
    assert read(store, 1000, 2000) == bytes(1000)


def test_a_bad_range_fails_only_its_own_reads() -> None:
    class BadSector(CountingStore):
        is_bad = True

        def get_into(self, key: str, start: int, out: memoryview) -> None:
            if self.is_bad and start < 5000 + 4 * MIB and start + out.nbytes > 4 * MIB:
                raise StoreUnavailable("the disk cannot read it")
            super().get_into(key, start, out)

    inner = BadSector()
    whole = pack(1, 8 * MIB)
    inner.put(KEY, [whole])
    store, step = SequentialReads(inner), 64 << 10
    failed: list[int] = []
    for at in range(0, 8 * MIB, step):
        try:
            assert read(store, at, at + step) == whole[at : at + step]
        except StoreUnavailable:
            failed.append(at)
    assert failed == [4 * MIB]
    inner.is_bad = False
    for at in range(4 * MIB, 5 * MIB, step):
        assert read(store, at, at + step) == whole[at : at + step]
    store.close()


def test_what_comes_late_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow link a window takes longer than its bytes stay fresh."""
    monkeypatch.setattr("deltahub.registry.storage.sequential.FRESH_S", 0.1)
    inner = CountingStore(delay_s=0.2)
    whole = pack(1, 4 * MIB)
    inner.put(KEY, [whole])
    store, step = SequentialReads(inner), 64 << 10
    for at in range(0, 4 * MIB, step):
        assert read(store, at, at + step) == whole[at : at + step]
    assert len(inner.requests) <= 12
    store.close()


def test_who_waits_leaves_with_its_caller(store: SequentialReads, inner: CountingStore) -> None:
    inner.put(KEY, [bytes(4 * MIB)])
    read(store, 0, 1000)
    inner.delay_s = 3.0
    caller = cancellation.Cancellation()
    began = time.monotonic()
    threading.Timer(0.3, caller.cancel).start()

    def of_caller() -> None:
        cancellation.use(caller)
        read(store, 1000, 2000)

    with pytest.raises(Cancelled):
        contextvars.copy_context().run(of_caller)
    assert time.monotonic() - began < 2.0


def test_many_readers_take_bounded_memory(store: SequentialReads, inner: CountingStore) -> None:
    keys = [f"landing/{i}" for i in range(4 * MOST_STREAMS)]
    for key in keys:
        inner.put(key, [bytes(4 * MIB)])
    for at in range(0, 100_000, 1000):
        for key in keys:
            assert read(store, at, at + 1000, key) == bytes(1000)
    ahead = {key for key, _, n in inner.requests if n > 1000}
    assert 0 < len(ahead) <= MOST_STREAMS
    assert sum(n for _, _, n in inner.requests if n > 1000) <= MOST_STREAMS * 3 * WINDOW_BYTES
