"""The record of files that pulls wrote in a folder; all other files are the user's own."""

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from deltahub.client.local.paths import cache_folder, disk_full


class PulledFiles:
    """The files of one folder that pulls wrote or found in place: path -> SHA-256s.

    During a pull a path has two, because the pull may be killed before it replaces the file.
    """

    def __init__(self, key: str) -> None:
        """key: identifies the folder, and is valid in a file name."""
        self._path = cache_folder() / "pulled" / f"{key}.json"
        self.known: Mapping[str, frozenset[str]] = _read(self._path)

    def add(self, files: Iterable[tuple[str, str]]) -> None:
        """Adds these (path, SHA-256) to the record."""
        known = dict(self.known)
        for path, sha256 in files:
            known[path] = known.get(path, frozenset()) | {sha256}
        self._write(known)

    def replace(self, files: Mapping[str, str], left: Collection[str]) -> None:
        """Keeps only these files (path -> SHA-256) and the known hashes of the paths in `left`."""
        kept = {path: known for path, known in self.known.items() if path in left}
        self._write({**kept, **{path: frozenset({sha256}) for path, sha256 in files.items()}})

    def _write(self, known: Mapping[str, frozenset[str]]) -> None:
        if known == self.known:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({path: sorted(hashes) for path, hashes in sorted(known.items())})
        fd, temporary = tempfile.mkstemp(dir=self._path.parent)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(text)
            os.replace(temporary, self._path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise disk_full(exc, self._path) from exc
        self.known = known


def _read(path: Path) -> dict[str, frozenset[str]]:
    """The record; empty if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        str(name): frozenset(map(str, hashes))
        for name, hashes in found.items()
        if isinstance(hashes, list)
    }
