"""Where the client keeps things on this machine, and how it writes there."""

import errno
import os
from pathlib import Path

from deltahub.client.errors import DiskFull

# EFBIG is what a quota on the size of files says; a person sees the same problem.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def cache_folder() -> Path:
    """DELTAHUB_CACHE, else ~/.cache/deltahub (below XDG_CACHE_HOME where that is set)."""
    chosen = os.environ.get("DELTAHUB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "deltahub"


def disk_full(exc: OSError, path: str | os.PathLike[str], size: int | None = None) -> OSError:
    """Raises DiskFull if that is what `exc` says; else returns it, to be raised again."""
    if exc.errno not in _FULL:
        return exc
    wanted = f" for {size} bytes" if size else ""
    raise DiskFull(f"no room{wanted} at {path}: {os.strerror(exc.errno or 0)}") from exc


def write_at(fd: int, data: memoryview, offset: int, path: str | os.PathLike[str]) -> None:
    """Writes all of `data` at `offset`. DiskFull when there is no room."""
    try:
        while data:
            n = os.pwrite(fd, data, offset)
            data = data[n:]
            offset += n
    except OSError as exc:
        raise disk_full(exc, path) from exc


def read_at(fd: int, out: memoryview, offset: int) -> None:
    """Fills `out` from `offset` on. EOFError when the file ends before that."""
    done = 0
    while done < len(out):
        n = os.preadv(fd, [out[done:]], offset + done)
        if n == 0:
            raise EOFError("the file is shorter than it was")
        done += n


def reserve(fd: int, size: int, path: str | os.PathLike[str]) -> None:
    """Makes the file `size` bytes long and takes the room for it now. DiskFull if there is none."""
    if os.fstat(fd).st_size > size:
        os.ftruncate(fd, size)
    if size == 0:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise disk_full(exc, path, size) from exc
        # A file system that cannot reserve: the writes themselves will say when it is full.
        os.ftruncate(fd, size)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
