"""Makes the chunks of a response body and writes them to the socket, in one thread."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import Final

from deltahub.server.streaming.chunks import Chunk

# Buffers of one sendmsg() call; the system's limit (IOV_MAX) is 1024 or more.
_MAX_VIEWS: Final = 512


class ClientGone(Exception):
    """The client closed the connection."""


class NotTaken(Exception):
    """The client did not take a chunk in the time that it has for one."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"no chunk taken within {waited_s:.1f} s")


class WrongSize(Exception):
    """A body is not as long as its Content-Length."""


class SocketWriter:
    """A response body: run() makes each chunk and writes it, before it makes the next one.

    One thread does both, because a chunk that is handed to the event loop leaves the CPU's caches
    before it is sent. That costs more than decoding the next chunk meanwhile gains. Nothing else
    may be written to the connection from attach() to the end of run(). len() is the announced size
    in bytes.
    """

    def __init__(
        self,
        first: Chunk,
        rest: Iterator[Chunk],
        size: int,
        decode_slots: AbstractContextManager[object],
        idle_s: float,
    ) -> None:
        """first, rest: together `size` bytes. decode_slots: entered while a chunk is made.

        idle_s: longest time, in seconds, that a client may take for a chunk.
        """
        self._first: Chunk | None = first
        self._rest = rest
        self._size = size
        self._decode_slots = decode_slots
        self._idle_s = idle_s
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._count: Callable[[int], None] = lambda n: None
        self._is_cut = False
        # When the current write began; None while the client waits for a chunk.
        self._waiting_since: float | None = None
        self._is_attached = asyncio.Event()
        self.sent_bytes = 0

    def __len__(self) -> int:
        return self._size

    @property
    def has_connection(self) -> bool:
        """Whether this body has the connection, so that nothing else may be written to it."""
        with self._lock:
            return self._socket is not None and self._socket.fileno() >= 0

    async def attached(self) -> None:
        """Wait until attach() has set the connection."""
        await self._is_attached.wait()

    def attach(self, descriptor: int, count: Callable[[int], None]) -> None:
        """Take a connection, unless cut() was called before. For the event loop's thread only.

        count: called in the thread of run() with the number of bytes of each write that succeeded.
        A failed write counts nothing.
        """
        with self._lock:
            if self._is_cut:
                return  # run() will not be called
            # A duplicate: the descriptor stays ours even if the event loop closes the original.
            self._socket = socket.socket(fileno=os.dup(descriptor))
        self._count = count
        self._is_attached.set()

    def waited_s(self) -> float:
        """Seconds since the current write began; 0 while the client waits for a chunk."""
        started_at = self._waiting_since
        return 0.0 if started_at is None else time.monotonic() - started_at

    def run(self) -> None:
        """Write the whole body. An error shuts the connection down.

        Raises ClientGone, NotTaken, WrongSize, and the errors of making a chunk.
        """
        assert self._socket is not None, "there is no connection yet"
        left = self._size
        chunk, self._first = self._first, None
        try:
            while chunk is not None:
                left -= len(chunk)
                if left < 0:
                    raise WrongSize(f"more than the {self._size} bytes that were announced")
                self._write(chunk.views)
                chunk = None  # free it before the next chunk is made
                with self._decode_slots:
                    chunk = next(self._rest, None)
            if left > 0:
                raise WrongSize(f"{left} of {self._size} bytes are missing")
        except BaseException:
            self.cut()  # the client, which has too few bytes, must not wait for the rest
            raise
        finally:
            self._waiting_since = None
            self.close()

    def cut(self) -> None:
        """Shut the connection down, so that run() raises ClientGone soon.

        Before attach(): attach() will do nothing. After run(): does nothing. Safe from any thread.
        """
        with self._lock:
            self._is_cut = True
            if self._socket is not None and self._socket.fileno() >= 0:
                with suppress(OSError):  # the client closed it first
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close our descriptor of the connection."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()

    def _write(self, views: list[memoryview]) -> None:
        assert self._socket is not None
        self._waiting_since = started_at = time.monotonic()
        while views:
            left_s = started_at + self._idle_s - time.monotonic()
            if left_s <= 0:
                raise NotTaken(self.waited_s())
            try:
                self._socket.settimeout(left_s)
                if len(views) == 1:
                    # sendall() returns once all is sent: Python code between partial writes would
                    # run with cold CPU caches.
                    self._socket.sendall(views[0])
                    n = views[0].nbytes
                else:
                    n = self._socket.sendmsg(views[:_MAX_VIEWS])
            except (ConnectionError, TimeoutError) as exc:
                if exc.errno is None:  # our own timeout, not an error of the connection
                    raise NotTaken(self.waited_s()) from None
                raise ClientGone(exc.strerror) from exc
            self._count(n)
            self.sent_bytes += n
            done = 0
            while done < len(views) and n >= views[done].nbytes:
                n -= views[done].nbytes
                done += 1
            del views[:done]
            if n:
                views[0] = views[0][n:]
        self._waiting_since = None
