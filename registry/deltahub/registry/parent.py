"""Ends a process when the one that started it ends, however that one dies."""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(*, watch_input: bool = True) -> None:
    """End this process at once when its parent ends.

    The parent holds the other end of our standard input and never writes to it, so end of file
    means that the parent is gone. On Linux the kernel sends SIGKILL as well, which also ends a
    process that is busy in native code. Dying at any line is safe: jobs resume at their last step.
    watch_input: False if the caller reads the input, and ends the process at its end.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))
    if watch_input:
        threading.Thread(target=_exit_at_end_of_input, name="parent-watch", daemon=True).start()


def _exit_at_end_of_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
