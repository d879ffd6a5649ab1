"""What pulls left in a folder of ordinary files: whatever else lies there is somebody's own."""

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from deltahub.client.local.paths import cache_folder, disk_full


class PulledFiles:
    """The files of one folder that pulls wrote or found to be theirs: path -> SHA-256s.

    A path has two of them while a pull is under way that may die before it replaces the file.
    """

    def __init__(self, key: str) -> None:
        """key: of the folder, fit for a file's name."""
        self._path = cache_folder() / "pulled" / f"{key}.json"
        self.known: Mapping[str, frozenset[str]] = _read(self._path)

    def add(self, files: Iterable[tuple[str, str]]) -> None:
        """Keeps (path, SHA-256) beside what is known of the path."""
        known = dict(self.known)
        for path, sha256 in files:
            known[path] = known.get(path, frozenset()) | {sha256}
        self._write(known)

    def replace(self, files: Mapping[str, str], left: Collection[str]) -> None:
        """Keeps these (path -> SHA-256) alone, and what is known of the paths in `left`."""
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
    """Nothing where there is no record, or none that can be read: then nothing is known."""
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
