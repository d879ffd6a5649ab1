"""The buffer pool never lends the same memory twice at a time."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from deltahub.registry.packs.buffers import (
    IDLE_BYTES,
    LARGE_PAGE,
    LARGEST,
    SMALLEST,
    allocate_buffer,
    idle_bytes,
)


def place(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("n", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, LARGEST, LARGEST + 1])
def test_room_is_as_large_as_asked(n: int) -> None:
    room = allocate_buffer(n)
    assert (room.nbytes, room.format, room.readonly) == (n, "B", False)
    room[:] = b"x" * n
    assert bytes(room) == b"x" * n


def test_memory_comes_back_once_its_last_view_is_gone() -> None:
    room = allocate_buffer(SMALLEST + 1)
    where = place(room)
    part = room[10:20]
    numbers = np.frombuffer(part, np.uint8)
    del room
    others = [allocate_buffer(SMALLEST + 1) for _ in range(3)]
    assert where not in map(place, others)
    del part
    others += [allocate_buffer(SMALLEST + 1) for _ in range(3)]
    assert where not in map(place, others)
    del numbers
    assert place(allocate_buffer(2 * SMALLEST)) == where  # the pooled size is the same


def permissions(room: memoryview) -> str:
    """The permissions of the memory's mapping, from /proc."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, said = line.split()[:2]
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if begin <= place(room) < end:
            return said
    raise AssertionError("memory that is not mapped")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux has large pages")
def test_large_rooms_begin_where_large_pages_do() -> None:
    rooms = [allocate_buffer(n) for n in (LARGE_PAGE, LARGE_PAGE + 1, LARGEST, LARGEST)]
    assert [place(room) % LARGE_PAGE for room in rooms] == [0, 0, 0, 0]
    assert {permissions(room) for room in rooms} == {"rw-p"}, "of no other process"
    for i, room in enumerate(rooms):
        room[:] = bytes([i]) * room.nbytes
    assert all(set(room) == {i} for i, room in enumerate(rooms))


def test_no_more_than_a_few_rooms_wait_for_their_next_use() -> None:
    rooms = [allocate_buffer(LARGEST) for _ in range(2 * IDLE_BYTES // LARGEST)]
    rooms.clear()
    assert IDLE_BYTES - LARGEST < idle_bytes() <= IDLE_BYTES
    small = allocate_buffer(SMALLEST)
    where = place(small)
    del small  # the longest unused memory is freed for it
    assert idle_bytes() <= IDLE_BYTES
    assert place(allocate_buffer(SMALLEST)) == where
    rooms = [allocate_buffer(LARGEST) for _ in range(2 * IDLE_BYTES // LARGEST)]
    assert len(set(map(place, rooms))) == len(rooms)


def test_threads_never_share_memory() -> None:
    def fill(seed: int) -> bool:
        kept: list[tuple[int, memoryview]] = []
        for i in range(300):
            value = (seed * 31 + i) % 256
            room = allocate_buffer(SMALLEST + (seed * 7919 + i * 104729) % SMALLEST)
            room[:64] = room[-64:] = bytes([value]) * 64
            kept.append((value, room))
            if len(kept) > 5:
                value, room = kept.pop(seed % 5)
                if bytes(room[:64]) + bytes(room[-64:]) != bytes([value]) * 128:
                    return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(fill, range(16)))
