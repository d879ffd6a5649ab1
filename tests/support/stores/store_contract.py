"""Tests of the Store contract. The test class of a store inherits them and provides the store."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltahub.registry.storage.base import (
    InvalidKey,
    ObjectNotFound,
    ShortObject,
    Store,
)


def read_all(store: Store, key: str) -> bytes:
    """The object, which all ways to read it must agree on."""
    out, copy = bytearray(store.size(key)), bytearray(store.size(key))
    store.get_into(key, 0, memoryview(out))
    for _ in range(2):  # the second time from a copy on this machine, if the store makes one
        store.get_cached_into(key, 0, memoryview(copy))
        assert copy == out
    return bytes(out)


# More than two parts of an upload, and no multiple of one.
LARGE_BYTES = (33 << 20) + 17


class StoreContract:
    def test_what_was_put_is_read_back(self, store: Store) -> None:
        store.put("packs/ab/x", [b"one", bytearray(b"two"), memoryview(b"three")])
        assert read_all(store, "packs/ab/x") == b"onetwothree"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("empty", [])
        assert store.size("empty") == 0
        store.get_into("empty", 0, memoryview(bytearray()))

    def test_a_range_fills_the_buffer_of_the_caller(self, store: Store) -> None:
        store.put("digits", [b"0123456789"])
        out = bytearray(b"________")
        store.get_into("digits", 3, memoryview(out)[2:6])
        assert out == b"__3456__"

    @pytest.mark.parametrize(("start", "size"), [(8, 3), (10, 1), (99, 1)])
    def test_a_range_behind_the_end_is_refused(self, store: Store, start: int, size: int) -> None:
        store.put("digits", [b"0123456789"])
        with pytest.raises(ShortObject, match="10 bytes"):
            store.get_into("digits", start, memoryview(bytearray(size)))

    @pytest.mark.parametrize(("start", "size"), [(8, 3), (10, 1), (99, 1)])
    def test_a_range_of_a_copy_behind_the_end_is_refused(
        self, store: Store, start: int, size: int
    ) -> None:
        store.put("packs/ab/x", [b"0123456789"])
        store.prefetch("packs/ab/x", start, start + size)
        for _ in range(2):
            with pytest.raises(ShortObject, match="10 bytes"):
                store.get_cached_into("packs/ab/x", start, memoryview(bytearray(size)))

    def test_a_copy_follows_its_object(self, store: Store) -> None:
        store.put("packs/ab/x", [b"old and long"])
        assert read_all(store, "packs/ab/x") == b"old and long"
        store.put("packs/ab/x", [b"new"])
        assert read_all(store, "packs/ab/x") == b"new"
        store.forget("packs/ab/x")
        assert read_all(store, "packs/ab/x") == b"new"
        store.delete("packs/ab/x")
        store.forget("packs/ab/x")
        store.prefetch("packs/ab/x", 0, 3)
        with pytest.raises(ObjectNotFound, match="packs/ab/x"):
            store.get_cached_into("packs/ab/x", 0, memoryview(bytearray(1)))

    def test_an_absent_object_is_not_found(self, store: Store) -> None:
        store.put("folder/x", [b"1"])
        for key in ("absent", "folder", "folder/x/y"):
            with pytest.raises(ObjectNotFound, match=key):
                store.size(key)
            with pytest.raises(ObjectNotFound, match=key):
                store.get_into(key, 0, memoryview(bytearray(1)))

    def test_put_replaces_an_object(self, store: Store) -> None:
        store.put("a", [b"old and long"])
        store.put("a", [b"new"])
        assert read_all(store, "a") == b"new"

    def test_what_was_put_together_is_there_by_its_keys(self, store: Store) -> None:
        store.put("landing/7", [b"old and long"])
        objects = {f"landing/{i}": b"%d" % i * (i % 3) for i in range(150)}
        store.put_together(objects | {"packs/a/x": bytearray(b"x")})
        assert {key: read_all(store, key) for key in objects} == objects
        assert read_all(store, "packs/a/x") == b"x"
        store.put_together({})

    def test_a_put_that_fails_leaves_nothing_to_see(self, store: Store) -> None:
        def broken() -> Iterator[bytes]:
            yield b"half"
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError):
            store.put("a", broken())
        assert list(store.list("")) == []

    def test_deleting_twice_is_no_error(self, store: Store) -> None:
        store.put("folder/a", [b"1"])
        store.delete("folder/a")
        store.delete("folder/a")
        store.delete("never/was")
        assert list(store.list("")) == []

    def test_many_are_deleted_together_whether_they_are_there_or_not(self, store: Store) -> None:
        store.put_together({f"landing/{i}": b"%d" % i for i in range(150)} | {"packs/a/x": b"x"})
        store.delete_together([*(f"landing/{i}" for i in range(149)), "packs/a/x", "never/was"])
        assert [info.key for info in store.list("")] == ["landing/149"]
        store.delete_together([])

    def test_a_list_holds_the_keys_of_a_prefix(self, store: Store) -> None:
        keys = ["a/b", "a-b", "a/a/c", "a.b", "b/ab/x", "b/ac/x", "ab"]
        for key in keys:
            store.put(key, [key.encode()])
        assert sorted(info.key for info in store.list("")) == sorted(keys)
        assert sorted(info.key for info in store.list("a/")) == ["a/a/c", "a/b"]
        assert sorted(info.key for info in store.list("b/a")) == ["b/ab/x", "b/ac/x"]
        assert [info.key for info in store.list("zzz")] == []
        assert {info.key: info.size for info in store.list("")} == {k: len(k) for k in keys}
        assert all(info.modified_at.tzinfo is not None for info in store.list(""))

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".tmp/x", "A", "a b", "a\0", "ä",
         "a\\b", "a\n", "x" * 201],
    )  # fmt: skip
    def test_a_key_that_is_none_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(InvalidKey):
            store.put(key, [b"1"])
        with pytest.raises(InvalidKey):
            store.size(key)
        with pytest.raises(InvalidKey):
            store.get_into(key, 0, memoryview(bytearray(1)))
        with pytest.raises(InvalidKey):
            store.delete(key)

    def test_a_finished_local_file_becomes_an_object(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "finished"
        path.write_bytes(b"bytes")
        store.take_file("landing/x", path)
        assert read_all(store, "landing/x") == b"bytes"
        assert not path.exists()

    def test_a_large_object_comes_back_from_a_stream_and_from_a_file(
        self, store: Store, tmp_path: Path
    ) -> None:
        data = random.Random(1).randbytes(LARGE_BYTES)
        view = memoryview(data)
        store.put(
            "packs/ab/x", (view[at : at + 3_000_001] for at in range(0, len(data), 3_000_001))
        )
        assert read_all(store, "packs/ab/x") == data
        path = tmp_path / "file"
        path.write_bytes(data)
        store.take_file("packs/ab/y", path)
        assert not path.exists()
        assert read_all(store, "packs/ab/y") == data
        out = bytearray(1 << 20)
        store.get_into("packs/ab/y", LARGE_BYTES - len(out), memoryview(out))
        assert out == view[LARGE_BYTES - len(out) :]

    def test_ranges_are_read_in_parallel(self, store: Store) -> None:
        data = random.Random(2).randbytes(1 << 20)
        store.put("a", [data])

        def read(seed: int) -> bool:
            start = random.Random(seed).randrange(1 << 19)
            out = bytearray(1 + seed * 1000)
            store.get_into("a", start, memoryview(out))
            return out == data[start : start + len(out)]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(64)))

    def test_of_concurrent_puts_of_a_key_one_whole_object_stays(self, store: Store) -> None:
        written = [bytes([65 + i]) * (100_000 + i) for i in range(6)]

        def put(data: bytes) -> None:
            for _ in range(3):
                store.put("a", [data[:50_000], data[50_000:]])

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(put, written))
        assert read_all(store, "a") in written
        assert [info.key for info in store.list("")] == ["a"]

    def test_a_reader_gets_one_object_whole_while_it_is_replaced(self, store: Store) -> None:
        size = 300_000
        store.put("a", [b"\0" * size])
        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(
                lambda: [store.put("a", [bytes([i]) * size]) for i in range(1, 20)]
            )
            while True:
                is_last = writer.done()
                out = bytearray(size)
                store.get_into("a", 0, memoryview(out))
                assert len(set(out)) == 1
                if is_last:
                    break
            writer.result()

    def test_a_reader_gets_the_object_or_an_error_while_it_is_deleted(self, store: Store) -> None:
        data = b"d" * 300_000
        with ThreadPoolExecutor(1) as pool:
            for _ in range(8):
                store.put("a", [data])
                deletion = pool.submit(store.delete, "a")
                while True:
                    is_last = deletion.done()
                    out = bytearray(len(data))
                    try:
                        store.get_into("a", 0, memoryview(out))
                    except ObjectNotFound:
                        break
                    assert out == data
                    assert not is_last, "the object is there after its deletion"

    def test_the_mark_is_no_object(self, store: Store) -> None:
        assert store.mark() is None
        store.set_mark("0123abcd")
        assert store.mark() == "0123abcd"
        assert list(store.list("")) == []

    def test_a_put_that_ended_leaves_nothing_unfinished(self, store: Store) -> None:
        def broken() -> Iterator[bytes]:
            yield b"x" * (20 << 20)
            raise RuntimeError("the source broke")

        store.put("a", [b"1"])
        with pytest.raises(RuntimeError):
            store.put("b", broken())
        assert list(store.unfinished()) == []
