"""Where a run of fsck is, kept in a file, so that a later run goes on from there."""

import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.db.tables.stores import ObjectStore
from deltahub.registry.errors import InvalidRequest, RegistryError
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.registry import Registry

_SAVE_S: Final = 5.0
_ANEW: Final = "delete it, or name another file, and the check begins anew"
Key = int | str


@dataclass
class Cursor:
    """The stage that is being checked, and the last of its rows that is done.

    Checks of many rows begin after `after` (None: at the first), in order of their ids, and call
    reached() after each page. file: None keeps the place nowhere. hub: one of marks_of.
    """

    file: Path | None = None
    read_data: bool = False
    hub: str = ""
    stage: str = ""
    after: Key | None = None
    findings: list[Finding] = field(default_factory=list)
    _saved_at: float = 0.0

    @classmethod
    def load(cls, file: Path, *, read_data: bool, hubs: Sequence[str]) -> "Cursor":
        """The place in the file, or the beginning if there is none; InvalidRequest.

        hubs: what marks_of gives for the hub that is checked.
        """
        if not file.parent.is_dir():
            raise InvalidRequest(
                f"there is no folder {file.parent} for {file.name}: make it, or name another file"
            )
        if not file.exists():
            return cls(file, read_data, hubs[0])
        try:
            cursor = _parsed(file, json.loads(file.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InvalidRequest(
                f"{file} is damaged, or not the place of a check: {_ANEW}"
            ) from exc
        if cursor.hub not in hubs:
            raise InvalidRequest(f"{file} is the place of a check of another hub: {_ANEW}")
        if cursor.read_data != read_data:
            option = "with" if cursor.read_data else "without"
            raise InvalidRequest(
                f"{file} is the place of a check {option} --read-data: run it so, or {_ANEW}"
            )
        return cursor

    def check_stage(self, stages: Collection[str]) -> None:
        """InvalidRequest if the place is in a stage that this release does not have."""
        if self.stage and self.stage not in stages:
            raise InvalidRequest(
                f"{self.file} is the place of a check by another release of DeltaHub: {_ANEW}"
            )

    def begin_after(self, first: Key) -> Key:
        """The row after which a check begins: `first`, or where the run before was."""
        return first if self.after is None else self.after

    def reached(self, key: Key) -> None:
        """All rows up to this one are checked."""
        self.after = key
        if time.monotonic() > self._saved_at + _SAVE_S:
            self.save()

    def save(self) -> None:
        """Write the place down."""
        if self.file is None:
            return
        saved = {
            "hub": self.hub,
            "read_data": self.read_data,
            "stage": self.stage,
            "after": self.after,
            "findings": [asdict(finding) for finding in self.findings],
        }
        new = self.file.with_name(self.file.name + ".new")
        try:
            with new.open("w") as file:
                json.dump(saved, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.file)
        except OSError as exc:
            raise InvalidRequest(f"cannot write {new}: {exc.strerror or exc}") from exc
        self._saved_at = time.monotonic()

    def left(self, stages: list[str]) -> Iterator[str]:
        """The stages that are not done, the current one first; sets `stage` to each."""
        start = stages.index(self.stage) if self.stage in stages else 0
        for stage in stages[start:]:
            if stage != self.stage:
                self.stage, self.after = stage, None
                self.save()
            yield stage
        if self.file is not None:
            with suppress(FileNotFoundError):
                self.file.unlink()


def marks_of(reg: Registry) -> list[str]:
    """What tells this hub from others: the marks of its stores, the current one first."""
    query = select(ObjectStore.mark).order_by(ObjectStore.state != "current", ObjectStore.mark)
    try:
        with reg.db.read() as session:
            return list(session.scalars(query)) or [""]
    except (RegistryError, SQLAlchemyError):
        return [""]  # fsck says what is wrong with the database


def _parsed(file: Path, saved: Any) -> Cursor:
    found = [
        Finding(each["code"], each["target"], each["text"], tuple(each["files"]), each["n_files"])
        for each in saved["findings"]
    ]
    cursor = Cursor(file, saved["read_data"], saved["hub"], saved["stage"], saved["after"], found)
    is_right = (
        isinstance(cursor.read_data, bool)
        and isinstance(cursor.hub, str)
        and isinstance(cursor.stage, str)
        and isinstance(cursor.after, int | str | None)
    )
    if not is_right:
        raise ValueError("a value of another type")
    return cursor
