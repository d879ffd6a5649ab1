"""The way of a body from its maker to the socket, in one thread."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import Final

from deltahub.server.streaming.chunks import Chunk

# Buffers that one call takes; the system's own limit is 1024 or more.
_MAX_VIEWS: Final = 512


class ClientGone(Exception):
    """The connection has ended."""


class NotTaken(Exception):
    """The client took less than a chunk in the time that it has for one."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"no chunk taken within {waited_s:.1f} s")


class WrongSize(Exception):
    """A body is not as long as its header says."""


class Outflow:
    """A body on its way: `run` makes each chunk and writes it, before it makes the next one.

    A chunk that a thread hands to the event loop, and that loop to the socket, has lost its place
    near the processor by then, as has the code that hands it over: that costs more than it takes
    to decode the next chunk meanwhile. Nothing else may be written to the connection from begin()
    to the end of run(). Its length is in bytes, as announced.
    """

    def __init__(
        self,
        first: Chunk,
        rest: Iterator[Chunk],
        size: int,
        making: AbstractContextManager[object],
        idle_s: float,
    ) -> None:
        """first, rest: `size` bytes. making: entered while a chunk is made.

        idle_s: longest that a client may take for a chunk.
        """
        self._first: Chunk | None = first
        self._rest = rest
        self._size = size
        self._making = making
        self._idle_s = idle_s
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._count: Callable[[int], None] = lambda n: None
        self._is_cut = False
        # Since when the client takes a chunk; None while it waits for one itself.
        self._since: float | None = None
        self._has_begun = asyncio.Event()

    def __len__(self) -> int:
        return self._size

    @property
    def has_connection(self) -> bool:
        """Whether nobody else may write to the connection."""
        with self._lock:
            return self._socket is not None and self._socket.fileno() >= 0

    async def begun(self) -> None:
        """Waits until there is a connection to write to."""
        await self._has_begun.wait()

    def begin(self, descriptor: int, count: Callable[[int], None]) -> None:
        """Takes a connection, unless cut() came before. Called by the event loop, as begun() is.

        count: told, from the thread of run(), how many bytes went out; of a buffer that was cut,
        nothing.
        """
        with self._lock:
            if self._is_cut:
                return  # nobody will run this
            # Of our own, so that it is never another connection's, whoever closes the first.
            self._socket = socket.socket(fileno=os.dup(descriptor))
        self._count = count
        self._has_begun.set()

    def waited_s(self) -> float:
        """Since when the client takes the chunk that it has; 0 while it waits for one itself."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def run(self) -> None:
        """Writes all of it. ClientGone, NotTaken, WrongSize, and what making a chunk raises."""
        assert self._socket is not None, "there is no connection yet"
        left = self._size
        chunk, self._first = self._first, None
        try:
            while chunk is not None:
                left -= len(chunk)
                if left < 0:
                    raise WrongSize(f"more than the {self._size} bytes that were announced")
                self._write(chunk.views)
                chunk = None  # so that no more than two are held while the next one is made
                with self._making:
                    chunk = next(self._rest, None)
            if left > 0:
                raise WrongSize(f"{left} of {self._size} bytes are missing")
        finally:
            self._since = None
            self.close()

    def cut(self) -> None:
        """Makes run() raise ClientGone soon, and the connection unusable; nothing after run().

        Before begin(), none is taken any more. Safe from any thread.
        """
        with self._lock:
            self._is_cut = True
            if self._socket is not None and self._socket.fileno() >= 0:
                with suppress(OSError):  # the client was quicker
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of a connection that run() will not write to."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()

    def _write(self, views: list[memoryview]) -> None:
        assert self._socket is not None
        self._since = since = time.monotonic()
        while views:
            left_s = since + self._idle_s - time.monotonic()
            if left_s <= 0:
                raise NotTaken(self.waited_s())
            try:
                self._socket.settimeout(left_s)
                if len(views) == 1:
                    # Comes back once all of it is through: Python that runs after every part of it
                    # finds nothing of its own near the processor.
                    self._socket.sendall(views[0])
                    n = views[0].nbytes
                else:
                    n = self._socket.sendmsg(views[:_MAX_VIEWS])
            except (ConnectionError, TimeoutError) as exc:
                if exc.errno is None:  # the time that we have set
                    raise NotTaken(self.waited_s()) from None
                raise ClientGone(exc.strerror) from exc
            self._count(n)
            done = 0
            while done < len(views) and n >= views[done].nbytes:
                n -= views[done].nbytes
                done += 1
            del views[:done]
            if n:
                views[0] = views[0][n:]
        self._since = None
