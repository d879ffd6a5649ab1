"""Where a run of fsck is, kept in a file, so that a later run goes on from there."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from deltahub.registry.errors import InvalidRequest
from deltahub.registry.maintenance.fsck.findings import Finding

_SAVE_S: Final = 5.0
Key = int | str


@dataclass
class Cursor:
    """The stage that is being checked, and the last of its rows that is done.

    Checks of many rows begin after `after` (None: at the first), in order of their ids, and call
    reached() after each page. file: None keeps the place nowhere.
    """

    file: Path | None = None
    read_data: bool = False
    stage: str = ""
    after: Key | None = None
    findings: list[Finding] = field(default_factory=list)
    _saved_at: float = 0.0

    @classmethod
    def load(cls, file: Path, *, read_data: bool) -> "Cursor":
        """The place in the file, or the beginning if there is none; InvalidRequest."""
        if not file.exists():
            return cls(file, read_data)
        try:
            saved = json.loads(file.read_text())
            found = [Finding(**finding) for finding in saved["findings"]]
            cursor = cls(file, saved["read_data"], saved["stage"], saved["after"], found)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise InvalidRequest(f"{file} is not where a run of fsck was: {exc}") from exc
        if cursor.read_data != read_data:
            option = "with" if cursor.read_data else "without"
            raise InvalidRequest(
                f"{file} is of a run {option} --read-data: run it so, or delete the file"
            )
        return cursor

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
            "read_data": self.read_data,
            "stage": self.stage,
            "after": self.after,
            "findings": [asdict(finding) for finding in self.findings],
        }
        new = self.file.with_name(self.file.name + ".new")
        with new.open("w") as file:
            json.dump(saved, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.file)
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
