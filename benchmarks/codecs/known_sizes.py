"""Sizes that an earlier run found: the same bytes from the same code, so not measured again."""

import functools
import hashlib
import json
import os
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import deltahub.codecs
from benchmarks.codecs.ours import Ours
from benchmarks.rivals.build import digest
from benchmarks.rivals.rival import Rival

_CODECS = Path(deltahub.codecs.__file__).parent
_NATIVE = Path(__file__).resolve().parents[2] / "codecs" / "native"
_COUNTING = Path(__file__).with_name("ours.py")


class KnownSizes:
    """What was found, in a file that is whole at any moment. For several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def get(self, key: str) -> dict[str, Any] | None:
        with self._lock:
            return self._found.get(key)

    def put(self, key: str, value: dict[str, Any]) -> None:
        with self._lock:
            self._found[key] = value
            scratch = self._path.with_suffix(".new")
            scratch.write_text(json.dumps(self._found, indent=1))
            os.replace(scratch, self._path)


def version(codec: Ours | Rival) -> str:
    """Of the code that makes the codec's bytes: another version, other sizes."""
    if isinstance(codec, Ours):
        return _our_digest()
    return " ".join([digest(), *(f"{name} {metadata.version(name)}" for name in codec.packages)])


@functools.cache
def _our_digest() -> str:
    """Of the sources, and of what counts their bytes: how they are compiled changes none."""
    found = hashlib.sha256()
    for source in sorted([_COUNTING, *_CODECS.rglob("*.py"), *_NATIVE.rglob("*.[ch]pp")]):
        found.update(source.name.encode() + b"\0" + source.read_bytes())
    return found.hexdigest()[:16]
