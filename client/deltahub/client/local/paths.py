"""The client's cache folder, and reads and writes at offsets of files."""

import errno
import os
from pathlib import Path

from deltahub.client.errors import DiskFull, InvalidArgument

# EFBIG comes from a limit on file sizes; for the user it is the same problem.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def cache_folder() -> Path:
    """DELTAHUB_CACHE, else deltahub below XDG_CACHE_HOME, else ~/.cache/deltahub."""
    chosen = os.environ.get("DELTAHUB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "deltahub"


def disk_full(exc: OSError, path: str | os.PathLike[str], size: int | None = None) -> OSError:
    """Raises DiskFull if `exc` means that the disk is full; else returns `exc`, to be raised."""
    if exc.errno not in _FULL:
        return exc
    wanted = f" for {size} bytes" if size else ""
    raise DiskFull(f"no room{wanted} at {path}: {os.strerror(exc.errno or 0)}") from exc


def write_at(fd: int, data: memoryview, offset: int, path: str | os.PathLike[str]) -> None:
    """Writes all of `data` at `offset`. DiskFull when there is no space."""
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


def require_room(fd: int, size: int, path: str | os.PathLike[str]) -> None:
    """DiskFull if the disk cannot hold a file of `size` bytes. Reserves none of them.

    The size is what a hub says. A longer file of an earlier pull is truncated to it.
    """
    stat = os.fstat(fd)
    if stat.st_size > size:
        os.ftruncate(fd, size)
    disk = os.fstatvfs(fd)
    free = disk.f_bavail * disk.f_frsize
    # Some file systems do not tell their size.
    if disk.f_blocks and size - stat.st_blocks * 512 > free:
        raise DiskFull(f"no room for {size} bytes at {path}: {free} bytes are free")


def first_link(root: Path, folder: Path) -> Path | None:
    """The first link on the way from the root to a folder below it; None if there is none.

    The root itself may be a link, because the user named it.
    """
    at = root
    for part in folder.relative_to(root).parts:
        at /= part
        if at.is_symlink():
            return at
    return None


def make_folders(root: Path, folder: Path) -> None:
    """Makes the folder and those above it. InvalidArgument if one below the root is a link."""
    link = first_link(root, folder)
    if link is not None:
        raise InvalidArgument(f"{link} is a link, and nothing is written through links")
    folder.mkdir(parents=True, exist_ok=True)


def sync_folder(path: Path) -> None:
    """Syncs a folder, so that its files keep their names after a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
