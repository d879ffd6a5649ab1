"""A pool of buffers for bytes that are about to be read or decoded."""

import mmap
from contextlib import suppress
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

# Buffers of these sizes in bytes are reused for two reasons: the kernel needs a tenth of the decode
# time to provide fresh pages, and recently used memory is still in the CPU's caches.
SMALLEST: Final = 64 << 10
LARGEST: Final = 4 << 20
# Size of a huge page, used where the system provides them. One TLB entry then replaces 512. Page
# walks for small pages, doubled in a virtual machine, took a few percent of a download's time.
LARGE_PAGE: Final = 2 << 20
# Limit of the unused bytes in the pool, over all sizes.
IDLE_BYTES: Final = 48 << 20


class _LentArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array of pooled memory. The memory returns to the pool when its last view is gone."""

    memory: U8 | None = None

    def __del__(self) -> None:
        # Only the array that the pool lent has it; arrays that numpy derives from that have None.
        if self.memory is not None:
            _POOL.take_back(self.memory)


def _fresh(size: int) -> U8:
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8)
    try:  # MAP_PRIVATE: shared mappings get huge pages only where the system is configured for it
        room = mmap.mmap(-1, size + LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as exc:
        raise MemoryError(f"no room for {size} bytes") from exc
    with suppress(OSError):  # a kernel without huge pages: small pages work, too
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(room, np.uint8)
    begin = -whole.ctypes.data % LARGE_PAGE
    return whole[begin : begin + size]


class _Pool:
    def __init__(self) -> None:
        self._idle: list[U8] = []  # in order of return: the most recent is last
        self.idle_bytes = 0
        self._lock = Lock()

    def lend(self, size: int) -> U8:
        with self._lock:
            for i in reversed(range(len(self._idle))):
                if self._idle[i].nbytes == size:
                    self.idle_bytes -= size
                    return self._idle.pop(i)
        return _fresh(size)

    def take_back(self, memory: U8) -> None:
        # Python's garbage collector may call this within lend() in the same thread, which holds the
        # lock. The memory is freed then instead of pooled.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._idle.append(memory)
            self.idle_bytes += memory.nbytes
            while self.idle_bytes > IDLE_BYTES:
                self.idle_bytes -= self._idle.pop(0).nbytes
        finally:
            self._lock.release()


_POOL: Final = _Pool()


def allocate_buffer(n: int) -> memoryview:
    """n writable bytes of undefined value. The caller must fill all that it passes on.

    They belong to the caller until the last view of them is gone.
    """
    if not SMALLEST <= n <= LARGEST:
        return np.empty(n, np.uint8).data
    memory = _POOL.lend(1 << (n - 1).bit_length())
    lent = memory[:n].view(_LentArray)
    lent.memory = memory
    return lent.data


def idle_bytes() -> int:
    """Unused bytes in the pool."""
    return _POOL.idle_bytes
