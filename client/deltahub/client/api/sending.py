"""Sends a part of a file to a hub, by sendfile where the connection is not encrypted."""

import os
import select
import socket
import ssl
from collections.abc import Callable
from typing import BinaryIO

from deltahub.client.api.pace import Pace
from deltahub.client.errors import LocalFileChanged

_SEND_STEP = 8 << 20
_TLS_STEP = 256 << 10


def send_file(
    sock: socket.socket,
    file: BinaryIO,
    start: int,
    total: int,
    pace: Pace,
    on_sent: Callable[[int], None],
) -> None:
    """Sends bytes [start, total) of the file. TimeoutError when the hub takes them too slowly."""
    send_some = _send_encrypted if isinstance(sock, ssl.SSLSocket) else _send_plain
    offset = start
    while offset < total:
        n = send_some(sock, file.fileno(), offset, total - offset, pace)
        if n == 0:
            raise LocalFileChanged(f"{file.name} became shorter while it was pushed")
        pace.moved(n)
        offset += n
        on_sent(n)


def _send_plain(sock: socket.socket, fd: int, offset: int, size: int, pace: Pace) -> int:
    """The number of bytes that the connection took; 0 at the end of the file."""
    sock.settimeout(pace.left_s())  # with a timeout the descriptor does not block
    while True:
        try:
            return os.sendfile(sock.fileno(), fd, offset, min(size, _SEND_STEP))
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            poll.poll(pace.left_s() * 1000)


def _send_encrypted(sock: socket.socket, fd: int, offset: int, size: int, pace: Pace) -> int:
    data = os.pread(fd, min(size, _TLS_STEP), offset)
    sock.settimeout(pace.left_s())
    sock.sendall(data)
    return len(data)
