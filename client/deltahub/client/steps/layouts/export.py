"""Writes the steps of a run into a folder, in one of the layouts, and later what came since."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import InvalidArgument
from deltahub.client.local.index import LocalIndex
from deltahub.client.progress import Progress
from deltahub.client.pull.pull import Pull
from deltahub.client.steps.hub_calls import list_steps
from deltahub.client.steps.layouts import skyrl, slime
from deltahub.client.steps.layouts.changes import (
    Encoding,
    changes_between,
    publish,
    write_json,
)
from deltahub.client.steps.memory import HeldStep
from deltahub.client.steps.pull import StepPull
from deltahub.client.steps.records import ExportedStep

Layout = Literal["slime", "skyrl"]

# What this folder has, which no engine reads.
_STATE: Final = "deltahub-steps.json"
_ALL: Final = 1_000_000


@dataclass(frozen=True)
class ExportOptions:
    """since: the step that the engines have as their version 0; None: a whole checkpoint of the
    first step is written. until: the last step; None for the newest.
    """

    run: str
    layout: Layout
    since: int | None = None
    until: int | None = None
    encoding: Encoding = "xor"


class StepExport:
    """One export. Each version gets its name when it is whole; what is there is not written again.

    Versions are numbered without gaps, as engines apply them, whatever numbers the steps have.
    """

    def __init__(
        self, api: Api, index: LocalIndex, progress: Progress, options: ExportOptions
    ) -> None:
        self._api = api
        self._index = index
        self._progress = progress
        self._options = options
        if options.layout not in ("slime", "skyrl"):
            raise InvalidArgument(f"the layout is slime or skyrl, not {options.layout!r}")
        if options.encoding not in ("xor", "overwrite"):
            raise InvalidArgument(f"the encoding is xor or overwrite, not {options.encoding!r}")
        if (options.layout, options.encoding) == ("skyrl", "overwrite"):
            raise InvalidArgument("the layout skyrl has the encoding xor alone")

    def run(self, root: Path) -> list[ExportedStep]:
        """Writes the steps that the folder lacks; those that it wrote."""
        root.mkdir(parents=True, exist_ok=True)
        done = self._read_state(root)
        todo = self._todo([each.step for each in done])
        if todo:
            self._write_state(root, done)  # a killed export goes on in this folder
        written: list[ExportedStep] = []
        held: HeldStep | None = None
        for number in todo:
            last = done[-1] if done else None
            if last is None:
                made = self._begin(root, number)
            else:
                if held is None:
                    held = self._pull(last.step, None)
                now = self._pull(number, held)
                made = self._write_difference(root, last.version + 1, held, now)
                held = now
            done.append(made)
            self._write_state(root, done)
            written.append(made)
        return written

    def _todo(self, done: Sequence[int]) -> list[int]:
        options = self._options
        there = sorted(each.number for each in list_steps(self._api, options.run, _ALL))
        if not there:
            raise InvalidArgument(f"{options.run} has no steps: it is no run")
        for number in (options.since, options.until):
            if number is not None and number not in there:
                raise InvalidArgument(
                    f"{options.run} has no step {number}: `deltahub steps ls {options.run}` lists"
                    " those that are there"
                )
        if done and done[-1] not in there:
            raise InvalidArgument(
                f"step {done[-1]}, the last one in the folder, is dropped from {options.run}: what"
                " came since cannot be written as a difference from it. Begin a new folder, and let"
                " the run keep more of its last steps"
            )
        first = done[-1] + 1 if done else options.since
        return [
            number
            for number in there
            if (first is None or number >= first)
            and (options.until is None or number <= options.until)
        ]

    def _begin(self, root: Path, number: int) -> ExportedStep:
        """The first step: what the engines have already, or a whole checkpoint."""
        if self._options.since is not None:
            return ExportedStep(number, 0, None, is_whole=True)
        is_slime = self._options.layout == "slime"
        folder = slime.version_folder(root, 1) if is_slime else root / skyrl.BASE
        with _folder_in(root) as made:
            Pull(
                self._api,
                self._index,
                self._progress,
                self._options.run,
                f"step-{number}",
                is_sha256_asked=False,
            ).run(made)
            publish(made, folder)
        return ExportedStep(number, 1 if is_slime else 0, str(folder), is_whole=True)

    def _write_difference(
        self, root: Path, version: int, old: HeldStep, new: HeldStep
    ) -> ExportedStep:
        changes = changes_between(old, new, self._options.encoding)
        is_slime = self._options.layout == "slime"
        folder = (slime if is_slime else skyrl).version_folder(root, version)
        with _folder_in(root) as made:
            if is_slime:
                slime.write_version(made, version, changes, self._options.encoding)
            else:
                skyrl.write_version(made, version, changes)
            publish(made, folder)
        return ExportedStep(new.number, version, str(folder), is_whole=False)

    def _pull(self, number: int, held: HeldStep | None) -> HeldStep:
        return StepPull(self._api, self._progress, self._options.run, number).run(held)[1]

    def _read_state(self, root: Path) -> list[ExportedStep]:
        """What the folder has. InvalidArgument if another run, or somebody else, wrote it."""
        path, options = root / _STATE, self._options
        if not path.exists():
            if any(root.iterdir()):
                raise InvalidArgument(f"{root} has files of others: take an empty folder")
            return []
        try:
            state = json.loads(path.read_bytes())
            what = (state["run"], state["layout"])
            found = [
                ExportedStep(int(step), int(version), None, is_whole=bool(is_whole))
                for step, version, is_whole in state["steps"]
            ]
        except (ValueError, KeyError, TypeError) as exc:
            raise InvalidArgument(f"{path} is damaged ({exc}): begin a new folder") from exc
        if what != (options.run, options.layout):
            raise InvalidArgument(
                f"{root} has {what[0]} in the layout {what[1]}: take another folder"
            )
        if found and options.since not in (None, found[0].step):
            raise InvalidArgument(
                f"{root} begins with step {found[0].step}, not {options.since}: leave the option"
                " out, or take another folder"
            )
        return found

    def _write_state(self, root: Path, done: Sequence[ExportedStep]) -> None:
        options = self._options
        steps = [[each.step, each.version, each.is_whole] for each in done]
        made = root / f".{_STATE}"
        write_json(made, {"run": options.run, "layout": options.layout, "steps": steps})
        made.replace(root / _STATE)


class _folder_in:
    """A folder for a version that is being written; it is removed unless it gets its name."""

    def __init__(self, root: Path) -> None:
        for left in root.glob(".writing-*"):  # of an export that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._path = Path(tempfile.mkdtemp(prefix=".writing-", dir=root))
        self._path.chmod(0o755)

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
