"""How slow a hub may be: no request lasts for ever, even if single bytes keep coming.

docs/sdk.md tells users these limits.
"""

import http.client
import io
import socket
import time
from typing import Any

# A long body must move so many bytes in so many seconds: 1.5 kB/s. The window is longer than a
# hub may pause within a body.
LEAST_BYTES = 256 << 10
WINDOW_S = 180.0
# Bytes after which a transfer over broken connections counts as going on.
PROGRESS_BYTES = 64 << 10


class Pace:
    """The time that one request has left. left_s() raises TimeoutError when there is none."""

    def __init__(self, total_s: float) -> None:
        self.expect(total_s)

    def expect(self, total_s: float) -> None:
        """From now on everything must come within so many seconds."""
        self._is_stream = False
        self._end = time.monotonic() + total_s

    def stream(self) -> None:
        """From now on a long body moves, and only its rate counts."""
        self._is_stream = True
        self._bytes = 0
        self._end = time.monotonic() + WINDOW_S

    def moved(self, size: int) -> None:
        """So many bytes were sent or received."""
        if self._is_stream:
            self._bytes += size
            if self._bytes >= LEAST_BYTES:
                self.stream()

    def left_s(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            if self._is_stream:
                raise TimeoutError(f"fewer than {LEAST_BYTES} bytes moved in {WINDOW_S:.0f} s")
            raise TimeoutError("the answer did not come in time")
        return left


class PacedResponse(http.client.HTTPResponse):
    """A response whose reads, also those of its headers, end when the pace has no time left."""

    def __init__(self, sock: socket.socket, pace: Pace, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_PacedReader(raw, sock, pace))


class _PacedReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, pace: Pace) -> None:
        self._raw = raw
        self._sock = sock
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._pace.left_s())
        n: int | None = self._raw.readinto(buffer)
        self._pace.moved(n or 0)
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()
