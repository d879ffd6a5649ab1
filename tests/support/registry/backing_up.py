"""Backs hubs up, and restores and proves backups."""

from pathlib import Path
from typing import Any

from deltahub.registry.maintenance.backup.place import opened_to_read
from deltahub.registry.maintenance.backup.snapshot import finished, load
from deltahub.registry.maintenance.backup.verify import verify
from deltahub.registry.maintenance.restore.run import Restored, restore
from deltahub.registry.settings import Settings


def restored(place: Path | str, folder: Path, name: str | None = None, **settings: Any) -> Restored:
    """Restore a snapshot to the data folder folder/data."""
    given = Settings(data_dir=folder / "data", **settings)
    with opened_to_read(str(place), given) as opened:
        return restore(opened, load(opened, name), given)


def findings(place: Path | str, name: str | None = None) -> list[str]:
    """Codes of what is wrong in a snapshot."""
    with opened_to_read(str(place), Settings()) as opened:
        return [each.code for each in verify(opened, load(opened, name), lambda *_: None)]


def names(place: Path | str) -> list[str]:
    """The finished snapshots."""
    with opened_to_read(str(place), Settings()) as opened:
        return finished(opened)
