"""Progress reports of long calls. The SDK is silent unless a caller passes one of these."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TextIO

from deltahub.client.escapes import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Stage(Protocol):
    """One part of the work. Its methods are called from several threads."""

    def advance(self, size: int) -> None: ...

    def set_position(self, done: int, total: int | None, title: str | None = None) -> None: ...


class Progress(Protocol):
    """A receiver of the reports of long work, whose stages are counted in bytes or otherwise."""

    def stage(
        self, title: str, total: int | None, *, is_bytes: bool = True
    ) -> AbstractContextManager[Stage]: ...

    def note(self, text: str) -> None: ...


class _Count:
    """A stage that shows nothing."""

    def __init__(self) -> None:
        self.done = 0
        self._lock = threading.Lock()

    def advance(self, size: int) -> None:
        with self._lock:
            self.done += size

    def set_position(self, done: int, total: int | None, title: str | None = None) -> None:
        self.done = done


class Silent:
    """Prints nothing."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
        yield _Count()

    def note(self, text: str) -> None:
        pass


class _Told(_Count):
    """A stage that prints how far it is each few seconds, where that has changed."""

    def __init__(self, title: str, out: TextIO, every_s: float) -> None:
        super().__init__()
        self._title, self._out, self._every_s = title, out, every_s
        self._told = ""
        self._told_at = time.monotonic()

    def set_position(self, done: int, total: int | None, title: str | None = None) -> None:
        super().set_position(done, total)
        now = time.monotonic()
        line = title or (f"{self._title}: {done} of {total}" if total else self._title)
        if line == self._told or now < self._told_at + self._every_s:
            return
        self._told, self._told_at = line, now
        print(printable(line), file=self._out, flush=True)


class Lines:
    """A line when a stage begins, one when it ends, and one in every_s seconds between them, for
    pipes and logs.
    """

    def __init__(self, out: TextIO | None = None, *, every_s: float = 5.0) -> None:
        self._out = out or sys.stderr
        self._every_s = every_s

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
        start = time.monotonic()
        size = f" {human_size(total)}" if total else ""
        title = printable(title)  # a hub names some stages
        print(f"{title}{size} ...", file=self._out, flush=True)
        yield _Told(title, self._out, self._every_s)
        seconds = time.monotonic() - start
        speed = f", {human_size(int(total / seconds))}/s" if total and seconds else ""
        print(f"{title}{size} done in {seconds:.1f} s{speed}", file=self._out, flush=True)

    def note(self, text: str) -> None:
        print(printable(text), file=self._out, flush=True)


class _Bar:
    def __init__(self, progress: "RichProgress", task: "TaskID") -> None:
        self._progress = progress
        self._task = task

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def set_position(self, done: int, total: int | None, title: str | None = None) -> None:
        if title is None:
            self._progress.update(self._task, completed=done, total=total)
        else:
            text = printable(title)
            self._progress.update(self._task, completed=done, total=total, description=text)


class Bars:
    """A bar for each stage, with bytes and speed or a count, and the time left, for terminals."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),  # a hub names some stages
            BarColumn(),
            *((DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=Console(stderr=True)) as progress:
            yield _Bar(progress, progress.add_task(printable(title), total=total))

    def note(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


def human_size(size: int) -> str:
    """A number of bytes as text in decimal units, such as 1.2 GB."""
    if size < 1000:
        return f"{size} B"
    scaled = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        scaled /= 1000
        if scaled < 999.95:
            return f"{scaled:.1f} {unit}"
    return f"{scaled / 1000:.1f} PB"


def count_of(n: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
