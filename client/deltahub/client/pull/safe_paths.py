"""Refuses a revision whose files could not be written safely: a pull trusts no hub."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from deltahub.client.errors import BadResponse, InvalidArgument
from deltahub.client.local.paths import first_link
from deltahub.client.names import path_problem
from deltahub.client.records import Entry
from deltahub.codecs.files.paths import tree_problem, twins

# Files in one error message.
_MAX_NAMED = 5


def check_entries(entries: Sequence[Entry]) -> None:
    """BadResponse if a path breaks the rule of docs/paths.md, or two entries contradict."""
    problems = [
        f"{entry.path!r} {problem}"
        for entry in entries
        if (problem := path_problem(entry.path)) is not None
    ]
    if problems:
        more = f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        raise BadResponse(
            "nothing was written, because the revision has paths that cannot be written safely: "
            + "; ".join(problems[:_MAX_NAMED])
            + more
            + ". If you trust them, download them by another client, and push them by other names"
        )
    paths = {entry.path for entry in entries}
    problem = tree_problem(paths)
    if problem is not None:
        raise BadResponse(f"nothing was written: {problem}")
    if len(paths) < len(entries):
        raise BadResponse("nothing was written: the hub named one path twice")
    blobs: dict[str, tuple[str, int]] = {}
    for entry in entries:
        contents = (entry.sha256, entry.size)
        is_own_hash = len(entry.etag) != len(entry.sha256) or entry.etag == entry.sha256
        if not is_own_hash or blobs.setdefault(entry.etag, contents) != contents:
            raise BadResponse(f"nothing was written: the hub sent a wrong ETag of {entry.path!r}")


def check_twins(folder: Path, paths: Iterable[str]) -> None:
    """InvalidArgument if two of the paths would be one file in this folder."""
    pairs = twins(paths)
    if not pairs:
        return
    while not folder.exists():
        folder = folder.parent
    # Only the file system knows its own rule.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".deltahub-") as scratch:
        for i, (one, other) in enumerate(pairs):
            place = Path(scratch, str(i))
            (place / one).parent.mkdir(parents=True)
            (place / one).touch()
            if os.path.lexists(place / other) or _is_file_above(place, other):
                raise InvalidArgument(
                    f"nothing was written: {one!r} and {other!r} are two files of the revision and"
                    f" one file in {folder}, because of case or Unicode spelling; pull to a folder"
                    " on another file system"
                )


def check_links(root: Path, folders: Iterable[Path]) -> None:
    """InvalidArgument if one of the folders, or one between it and the root, is a link."""
    seen: set[Path] = set()
    for folder in folders:
        if folder in seen:
            continue
        seen.add(folder)
        link = first_link(root, folder)
        if link is not None:
            raise InvalidArgument(
                f"nothing was written: {link} is a link, and a pull writes through none, because"
                " its files would land elsewhere; pull into a folder without links"
            )


def _is_file_above(place: Path, path: str) -> bool:
    return any((place / above).is_file() for above in Path(path).parents)
