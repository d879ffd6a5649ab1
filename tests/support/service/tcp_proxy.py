"""A loopback TCP proxy that damages the server's bytes: flips, cuts, delays.

with damaging_proxy(hub.address, flip_at=(5_000_000,)) as proxy:
    Hub(proxy.url, token).pull(...)
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class DamagingProxy:
    """Counts the bytes from the server over all connections, and damages them at given offsets.

    flip_at: offsets of bytes to invert, each once. cut_at: offsets at which the connection is
    closed, each once. cut_upload_at: the same for bytes to the server. delay_s, delay_upload_s:
    pause in seconds before each block of at most 64 KiB from, or to, the server. edit: called with
    each block and whether it comes from the server; returns the block to pass on, of equal length.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        flip_at: tuple[int, ...] = (),
        cut_at: tuple[int, ...] = (),
        cut_upload_at: tuple[int, ...] = (),
        delay_s: float = 0.0,
        delay_upload_s: float = 0.0,
        edit: Callable[[bytes, bool], bytes] | None = None,
        port: int = 0,
    ) -> None:
        self._target = target
        self._flips = sorted(flip_at)
        self._cuts = sorted(cut_at)
        self._upload_cuts = sorted(cut_upload_at)
        self.delay_s = delay_s
        self.delay_upload_s = delay_upload_s
        self._edit = edit
        # Of each connection: bytes received from the server, over all connections, before its first
        # byte and after its last byte; bytes of this connection.
        self.answers: list[tuple[int, int, int]] = []
        self.received = 0
        self.sent = 0
        self.n_connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_spent(self) -> bool:
        """Whether all planned flips and cuts have been done."""
        return not (self._flips or self._cuts or self._upload_cuts)

    def close(self) -> None:
        self._is_closed = True
        _shut(self._listener)  # wakes the thread that accepts, which still holds the port
        self._accepting.join(5)
        self._listener.close()
        with self._lock:
            for each in self._open:
                _shut(each)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self.n_connections += 1
                self._open |= {client, server}
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink, is_answer), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        first, last, n_bytes = -1, 0, 0
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                time.sleep(self.delay_s if is_answer else self.delay_upload_s)
                if self._edit is not None:
                    block = self._edit(block, is_answer)
                block, is_cut = self._damaged(block, is_answer)
                first = self.received - len(block) if first < 0 else first
                last, n_bytes = self.received, n_bytes + len(block)
                sink.sendall(block)
                if is_cut:
                    break
        # Shut both sockets down, so that both sides notice the end.
        for each in (source, sink):
            _shut(each)
        with self._lock:
            self._open -= {source, sink}
            if is_answer:
                self.answers.append((first, last, n_bytes))
        source.close()

    def _damaged(self, block: bytes, is_answer: bool) -> tuple[bytes, bool]:
        with self._lock:
            start = self.received if is_answer else self.sent
            cuts = self._cuts if is_answer else self._upload_cuts
            is_cut = bool(cuts) and cuts[0] < start + len(block)
            if is_cut:
                block = block[: max(0, cuts.pop(0) - start)]
            end = start + len(block)
            if is_answer:
                data = bytearray(block)
                while self._flips and self._flips[0] < end:
                    data[max(0, self._flips.pop(0) - start)] ^= 0xFF
                block = bytes(data)
                self.received = end
            else:
                self.sent = end
        return block, is_cut


@contextlib.contextmanager
def damaging_proxy(target: tuple[str, int], **damage: Any) -> Iterator[DamagingProxy]:
    """Run a proxy to `target` inside the block. damage: arguments of DamagingProxy."""
    proxy = DamagingProxy(target, **damage)
    try:
        yield proxy
    finally:
        proxy.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
