"""The file `restore.unfinished` in a data folder, and which restore it belongs to."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.current import UNFINISHED

# The marker while it is written.
MARKER_IN_WORK: Final = "restore.new"


@dataclass(frozen=True)
class RestoreMarker:
    """Which snapshot goes where, and the mark of the new store.

    database: which database of PostgreSQL, once the filling of it has begun.
    """

    snapshot: str
    hub: str
    store_url: str
    mark: str
    database: str = ""


def read_marker(data_dir: Path) -> RestoreMarker | None:
    """None if there is none; ValueError if it is damaged, StoreError."""
    with translated(UNFINISHED):
        try:
            text = (data_dir / UNFINISHED).read_text()
        except FileNotFoundError:
            return None
    try:
        return RestoreMarker(**json.loads(text))
    except TypeError as exc:
        raise ValueError(str(exc)) from exc


def write_marker(data_dir: Path, marker: RestoreMarker) -> None:
    """Write it durably, in place of an older one; StoreError."""
    temporary = data_dir / MARKER_IN_WORK
    with translated(UNFINISHED):
        with temporary.open("w") as file:
            json.dump(asdict(marker), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(data_dir / UNFINISHED)
        Disk().fsync_dir(data_dir)
