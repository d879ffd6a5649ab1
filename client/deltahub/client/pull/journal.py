"""The journal of an unfinished file: a text file with a line for each finished part."""

import os
from pathlib import Path

from deltahub.client.local.paths import disk_full


class Journal:
    """The finished parts of one file that is being written; a later process reads them.

    A later process must verify the bytes of each part, because after a power failure the disk
    may have a line without the bytes. `done` maps the offset of each part to its size.
    """

    def __init__(self, path: Path, identity: str) -> None:
        """identity: of the file's final contents. A journal with another identity is emptied."""
        self.path = path
        self.done: dict[int, int] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        first = f"deltahub 1 {identity}\n".encode()
        text = b""
        while chunk := os.pread(self._fd, 1 << 20, len(text)):
            text += chunk
        if not text.startswith(first):
            os.ftruncate(self._fd, 0)
            self._append(first)
            return
        lines = text[len(first) :].split(b"\n")
        # The last item is empty, or a line that a killed process did not finish.
        if lines[-1]:
            os.ftruncate(self._fd, len(text) - len(lines[-1]))
        for line in lines[:-1]:
            start, _, size = line.partition(b" ")
            if start.isdigit() and size.isdigit():
                self.done[int(start)] = int(size)

    def add(self, start: int, size: int) -> None:
        """Records that bytes [start, start + size) are written and verified."""
        self.done[start] = size
        self._append(f"{start} {size}\n".encode())

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, line: bytes) -> None:
        try:
            os.write(self._fd, line)
        except OSError as exc:
            raise disk_full(exc, self.path) from exc
