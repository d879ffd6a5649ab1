"""Room for bytes that are about to be read or decoded."""

import mmap
from contextlib import suppress
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

# Memory of one size goes from hand to hand: fresh pages take the kernel a tenth of the time of
# decoding into them, and what was used a moment ago is still near the processor.
SMALLEST: Final = 64 << 10
LARGEST: Final = 4 << 20
# Memory that the processor finds by one entry of its tables, where the system gives such pages:
# to look up 512 small ones instead, twice in a virtual machine, was some hundredths of a download.
LARGE_PAGE: Final = 2 << 20
# What may lie unused, over all sizes.
IDLE_BYTES: Final = 48 << 20


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory of the pool. It goes back when the last view of it is gone."""

    memory: U8 | None = None

    def __del__(self) -> None:
        # Only the array that was lent has it, not those that numpy makes from it.
        if self.memory is not None:
            _POOL.take_back(self.memory)


def _fresh(size: int) -> U8:
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8)
    try:  # private: what is shared has large pages only where the system was told so
        room = mmap.mmap(-1, size + LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as exc:
        raise MemoryError(f"no room for {size} bytes") from exc
    with suppress(OSError):  # a kernel without them: small ones do
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(room, np.uint8)
    begin = -whole.ctypes.data % LARGE_PAGE
    return whole[begin : begin + size]


class _Pool:
    def __init__(self) -> None:
        self._idle: list[U8] = []  # what came back last is last
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
        # The collector may call this within lend() in the same thread: then it is let go.
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
    """n writable bytes of any value: whoever asks fills all of them, or drops them.

    They are the caller's until the last view of them is gone.
    """
    if not SMALLEST <= n <= LARGEST:
        return np.empty(n, np.uint8).data
    memory = _POOL.lend(1 << (n - 1).bit_length())
    lent = memory[:n].view(_Lent)
    lent.memory = memory
    return lent.data


def idle_bytes() -> int:
    """Memory that waits for its next use."""
    return _POOL.idle_bytes
