"""Files and folders in the JSON of the Hugging Face API, for trees and lists."""

import hashlib
from datetime import UTC, datetime
from typing import Any, TypeAlias

from deltahub.registry.catalog.entries import EntryInfo
from deltahub.registry.catalog.history import CommitInfo
from deltahub.registry.catalog.pages.entries import ListedEntry

AnyEntry: TypeAlias = EntryInfo | ListedEntry


def utc_text(at: datetime) -> str:
    """Return a time in the form that Hugging Face clients parse: UTC, milliseconds, Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lfs_pointer(entry: AnyEntry) -> bytes:
    """Return the Git LFS pointer file that git stores in place of a large file."""
    lines = (
        "version https://git-lfs.github.com/spec/v1",
        f"oid sha256:{entry.sha256}",
        f"size {entry.size}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def git_blob_id(data: bytes) -> str:
    """Return the id of the git blob with these bytes: a SHA-1 in hex."""
    blob = b"blob %d\0" % len(data) + data
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()


def blob_id(entry: AnyEntry) -> str:
    """Return the git blob id of an entry: that of the file, or of a large file's pointer."""
    return entry.etag if entry.mode == "regular" else git_blob_id(lfs_pointer(entry))


def file_json(
    entry: EntryInfo, last: CommitInfo | None = None, *, xet_from: int | None = None
) -> dict[str, Any]:
    """Return the JSON of a file in a tree.

    last: the commit that changed it last, shown if given. xet_from: size in bytes from which the
    client downloads files by Xet; None for never.
    """
    shown: dict[str, Any] = {
        "type": "file",
        "oid": blob_id(entry),
        "size": entry.file.size,
        "path": entry.path,
    }
    if entry.mode == "lfs":
        shown["lfs"] = {
            "oid": entry.file.sha256,
            "size": entry.file.size,
            "pointerSize": len(lfs_pointer(entry)),
        }
        if xet_from is not None and entry.file.size >= xet_from:
            shown["xetHash"] = entry.file.sha256
    return shown | _with_commit(last)


def folder_json(path: str, oid: str, last: CommitInfo | None = None) -> dict[str, Any]:
    """Return the JSON of a folder in a tree. last: the newest commit that changed its contents."""
    shown: dict[str, Any] = {"type": "directory", "oid": oid, "size": 0, "path": path}
    return shown | _with_commit(last)


def _with_commit(last: CommitInfo | None) -> dict[str, Any]:
    if last is None:
        return {}
    return {
        "lastCommit": {"id": last.commit, "title": last.title, "date": utc_text(last.created_at)}
    }
